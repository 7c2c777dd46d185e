"""The slow tests: which they are, and a share of them for continuous integration, which is to answer soon.

``tests/slow.txt`` names them: a test's function, or one of its cases where the others are quick. All have the mark
``slow``. ``pytest --slow-share K/N`` runs, beside all quick tests, an N-th of the slow ones; K says which. As CI takes
K from the commit, every slow test is run by one commit in N or so, and by anybody who runs the whole suite.

``python -m tests.slow FILE`` writes the list anew from a run of the whole suite with ``--junitxml FILE``.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from statistics import fmean
from xml.etree import ElementTree
from zlib import crc32

__all__ = ["LIST", "in_share", "is_slow", "listed", "slow_of"]

LIST = Path(__file__).parent / "slow.txt"

SLOW, SLOW_CASE = 0.5, 2.0  # seconds: of a function in the mean over its cases, and of a case of a quick function


def listed() -> frozenset[str]:
    """The names in the list."""
    return frozenset(LIST.read_text("utf-8").split("\n")) - {""}


def is_slow(test: str, slow: Collection[str]) -> bool:
    """Whether a test is in the list, as its function or as a case.

    Args:
        test: its node id.
        slow: the list.
    """
    return test in slow or test.partition("[")[0] in slow


def in_share(test: str, share: str) -> bool:
    """Whether a slow test is in a share of them.

    Args:
        test: its node id.
        share: ``K/N``: the K-th of N.

    Raises:
        ValueError: it is not of this form, or K is not below N.
    """
    which, _, of = share.partition("/")
    if not (which.isdecimal() and of.isdecimal() and int(which) < int(of)):
        raise ValueError(f"--slow-share is {share!r}; it is K/N with K from 0 to N - 1")
    return crc32(test.encode()) % int(of) == int(which)


def slow_of(times: Iterable[tuple[str, float]]) -> list[str]:
    """The list that follows from what each test took.

    Args:
        times: node ids and seconds.
    """
    cases: dict[str, dict[str, float]] = defaultdict(dict)
    for test, seconds in times:
        cases[test.partition("[")[0]][test] = seconds
    found: list[str] = []
    for function, own in cases.items():
        if fmean(own.values()) >= SLOW:
            found.append(function)
        else:
            found += [test for test, seconds in own.items() if seconds >= SLOW_CASE]
    return sorted(found)


def _times(path: Path) -> Iterator[tuple[str, float]]:
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        yield f"{case.attrib['classname'].replace('.', '/')}.py::{case.attrib['name']}", float(case.attrib["time"])


if __name__ == "__main__":
    LIST.write_text("\n".join(slow_of(_times(Path(sys.argv[1])))) + "\n", "utf-8")

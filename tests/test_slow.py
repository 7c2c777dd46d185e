"""The list of slow tests, and shares of it."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.slow import LIST, in_share, is_slow, listed, slow_of

ROOT = Path(__file__).parents[1]


def test_it_names_tests_that_there_are() -> None:
    """A test that was renamed would be taken for a quick one."""
    named: dict[str, set[str]] = {}
    for name in listed():
        path, _, test = name.partition("::")
        named.setdefault(path, set()).add(test.partition("[")[0])
    for path, tests in named.items():
        tree = ast.parse((ROOT / path).read_text("utf-8"))
        assert tests <= {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, path
    assert sorted(listed()) == LIST.read_text("utf-8").splitlines()


def test_shares_are_all_of_them_and_no_test_twice() -> None:
    tests = [f"tests/test_x.py::test_y[{n}]" for n in range(50)]
    shares = [{test for test in tests if in_share(test, f"{which}/4")} for which in range(4)]
    assert set.union(*shares) == set(tests)
    assert sum(map(len, shares)) == 50
    assert all(shares)


@pytest.mark.parametrize("share", ["4/4", "-1/4", "1", "", "a/b", "0/0"])
def test_other_words_are_refused(share: str) -> None:
    with pytest.raises(ValueError, match=r"--slow-share is .*; it is K/N"):
        in_share("tests/test_x.py::test_y", share)


def test_a_function_is_slow_in_the_mean_and_a_case_by_itself() -> None:
    times = [("a.py::f[1]", 0.1), ("a.py::f[2]", 1.9), ("a.py::g[1]", 0.0), ("a.py::g[2]", 0.0), ("a.py::g[3]", 0.1)]
    times += [("a.py::h[1]", 2.5), *((f"a.py::h[{n}]", 0.1) for n in range(2, 9)), ("b.py::i", 0.4)]
    found = slow_of(times)
    assert found == ["a.py::f", "a.py::h[1]"]
    assert [is_slow(test, found) for test in ("a.py::f[1]", "a.py::h[1]", "a.py::h[2]", "b.py::i")] == [
        True, True, False, False,
    ]  # fmt: skip


def test_pytest_runs_the_quick_ones_and_a_share() -> None:
    """By the very option of continuous integration."""

    def chosen(*words: str) -> set[str]:
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "tests/data/test_download.py", *words]
        ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
        return {line for line in ran.stdout.splitlines() if "::" in line}

    quick, *shares = chosen("-m", "not slow"), chosen("--slow-share", "0/2"), chosen("--slow-share", "1/2")
    assert quick
    assert set.intersection(*shares) == quick
    slow = set.union(*shares) - quick
    assert slow
    assert all(is_slow(test, listed()) for test in slow)

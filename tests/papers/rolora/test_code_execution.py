"""Programs of a model run confined: what passes, what fails, what is stopped, and what cannot be forged."""

from __future__ import annotations

import os
import time
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest

from commonground.errors import ConfigError
from commonground.papers.rolora.code_execution import Limits, judge, run_program
from commonground.papers.rolora.code_execution.confine import confine
from commonground.papers.rolora.code_execution.values import decode, encode
from commonground.papers.rolora.table12 import _helpers
from tests.papers.rolora.forgeries import FORBIDDEN, FORGED


def _is_confined() -> bool:
    """Whether this kernel can; asked in a process that may be given up."""
    pid = os.fork()
    if pid == 0:
        os._exit(bool(confine(60, 1 << 40)))
    return os.waitpid(pid, 0)[1] == 0


QUICK = Limits(seconds=1, memory=1 << 28)
PATIENT = Limits(seconds=8, memory=1 << 28)  # for what ends by itself, also on a busy machine
TESTS = "def check(candidate):\n    assert candidate(1) == 2\n    assert candidate(5) == 6\n"
RIGHT = "def f(x):\n    return x + 1\n"
pytestmark = pytest.mark.skipif(not _is_confined(), reason="this kernel has no Landlock or no seccomp")


def verdict_of(solution: str, tests: str = TESTS, limits: Limits = QUICK, **more: Any) -> str:
    began = time.perf_counter()
    verdict = run_program(solution, tests, "f", limits=limits, **more)
    assert time.perf_counter() - began < 20
    return verdict


@pytest.mark.parametrize(
    ("solution", "verdict"),
    [
        (RIGHT, "passed"),
        ("def f(x):\n    return x + 2\n", "failed"),
        ("def f(x):\n    print('x' * 10**6)\n    return x + 1\n", "passed"),  # what is printed goes nowhere
        ("def f(:", "failed"),
        ("def g(x):\n    return x + 1\n", "failed"),
        ("import numpy\n" + RIGHT, "failed"),  # no packages but Python's own, and all of these
        ("import decimal, hashlib, heapq, json, random, re, sqlite3, statistics, unicodedata\n" + RIGHT, "passed"),
        ("seen = []\ndef f(x):\n    seen.append(x)\n    return x + len(seen) // 1 * 0 + 1\n", "passed"),
        ("def f(x):\n    while True:\n        pass", "out of time"),
        ("import time\ntime.sleep(60)", "out of time"),
        ("def f(x):\n    import signal\n    signal.signal(signal.SIGXCPU, print)\n    while True: pass", "out of time"),
        ("x = bytearray(1 << 30)", "out of memory"),
        ("def f(x):\n    return [0] * (1 << 29)", "out of memory"),
        ("def f(x):\n    x = []\n    x.append(x)\n    return x", "failed"),
        ("def f(x):\n    return 'y' * (1 << 25)", "failed"),  # longer than any answer
    ],
)
def test_a_verdict(solution: str, verdict: str) -> None:
    assert verdict_of(solution, limits=QUICK if verdict == "out of time" else PATIENT) == verdict


@pytest.mark.parametrize("how", list(FORGED))
def test_no_pass_is_forged(how: str) -> None:
    assert verdict_of(FORGED[how]) == "failed"


def test_a_solution_that_is_gone_does_not_pass_tests_that_catch_everything() -> None:
    lenient = "def check(f):\n    try:\n        f(1)\n    except:\n        pass\n"
    assert verdict_of("import os\ndef f(x):\n    os._exit(0)", lenient) == "failed"
    assert verdict_of("def f(x):\n    raise KeyError(1)", lenient) == "passed"


@pytest.mark.parametrize("what", list(FORBIDDEN))
def test_what_a_program_may_not_do(what: str) -> None:
    tests = "def check(f):\n    try:\n        f()\n    except PermissionError:\n        return\n    assert False\n"
    assert verdict_of(f"def f():\n{indent(FORBIDDEN[what], '    ')}\n", tests) == "passed"


def test_a_fork_bomb_starts_nothing() -> None:
    bomb = """
import os
started = 0
for _ in range(50):  # few, and each leaves at once, lest a machine on which this test fails be bombed
    try:
        started += 1
        if os.fork() == 0:
            os._exit(0)
    except OSError:
        started -= 1
"""
    assert verdict_of(bomb + "def f(x):\n    return x + 1 + started\n") == "passed"


def test_the_program_finds_an_empty_home_folder_and_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET", "1")
    solution = (
        "import os\ndef f():\n    home = os.path.expanduser('~')\n"
        "    return sorted(set(os.environ) - {'LC_CTYPE'}), os.listdir(), home == os.getcwd(), home"
    )
    tests = "def check(f):\n    assert f()[:3] == (['HOME'], [], True)\n    assert 'commonground-code-' in f()[3]"
    assert verdict_of(solution, tests) == "passed"


def test_the_tests_are_confined_too(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    opens = f"open({str(tmp_path / 'file')!r})"
    reads = f"def check(f):\n    try: {opens}\n    except PermissionError: return\n    assert False"
    assert verdict_of(RIGHT, reads) == "passed"
    assert verdict_of(RIGHT, "def check(f):\n    while True: pass") == "out of time"


def test_where_nothing_confines_nothing_runs_unless_asked_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(judge, "_START", "import platform\nplatform.machine = lambda: 'abacus'\n" + judge._START)
    with pytest.raises(
        ConfigError, match=r"cannot be confined here \(seccomp: unknown for processors of kind abacus\)"
    ):
        verdict_of(RIGHT)
    assert verdict_of(RIGHT, confined=False) == "passed"
    assert verdict_of(FORGED["equals everything"], confined=False) == "failed"
    mark = tmp_path / "mark"
    child = f"import time, pathlib\ntime.sleep(1.5)\npathlib.Path({str(mark)!r}).touch()"
    starts = f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {child!r}])\n"
    verdict_of(starts + RIGHT, confined=False)
    time.sleep(1.7)
    assert not mark.exists()  # what it started was ended with it


def test_helpers_of_a_prompt_serve_the_tests() -> None:
    prompt = "def encode(x):\n    return x * 2\n\n\ndef f(x):\n    '''Undo encode.'''\n"  # as HumanEval's 38 and 50
    tests = "def check(candidate):\n    for i in range(9):\n        assert candidate(encode(i)) == i == f(encode(i))\n"
    helpers = _helpers(prompt)
    assert verdict_of(prompt + "    return x // 2\n", tests, helpers=helpers) == "passed"
    forged = "    return x\n\ndef encode(x):\n    return x\n"  # the tests have their own
    assert verdict_of(prompt + forged, tests, helpers=helpers) == "failed"
    assert _helpers("def f(x):") == "def f(x):\n    pass\n"
    assert _helpers("def f(x:") == ""


@pytest.mark.parametrize(
    "value",
    [
        None, True, 0, -1, 1.5, float("inf"), -0.0, 1 + 2j, "é\ud800\n", b"\x00\xff", bytearray(b"x"), [],
        [1, [2.0, "3"]], (1, (2,)), {1, 2}, frozenset({"a"}), {(1, 2): [None], "b": {"c": b""}},
    ],
)  # fmt: skip
def test_values_travel_exactly(value: object) -> None:
    back = decode(encode(value))
    assert back == value
    assert repr(back) == repr(value)


def test_whole_numbers_of_any_length_travel() -> None:
    assert decode(encode(-(10**5000))) == -(10**5000)


def test_subclasses_travel_as_their_plain_type() -> None:
    class Sly(list[int]):
        def __eq__(self, other: object) -> bool:
            return True

    assert type(decode(encode(Sly([1])))) is list
    with pytest.raises(TypeError, match="a value of type object does not travel"):
        encode([object()])


@pytest.mark.parametrize("given", [[], ["eval", "1"], ["int"], ["int", 1], ["dict", 1], ["set", ["list"]], {"a": 1}, 3])
def test_what_is_no_value_is_refused(given: object) -> None:
    with pytest.raises(ValueError, match=r"no value|not enough"):
        decode(given)


def test_limits_that_are_none() -> None:
    with pytest.raises(ConfigError, match="0 s and"):
        Limits(seconds=0)

"""Bars move where somebody watches: not in a pipe, whatever the environment says of colours."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import warnings

import pytest
from rich.console import Console

from commonground.cli import main
from commonground.errors import warn
from commonground.terminal import human_bytes, moves, standard_output


@pytest.mark.parametrize("forced", [True, False])
def test_no_bar_in_a_pipe(forced: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if forced:
        monkeypatch.setenv("FORCE_COLOR", "1")
    console = Console(stderr=True)
    assert console.is_terminal is forced
    assert not moves(console)


@pytest.mark.parametrize(("kind", "expected"), [("xterm-256color", True), ("dumb", False)])
def test_a_bar_on_a_terminal_that_can_go_back(kind: str, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = pty.openpty()
    with os.fdopen(here), os.fdopen(there, "w") as terminal:
        monkeypatch.setenv("TERM", kind)
        monkeypatch.setattr(sys, "stderr", terminal)
        assert moves(Console(stderr=True)) is expected


@pytest.mark.parametrize(
    ("own", "coloured"),
    [({}, False), ({"FORCE_COLOR": "1"}, True), ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False)],
)
def test_colours_in_a_pipe(own: dict[str, str], coloured: bool) -> None:
    """A red word, which no result of ours is: rich asks the environment."""
    code = "from commonground.terminal import standard_output; standard_output().print('[red]x[/red]')"
    clean = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "NO_COLOR")}
    environment = clean | {"TERM": "xterm"} | own
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert ("\x1b[31m" in done.stdout) is coloured


def test_a_pipe_has_110_columns() -> None:
    assert standard_output().width == 110
    assert [human_bytes(count) for count in (999, 1000, 2.5e9)] == ["999 B", "1.0 kB", "2.5 GB"]


def test_what_the_command_warns_of_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And not a line of ours, with its file; what others warn of stays Python's."""
    monkeypatch.setattr(sys, "argv", ["commonground", "--version"])
    with warnings.catch_warnings():
        others: list[str] = []
        monkeypatch.setattr(warnings, "showwarning", lambda message, *where: others.append(str(message)))
        warnings.simplefilter("always")
        assert main() == 0
        warn("nothing to\nsee here")
        warnings.warn("of somebody else", UserWarning, stacklevel=1)
    assert capsys.readouterr().err == "commonground: warning: nothing to see here\n"
    assert others == ["of somebody else"]

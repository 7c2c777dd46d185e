"""``--help``: every option once, in the section where it is looked for."""

from __future__ import annotations

import re

import click
import pytest

from commonground.cli import cli, main
from commonground.cli_help import SECTIONS


@pytest.mark.parametrize("name", ["train", "compare"])
def test_every_option_has_one_section(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    listed = [option for names in SECTIONS.values() for option in names]
    assert len(listed) == len(set(listed))
    command = cli.commands[name]
    options = [param for param in command.params if isinstance(param, click.Option)]
    assert {str(option.name) for option in options} <= set(listed)
    assert main([name, "--help"]) == 0
    shown, example, _ = capsys.readouterr().out.partition("Example: commonground")
    assert example
    assert "Further options" not in shown
    for option in options:
        flag = re.escape(option.opts[0])
        assert len(re.findall(rf"^  (?:-\w, )?{flag}\b(?!-)", shown, re.MULTILINE)) == 1, option.opts
    titles = [line.rstrip(":") for line in shown.splitlines() if re.match(r"[A-Z].*:$", line)]
    assert [title for title in titles if title in SECTIONS] == [t for t in SECTIONS if t in titles]
    assert ("Comparison" in titles) is (name == "compare")


def test_no_section_names_an_option_that_is_gone() -> None:
    known = {str(param.name) for name in ("train", "compare") for param in cli.commands[name].params}
    assert {option for names in SECTIONS.values() for option in names} - known == {"help"}

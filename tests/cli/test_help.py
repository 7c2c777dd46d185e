"""``--help``: every option once, in the section where it is looked for."""

from __future__ import annotations

import re
import shlex

import click
import pytest

from commonground.cli import cli, main
from commonground.cli.help import SECTIONS


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


@pytest.mark.parametrize("name", sorted(cli.commands))
def test_every_command_has_an_example_that_it_understands(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    assert "Example: commonground" in capsys.readouterr().out.replace('eval "$(', "")
    example = str(cli.commands[name].epilog).removeprefix("Example: ").partition("; ")[0]
    words = shlex.split(re.sub(r'^eval "\$\((.*)\)"$', r"\1", example))
    assert words[:2] == ["commonground", name]
    cli.commands[name].make_context(name, words[2:])  # options and values that there are


def test_no_section_names_an_option_that_is_gone() -> None:
    known = {str(param.name) for name in ("train", "compare") for param in cli.commands[name].params}
    assert {option for names in SECTIONS.values() for option in names} - known == {"help"}

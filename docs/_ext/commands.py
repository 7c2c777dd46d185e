"""The commands' own help, as Markdown."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping

import click
from marks import plain, table

from commonground.cli import cli
from commonground.cli.help import SECTIONS


def commands() -> str:
    """Every command, by name."""
    return "\n\n".join(command(name) for name in sorted(cli.commands))


def command_index() -> str:
    """Every command, and those below it, in a line each."""
    return table(("command", "what it does"), _lines("commonground", cli.commands))


def _lines(above: str, commands: Mapping[str, click.Command]) -> Iterator[tuple[str, str]]:
    for name, one in sorted(commands.items()):
        path = f"{above} {name}"
        yield f"[`{path}`](#{path.replace(' ', '-')})", plain(one.get_short_help_str(200))
        if isinstance(one, click.Group):
            yield from _lines(path, one.commands)


def command(name: str) -> str:
    """One command, and those below it."""
    return _told(cli.commands[name], f"commonground {name}", "##")


def _told(one: click.Command, path: str, level: str) -> str:
    context = click.Context(one, info_name=path)
    parts = [
        f"{level} {path}",
        f"```text\n{one.get_usage(context).removeprefix('Usage: ')}\n```",
        *_text(inspect.cleandoc(one.help or "")),
    ]
    if one.epilog:
        parts += ["```sh", one.epilog.removeprefix("Example: ").replace("; ", "\n"), "```"]
        parts[-3:] = ["\n".join(parts[-3:])]
    if isinstance(one, click.Group):
        below = [_told(each, f"{path} {name}", level + "#") for name, each in sorted(one.commands.items())]
        return "\n\n".join([*parts, *below])
    return "\n\n".join([*parts, *_options(one, context)])


def _text(text: str) -> list[str]:
    """Paragraphs; those that click leaves as they are (after a line \\b) are code."""
    found = []
    for part in re.split(r"\n\s*\n", text.strip()):
        if part.startswith("\b\n"):
            found.append("```text\n" + part.removeprefix("\b\n") + "\n```")
        else:
            found.append(_told_options(part))
    return found


def _told_options(text: str) -> str:
    """A text whose options are code: two dashes would become a long one."""
    return plain(re.sub(r"(?<![\w`-])--[a-z][\w-]*", lambda match: f"`{match[0]}`", text) if "`" not in text else text)


def _options(one: click.Command, context: click.Context) -> list[str]:
    asked = one.get_help_option(context)
    options = [each for each in one.get_params(context) if isinstance(each, click.Option) and each is not asked]
    records = {str(each.name): each.get_help_record(context) for each in options}
    known = {name for names in SECTIONS.values() for name in names}
    rest = tuple(name for name in records if name not in known)
    sections = {**SECTIONS, "": rest} if len(records) > 25 else {"": tuple(records)}
    found = []
    for title, names in sections.items():
        told = [record for name in names if (record := records.get(name)) is not None]
        if told:
            found += [f"**{title}**"] if title else []
            found.append("\n\n".join(f"`{flag}`\n: {_told_options(meaning) or '–'}" for flag, meaning in told))
    return found

"""The code blocks of a document, and a folder to run them in as a reader would."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from commonground.algorithms import registry
from commonground.cli import cli, main

ROOT = Path(__file__).parents[2]
RUN = ("python", "sh")
_BLOCK = re.compile(
    r"(?:^<!-- (not run|file|tested with): (.+?) -->\n+)?^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
_SHELL = re.compile(r"[|;&<>]|\$\(")


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        language: behind the fence.
        text: in it.
        reason: why it is not run; None if it is.
        file: the name under which a reader is told to save it, if that is what it is for.
        more: options that its commands get beside their own in a test, where the last one counts.
    """

    language: str
    text: str
    reason: str | None
    file: str | None
    more: str


def blocks(document: Path) -> list[Block]:
    """All of a document, in order.

    A comment before a block says what becomes of it: ``<!-- not run: REASON -->``; ``<!-- file: NAME -->``, it is
    saved; ``<!-- tested with: --rounds 5 -->``, its commands are run so, which is shorter.
    """
    return [
        Block(
            language,
            text,
            told if kind == "not run" else None,
            told if kind == "file" else None,
            told if kind == "tested with" else "",
        )
        for kind, told, language, text in _BLOCK.findall(document.read_text("utf-8"))
        if language in RUN or kind == "file"
    ]


def run(document: Path, folder: Path) -> str:
    """Run a document's blocks one after the other in a folder, which has to be the working one.

    Returns:
        What they printed.
    """
    space: dict[str, Any] = {"__name__": "builtins"}
    printed = io.StringIO()
    known = set(registry)
    try:
        with contextlib.redirect_stdout(printed):
            for block in blocks(document):
                if block.file is not None:
                    (folder / block.file).write_text(block.text, "utf-8")
                elif block.reason is not None:
                    check(block)
                elif block.language == "python":
                    exec(compile(block.text, str(document), "exec"), space)
                else:
                    for line in lines(block.text):
                        _run_line(line, block.more)
    finally:
        for name in set(registry) - known:  # methods that the document defines
            registry.pop(name)
    return printed.getvalue()


def lines(text: str) -> list[str]:
    """The commands of a shell block."""
    whole = text.replace("\\\n", " ").splitlines()
    return [line for line in whole if shlex.split(line, comments=True)]


def check(block: Block) -> None:
    """What is not run is read at least: Python compiles, and the command knows every option that is named."""
    if block.language == "python":
        compile(block.text, "a block that is not run", "exec")
        return
    for line in lines(block.text):
        words = shlex.split(line, comments=True)
        if words[0] != "commonground" or _SHELL.search(line):
            continue
        with cli.make_context("commonground", list(words[1:])) as context:
            _, command, rest = cli.resolve_command(context, [*context._protected_args, *context.args])
            assert command is not None
            while isinstance(command, click.Group):
                below = command.make_context(command.name, rest, parent=context)
                _, command, rest = command.resolve_command(below, [*below._protected_args, *below.args])
                assert command is not None
            command.make_context(command.name, rest, parent=context)


def _run_line(line: str, more: str) -> None:
    words = shlex.split(line, comments=True)
    if words[0] == "commonground" and not _SHELL.search(re.sub(r"'[^']*'|\"[^\"]*\"|#.*", "", line)):
        assert main([*words[1:], *shlex.split(more)]) == 0, line
    else:
        subprocess.run(["bash", "-euc", line], check=True, timeout=120)


def made(document: Path) -> set[str]:
    """The run folders and files that a document's commands, as they are run, leave in a reader's folder."""
    found: set[str] = set()
    for block in blocks(document):
        if block.file is not None:
            found.add(block.file)
        elif block.reason is None and block.language == "python":
            found |= set(re.findall(r"""\bout=["']([^"']+)["']""", block.text))
        elif block.reason is None:
            for words in (shlex.split(line, comments=True) for line in lines(block.text)):
                found |= {words[at + 1] for at, word in enumerate(words) if word == "--out"}
                if words[:2] == ["commonground", "example"]:
                    found.add(words[2])
    return found

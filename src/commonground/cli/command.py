"""The command: parses, calls, prints. A wrong command or input exits with 2, an interrupted run with 130."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import click
from click.shell_completion import shell_complete

from commonground.access import reason
from commonground.cli.adapt import adapt
from commonground.cli.compare import compare
from commonground.cli.completion import VARIABLE, completion
from commonground.cli.demo import demo
from commonground.cli.deploy import deploy
from commonground.cli.doctor import doctor
from commonground.cli.export import export
from commonground.cli.list import list_
from commonground.cli.predict import predict
from commonground.cli.reproduce import report, reproduce
from commonground.cli.serve import serve
from commonground.cli.tables import example, inspect
from commonground.cli.train import train
from commonground.errors import AggregateError, CommonGroundError, CommonGroundWarning, Interrupted
from commonground.quoting import visible
from commonground.stopping import stops_raise
from commonground.wording import naming_options

__all__ = ["cli", "main"]


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="commonground")
def cli() -> None:
    """Federated representation learning: many clients, one shared representation, a model for each."""


for command in (
    train, demo, list_, compare, adapt, predict, export, serve, deploy, reproduce, report, inspect, example, doctor,
    completion,
):  # fmt: skip
    cli.add_command(command)


_CONTINUED = {
    "train": "continue with --resume",
    "compare": "the same command continues",
    "reproduce": "the same command continues",
}


@naming_options()
def main(args: list[str] | None = None) -> int:
    """Run the command.

    Returns:
        0, or 2 for anything wrong with the command or its input, or 130 for an interrupted run; 1 for one whose server
        made something that is not finite of usable updates, and where ``doctor`` finds something broken.
    """
    given = list(sys.argv[1:] if args is None else args)
    if args is None and VARIABLE in os.environ:
        return shell_complete(cli, {}, "commonground", VARIABLE, os.environ[VARIABLE])
    if args is None:
        warnings.showwarning = partial(_warning, warnings.showwarning)
    try:
        # Not cli.main(), which prints an empty line of its own on Ctrl-C.
        with stops_raise(), cli.make_context("commonground", list(given)) as context:
            cli.invoke(context)
        return 0
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message())
        return 2
    except click.ClickException as error:
        print(f"commonground: {visible(_cut(error.format_message()))}", file=sys.stderr)
        return 2
    except CommonGroundError as error:
        print(f"commonground: {visible(' '.join(str(error).split()))}", file=sys.stderr)
        return 1 if isinstance(error, AggregateError) else 2
    except (KeyboardInterrupt, click.Abort) as stopped:
        told = stopped.goes_on if isinstance(stopped, Interrupted) else ""
        goes_on = told or _CONTINUED.get(next(iter(given), ""), "")
        print(f"commonground: interrupted{f'; {goes_on}' if goes_on else ''}", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output has gone (`commonground list data | head -1`).
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (MemoryError, RuntimeError) as error:
        if not _out_of_memory(error):
            raise
        print("commonground: this needs more memory than there is; take smaller sizes", file=sys.stderr)
        return 2
    except OSError as error:
        if error.filename is None and _output_is_full():
            print(f"commonground: standard output took no more: {error.strerror}", file=sys.stderr)
            return 2
        # A full disk, a folder that may not be written to, ….
        where = f"'{error.filename}': " if error.filename else ""
        why = reason(error, error.filename) if isinstance(error.filename, str) else error.strerror or error
        print(f"commonground: {visible(f'{where}{why}')}", file=sys.stderr)
        return 2


def _warning(usual: Callable[..., None], message: Warning | str, category: type[Warning], *more: Any) -> None:
    """Print ours as one line: which of our files said it is nothing to a user of the command."""
    if issubclass(category, CommonGroundWarning):
        print(f"commonground: warning: {visible(' '.join(str(message).split()))}", file=sys.stderr)
    else:
        usual(message, category, *more)


def _output_is_full() -> bool:
    """Whether standard output takes nothing more; what is left for it is dropped then, which Python would try again."""
    try:
        print(flush=True)  # what failed to be flushed is not tried again by flushing alone
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


def _cut(text: str) -> str:
    """A message in one line, without the thousands of characters that a value in it may have."""
    line = " ".join(text.split())
    return line if len(line) <= 1000 else f"{line[:1000]}…"


def _out_of_memory(error: Exception) -> bool:
    """Whether an allocation failed; PyTorch raises a RuntimeError that only its text tells apart."""
    return isinstance(error, MemoryError) or "you tried to allocate" in str(error)

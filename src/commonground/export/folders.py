"""Folders that are written whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from commonground.engine.trained import Trained
from commonground.errors import ConfigError, RunError
from commonground.existing import check_folder

__all__ = ["Exported", "Head", "check_free", "parts_of", "whole"]

Head = Literal["trained", "untrained", "frozen", "none"]
Made = TypeVar("Made")


@dataclass(frozen=True)
class Exported:
    """One folder.

    Attributes:
        folder: where it is.
        client: whose model, or None for the global one.
        head: what its task head is: ``trained``, ``untrained``, ``frozen`` (as the run drew and used it) or ``none``.
        bytes: of its weights.
    """

    folder: Path
    client: int | None
    head: Head
    bytes: int


def parts_of(trained: Trained, client: str | int | None) -> list[tuple[str, int | None]]:
    """The folders to be written below the target, and whose models they hold.

    Args:
        trained: what a run has trained.
        client: a name or number, ``all`` for every client, those that were added to the run among them (``'all'``, in
            quotes, for one of this name), or None for the global model.

    Raises:
        ConfigError: there is no such client, or ``all`` is the name of one.
    """
    if client == "all" and "all" in trained.known.names:
        raise ConfigError(
            f"'all' stands for every client, and is the name of one of {trained.where}; that one is meant by its name "
            "in quotes, --client \"'all'\", and every other one by its own"
        )
    if client == "'all'" and client not in trained.known.names:
        client = trained.known.number("all")
        return [("", client)]
    if client == "all":
        return [(f"client-{number}", number) for number in range(len(trained.known.names))]
    return [("", None if client is None else trained.known.number(client))]


def check_free(target: Path) -> None:
    """Refuse a folder that holds anything.

    Raises:
        RunError: it does, or it is a file.
    """
    check_folder(target)
    if target.is_dir() and any(target.iterdir()):
        raise RunError(f"the folder '{target}' is not empty; choose another --out")


def whole(target: Path, write: Callable[[Path], Made]) -> Made:
    """Fill a folder under a temporary name, then give it its own. Its files may be read as its folder may.

    Raises:
        RunError: it cannot be written.
    """
    target = Path(os.path.realpath(target))  # of a link the folder it leads to, and '.' has no name
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        part.mkdir()
    except OSError as error:
        raise RunError(f"the folder '{target}' cannot be written: {error.strerror}") from None
    try:
        done = write(part)
        for file in part.rglob("*"):
            if file.is_file():  # safetensors writes files that nobody else may read
                file.chmod(part.stat().st_mode & 0o666)
        if target == Path.cwd():  # whose place cannot be taken while somebody is in it
            for one in part.iterdir():
                os.replace(one, target / one.name)
        else:
            os.replace(part, target)  # an empty folder of this name gives way
        return done
    except OSError as error:
        raise RunError(f"the folder '{target}' cannot be written: {error.strerror or error}") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)

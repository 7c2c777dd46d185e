"""Objects of a user's own Python files, named as ``file.py:NAME``."""

from __future__ import annotations

import importlib.util
import traceback
from pathlib import Path
from typing import Any

from commonground.errors import CommonGroundError, ConfigError

__all__ = ["call_user_code", "is_code", "load_object", "where_it_failed"]


def is_code(text: str) -> bool:
    """Whether a setting names something in a Python file, which is run to get it."""
    return ":" in text and text.rpartition(":")[0].endswith(".py")


def load_object(text: str, what: str, kind: str) -> Any:
    """What a Python file, which is run, defines.

    Args:
        text: ``file.py:NAME``.
        what, kind: the setting that names it, and what it should be, for messages.

    Raises:
        ConfigError: the file or the name is missing, or the file fails (its line is named).
    """
    path, _, name = text.rpartition(":")
    file = Path(path)
    if not file.is_file():
        raise ConfigError(f"the {what} '{text}' names the file '{path}', which does not exist")
    spec = importlib.util.spec_from_file_location(f"commonground_user_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"the {what} '{text}' names '{path}', which is not a Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever a user's file raises is reported in one sentence, with its type
        raise ConfigError(f"the file '{path}' could not be loaded: {where_it_failed(error, file)}") from error
    try:
        return getattr(module, name)
    except AttributeError:
        raise ConfigError(f"the file '{path}' has no {kind} '{name}'") from None


def call_user_code(function: Any, text: str, **given: Any) -> Any:
    """What a function of a user's file returns.

    Raises:
        ConfigError: it fails; its file and line are named. Errors of this library are left as they are.
    """
    try:
        return function(**given)
    except CommonGroundError:
        raise
    except Exception as error:
        raise ConfigError(f"'{text}' failed: {where_it_failed(error, Path(text.rpartition(':')[0]))}") from error


def where_it_failed(error: Exception, file: Path) -> str:
    """An error in one line, with the last line of the file on its way."""
    if isinstance(error, SyntaxError):
        return f"SyntaxError in {error.filename}, line {error.lineno}: {error.msg}"
    frames = traceback.extract_tb(error.__traceback__)
    line = next((f.lineno for f in reversed(frames) if Path(f.filename).resolve() == file.resolve()), None)
    place = f" in {file}, line {line}" if line else ""
    return f"{type(error).__name__}{place}: {' '.join(str(error).split())}"

"""Objects of a user's own Python files, named as ``file.py:NAME``, and what is said when a user's code fails."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import os
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from commonground.errors import CommonGroundError, ConfigError, ModelError
from commonground.quoting import escaped

__all__ = [
    "call_user_code",
    "check_code",
    "check_takes",
    "digests_of",
    "failing_as",
    "is_code",
    "load_object",
    "untrusted",
    "what_failed",
    "where_it_failed",
]

RAISED = (Exception, SystemExit, GeneratorExit)
"""What a user's code may raise that is no wish of the user to stop."""

_TEXT = 300  # characters of an error's own text that are shown


def is_code(text: str) -> bool:
    """Whether a setting names something in a Python file, which is run to get it."""
    return ":" in text and text.rpartition(":")[0].endswith(".py")


def check_code(text: str, what: str, in_python: str) -> None:
    """Refuse a setting that names no function in a file.

    Args:
        text, what: the setting's value and name.
        in_python: how the function itself is given there.

    Raises:
        ConfigError: says how it is written.
    """
    if not is_code(text):
        raise ConfigError(
            f"the {what} '{text}' is no function in a file; write it as file.py:function, or give the function itself "
            f"in Python: train(…, {in_python})"
        )


def check_takes(function: Any, what: str, *arguments: str) -> None:
    """Refuse a user's function that cannot be called with these arguments, by position.

    Args:
        function: the user's; one that tells nothing of its parameters is taken as it is.
        what: it is, with its name, for the message.
        *arguments: what it would be called with.

    Raises:
        ConfigError: names its parameters and the arguments.
    """
    try:
        own = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        own.bind(*arguments)
    except TypeError:
        taken = own.replace(return_annotation=own.empty)
        raise ConfigError(f"{what} has the parameters {taken}, and is called with ({', '.join(arguments)})") from None


def digests_of(names: Iterable[str | None]) -> dict[str, str]:
    """The sha256 of each Python file that settings name, by its path as it is written there.

    Args:
        names: settings; those that name no file are passed over, several in one are separated by commas.
    """
    files = [one.strip().rpartition(":")[0] for name in names for one in (name or "").split(",") if is_code(one)]
    return {file: hashlib.sha256(Path(file).read_bytes()).hexdigest() for file in files if Path(file).is_file()}


def load_object(text: str, what: str, kind: str) -> Any:
    """What a Python file, which is run, defines. What the file draws while it is run is the same every time.

    Args:
        text: ``file.py:NAME``.
        what, kind: the setting that names it, and what it should be, for messages.

    Raises:
        ConfigError: the file or the name is missing, or the file fails or ends the program (its line is named).
    """
    from commonground.generators import keyed_generators  # which loads PyTorch; a name is told apart without

    path, _, name = text.rpartition(":")
    file = Path(path)
    if not file.is_file():
        raise ConfigError(f"the {what} '{text}' names the file '{path}', which does not exist")
    # Two files of one name are two modules; dataclasses look theirs up by its name.
    own = f"commonground_user_{file.stem}_{hashlib.sha256(str(file.resolve()).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(own, file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"the {what} '{text}' names '{path}', which is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[own] = module
    try:
        with keyed_generators(0, "file"):
            spec.loader.exec_module(module)
    except RAISED as error:  # whatever a user's file raises is one sentence, with its type
        sys.modules.pop(own, None)
        raise ConfigError(f"the file '{path}' could not be loaded: {where_it_failed(error, file)}") from error
    try:
        return getattr(module, name)
    except AttributeError:
        raise ConfigError(f"the file '{path}' has no {kind} '{name}'") from None


def untrusted(whose: str, what: str, text: str, otherwise: str) -> ConfigError:
    """Says that a Python file is not run that a folder names, which may be of somebody else.

    Args:
        whose: the folder's, for people.
        what, text: the setting's name and value.
        otherwise: what can be done in its place, as the end of a sentence.
    """
    return ConfigError(
        f"{whose} has the {what} '{text}', whose code would be run: if you trust that file, say so with --trust-code "
        f"(in Python: load_run(folder, trust_code=True)), or {otherwise}"
    )


def call_user_code(function: Any, text: str, **given: Any) -> Any:
    """What a function of a user's file returns.

    Raises:
        ConfigError: it fails; its file and line are named. Errors of this library are left as they are.
    """
    try:
        return function(**given)
    except CommonGroundError:
        raise
    except RAISED as error:
        raise ConfigError(f"'{text}' failed: {where_it_failed(error, Path(text.rpartition(':')[0]))}") from error


def where_it_failed(error: BaseException, file: Path) -> str:
    """An error in one line, with the last line of the file on its way."""
    if isinstance(error, SyntaxError):
        return f"SyntaxError in {error.filename}, line {error.lineno}: {error.msg}"
    frames = traceback.extract_tb(error.__traceback__)
    line = next((f.lineno for f in reversed(frames) if Path(f.filename).resolve() == file.resolve()), None)
    return _one_line(error, f" in {file}, line {line}" if line else "")


@contextmanager
def failing_as(what: str) -> Iterator[None]:
    """While open, what a user's code raises, or PyTorch on its behalf, becomes one sentence.

    Errors of this library stay as they are, and so does a lack of memory, which others handle.

    Args:
        what: the sentence's beginning.

    Raises:
        ModelError: says what failed, and where.
    """
    try:
        yield
    except CommonGroundError:
        raise
    except RAISED as error:
        said = None if _lacks_memory(error) else what_failed(error)
        if said is None:
            raise
        raise ModelError(f"{what}: {said}") from error


def what_failed(error: BaseException) -> str | None:
    """An error in one line, with the last line of a user's code on its way; None where none of it was on the way, and
    the error does not come from inside PyTorch either.
    """
    frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    ours, torch = _folder("commonground"), _folder("torch")
    python = sysconfig.get_path("stdlib") + os.sep
    installed = (sysconfig.get_path("purelib") + os.sep, sysconfig.get_path("platlib") + os.sep)
    others = [f for f in frames if not f[0].startswith((ours, torch, "<frozen"))]
    own = [f for f in others if not f[0].startswith((python, *installed))]
    own = own or [f for f in others if f[0].startswith(installed)]
    if own:
        file, line = own[-1]
        here = os.path.relpath(file)
        return _one_line(error, f" in {file if here.startswith('..') else here}, line {line}")
    return None if not frames or frames[-1][0].startswith(ours) else _one_line(error, "")


def _folder(package: str) -> str:
    file = getattr(sys.modules.get(package), "__file__", None)
    return str(Path(file).parent) + os.sep if file else os.sep * 2  # no file is in a folder of this name


def _one_line(error: BaseException, place: str) -> str:
    try:
        text = " ".join(str(error).split())
    except Exception:  # an exception of a user's own that cannot say what it is
        text = ""
    if "vmap" in text and (".item()" in text or "data-dependent" in text):  # which speaks to who writes torch.func
        text = (
            "clients are trained together here, where a value of one of them is no number that Python could read "
            "(.item(), float, if, NumPy); write it with PyTorch's operations, or take --engine serial"
        )
    name = "the program was ended by SystemExit" if isinstance(error, SystemExit) else type(error).__name__
    return f"{name}{place}{': ' if text else ''}{escaped(text, _TEXT)}"


def _lacks_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return type(error) is RuntimeError and "you tried to allocate" in str(error)

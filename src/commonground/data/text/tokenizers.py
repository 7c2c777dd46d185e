"""A model's own tokenizer, by the model's name or folder."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from commonground.errors import ConfigError
from commonground.extras import pip_install

__all__ = ["load_tokenizer", "threads", "tokenizer_name"]

_PREFIX = "hf:"
_THREADS = "TOKENIZERS_PARALLELISM"  # the environment variable that the tokenizers package reads at every call
_FILES = ("*token*", "*vocab*", "*.model")  # at least one of these belongs to every tokenizer
_PROCESS = os.getpid()
_ours = False  # whether that variable's value is ours and not the user's


def load_tokenizer(tokenizer: Any) -> Any:
    """A transformers tokenizer.

    Args:
        tokenizer: such an object, which is returned as it is; or a folder, or ``hf:`` and a folder or a name on the
            Hugging Face hub. A folder is read without the network.

    Raises:
        ConfigError: the extra is not installed, there is no such folder, or it holds no tokenizer.
    """
    if not isinstance(tokenizer, str | os.PathLike):
        if not callable(tokenizer):
            raise ConfigError(f"a {type(tokenizer).__name__} is no tokenizer; name one as hf:NAME or by its folder")
        return tokenizer
    text = os.fspath(tokenizer)
    name = text.removeprefix(_PREFIX)
    folder = Path(name).expanduser()
    example = "name one as hf:NAME_OR_FOLDER, such as hf:roberta-large"
    if not name:
        raise ConfigError(f"'{text}' names no tokenizer; {example}")
    if not folder.is_dir() and (name == text or folder.is_absolute() or name.startswith((".", "~"))):
        raise ConfigError(f"there is no folder '{folder}' with a tokenizer; {example}")
    if folder.is_dir() and not any(any(folder.glob(pattern)) for pattern in _FILES):
        raise ConfigError(f"the folder '{folder}' holds no tokenizer (tokenizer.json, or a vocabulary)")
    try:
        transformers: Any = importlib.import_module("transformers")
    except ImportError:
        raise ConfigError(f"the tokenizer '{name}' needs the extra: {pip_install('llm')}") from None
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    try:
        if folder.is_dir():
            loaded = transformers.AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        else:
            loaded = transformers.AutoTokenizer.from_pretrained(name)
    except Exception as error:  # transformers raises many kinds for a tokenizer it cannot load
        where = f"the folder '{folder}'" if folder.is_dir() else f"'{name}', which is no folder here"
        raise ConfigError(f"no tokenizer could be loaded from {where}: {_first_line(error)}") from None
    finally:
        transformers.logging.set_verbosity(before)
    return loaded


def tokenizer_name(tokenizer: Any) -> str:
    """What to call a tokenizer in a message."""
    return str(getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__)


@contextlib.contextmanager
def threads() -> Iterator[None]:
    """All cores while this process tokenises, and none of it in workers forked later: threads do not survive a fork."""
    global _ours
    _ours = _ours or _THREADS not in os.environ
    if not _ours:
        yield
        return
    os.environ[_THREADS] = "true" if os.getpid() == _PROCESS else "false"
    try:
        yield
    finally:
        os.environ[_THREADS] = "false"


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__).rstrip(".: ")

"""Why a file cannot be read or written, in words: whose it is, where that is the reason."""

from __future__ import annotations

import os
import stat
from pathlib import Path

__all__ = ["reason"]


def reason(error: Exception, path: str | Path) -> str:
    """Why an operation on a file failed.

    Args:
        error: what was raised; some libraries report a file that may not be read as missing.
        path: of the file.

    Returns:
        Whose file or folder it is that this user may not use, if that is why; else the error's own text.
    """
    text = getattr(error, "strerror", None) or str(error)
    if not isinstance(error, PermissionError | FileNotFoundError):
        return text
    try:
        return _refusal(Path(path).absolute()) or text
    except OSError:
        return text


def _refusal(path: Path) -> str:
    """The outermost part of a path that refuses this user, as a sentence; empty if none does."""
    for part in (*reversed(path.parents), path):
        folder = part.is_dir()
        if not part.exists():
            return "" if part != path or os.access(part.parent, os.W_OK) else _whose(part.parent, "write to")
        if not os.access(part, os.X_OK if folder else os.R_OK):
            return _whose(part, "open" if folder else "read")
    if not os.access(path.parent, os.W_OK):
        return _whose(path.parent, "write to")
    return ""


def _whose(path: Path, verb: str) -> str:
    found = path.stat()
    what, mode = "folder" if stat.S_ISDIR(found.st_mode) else "file", stat.filemode(found.st_mode)
    return (
        f"permission denied: the {what} '{path}' belongs to {_user(found.st_uid)} (mode {mode}), and "
        f"{_user(os.geteuid())} may not {verb} it"
    )


def _user(number: int) -> str:
    """A user's name, or number where it has none (containers, network file systems)."""
    try:
        import pwd

        return f"user '{pwd.getpwuid(number).pw_name}'"
    except (ImportError, KeyError):
        return f"user {number}"

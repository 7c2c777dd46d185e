"""How what is optional is installed, said the same way everywhere."""

from __future__ import annotations

__all__ = ["pip_install"]


def pip_install(extra: str) -> str:
    """The command that installs an extra: from a package index, or in a clone of the project."""
    return f"pip install 'commonground[{extra}]' (in a clone: pip install -e '.[{extra}]')"

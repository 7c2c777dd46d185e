"""What was run: the version, and the commit where it is run from a repository."""

from __future__ import annotations

import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path

__all__ = ["commit", "version"]


def version() -> str:
    """Of the package."""
    return metadata.version("commonground")


@cache
def commit() -> str:
    """The commit (12 digits, with a + where files differ from it); empty where the package is not in a repository."""
    here = Path(__file__).resolve().parents[1]
    try:
        if not _git(here, "ls-files", "--error-unmatch", "__init__.py"):
            return ""
        return _git(here, "rev-parse", "--short=12", "HEAD") + ("+" if _git(here, "status", "--porcelain", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return ""


def _git(where: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(where), *arguments], capture_output=True, text=True, timeout=20, check=True)
    return done.stdout.strip()

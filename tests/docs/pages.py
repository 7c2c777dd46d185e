"""Which documents there are: what a reader of the repository and of the site sees."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def documents() -> list[Path]:
    """Markdown files in which people write."""
    own = [path for path in DOCS.rglob("*.md") if "_build" not in path.parts]
    return sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *own])


def name_of(document: Path) -> str:
    """Its path in the repository."""
    return document.relative_to(ROOT).as_posix()

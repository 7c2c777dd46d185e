"""Links and anchors, of Markdown files as they lie in the repository and of the built site."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)


class _Page(HTMLParser):
    """What a page links to, and what in it can be linked to."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.anchors |= {value for name in ("id", "name") if (value := found.get(name))}
        target = found.get("href" if tag in ("a", "link") else "src")
        if target:
            self.links.append(target)


def broken_in_site(folder: Path) -> list[str]:
    """Links of built pages that lead nowhere in the site."""
    pages = {}
    for path in sorted(folder.rglob("*.html")):
        pages[path] = _Page()
        pages[path].feed(path.read_text("utf-8"))
    wrong = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchors = pages[target].anchors if target in pages else None
            if not target.is_file() or (
                parts.fragment and anchors is not None and unquote(parts.fragment) not in anchors
            ):
                wrong.append(f"{path.relative_to(folder)}: {link}")
    return wrong


def links_of(document: Path) -> list[str]:
    """The links of a Markdown file."""
    text = _FENCE.sub("", document.read_text("utf-8"))
    return [first or second for first, second in _LINK.findall(text)]


def broken_in_repository(document: Path) -> list[str]:
    """Relative links of a Markdown file that lead to no file or heading (generated pages have none yet)."""
    wrong = []
    for link in links_of(document):
        path, _, anchor = link.partition("#")
        if urlsplit(link).scheme:
            continue
        target = (document.parent / path).resolve() if path else document
        text = target.read_text("utf-8") if target.suffix == ".md" and target.is_file() else None
        known = text is None or "<!-- generated:" in text or not anchor or anchor in headings(text)
        if not target.exists() or not known:
            wrong.append(f"{document.name}: {link}")
    return wrong


def headings(text: str) -> set[str]:
    """The anchors that a Markdown file's headings have."""
    found = re.findall(r"^#+ (.+)$", _FENCE.sub(lambda m: m[0] if "\n" not in m[0] else "", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in found}

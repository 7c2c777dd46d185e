"""The check of links finds what is broken."""

from __future__ import annotations

from pathlib import Path

from tests.docs.links import broken_in_repository, broken_in_site


def test_broken_links_of_markdown_are_found(tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text("# One heading, `with` code\n")
    text = "[a](there.md) [b](there.md#one-heading-with-code) [c](https://example.org/x)\n```sh\n[d](nowhere)\n```\n"
    page = tmp_path / "page.md"
    page.write_text(text)
    assert broken_in_repository(page) == []
    page.write_text(text + "[e](gone.md) [f](there.md#another) ![g](gone.png)\n")
    assert broken_in_repository(page) == ["page.md: gone.md", "page.md: there.md#another", "page.md: gone.png"]


def test_broken_links_of_a_site_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<a href="b.html#here">x</a><a href="#top">y</a><h1 id="top">z</h1>')
    (tmp_path / "b.html").write_text('<h1 id="here">x</h1><a href="https://example.org">y</a>')
    assert broken_in_site(tmp_path) == []
    (tmp_path / "b.html").write_text('<h1 id="there">x</h1><img src="gone.png">')
    assert broken_in_site(tmp_path) == ["a.html: b.html#here", "b.html: gone.png"]

"""The documentation is built without a warning, and no link in it or in the repository's documents is broken."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from tests.docs.links import broken_in_repository, broken_in_site, links_of
from tests.docs.pages import DOCS, ROOT, documents, name_of

pytest.importorskip("sphinx")


def test_the_site_is_built_without_a_warning_and_its_links_lead_somewhere(tmp_path: Path) -> None:
    site = tmp_path / "html"
    command = [sys.executable, "-m", "sphinx", "-q", "-E", "-W", "--keep-going", "-b", "html", str(DOCS), str(site)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert not (wrong := broken_in_site(site)), "\n".join(wrong)
    fedrep = (site / "papers" / "fedrep.html").read_text("utf-8")
    assert "does not hold" in fedrep  # verdicts are read from results/
    assert "CIFAR-10 (100, 2)" in fedrep
    commands = (site / "reference" / "commands.html").read_text("utf-8")
    assert "--classes-per-client" in commands
    assert not list(site.rglob("*.md"))
    for page in site.rglob("*.html"):
        text = page.read_text("utf-8")
        assert not re.search(r"(?<!\w)–[a-z]", text), f"{page.name}: two dashes of an option became a long one"
        assert 'Type<span class="colon">' not in text, f"{page.name}: a sentence is printed as a property's type"


def test_what_is_generated_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    import commonground
    from commonground.algorithms import registry, yardsticks
    from commonground.cli import cli

    monkeypatch.syspath_prepend(str(DOCS / "_ext"))
    commands, listed, napoleon = (import_module(name) for name in ("commands", "listed", "sphinx.ext.napoleon"))
    named = " ".join(listed.TOPICS.values()).split()
    assert sorted(named) == sorted(commonground.__all__)
    reference = listed.api("commonground")
    places = [reference.index(f":: commonground.{name}\n") for name in named if name != "Tensors"]  # which is no class
    assert places == sorted(places)
    assert set(re.findall(r"^\| \[([\w-]+)\]", listed.method_table(), re.MULTILINE)) == {*registry, *yardsticks}
    assert set(re.findall(r"`commonground ([\w-]+)`", commands.command_index())) == set(cli.commands)
    lines = ["Few rows: what became of them (``--few-rows``)."]
    listed.readable(None, "property", "few_rows", None, None, lines)
    told = str(napoleon.GoogleDocstring(lines, napoleon.Config(), None, "property", "few_rows"))
    assert ":type:" not in told
    assert "Few rows: what became of them" in told


@pytest.mark.parametrize("document", [*documents(), ROOT / "llms.txt", ROOT / "CHANGELOG.md"], ids=name_of)
def test_links_of_the_repositorys_documents_lead_somewhere(document: Path) -> None:
    assert not broken_in_repository(document)
    assert all(link.startswith("https://") for link in links_of(document) if "://" in link)

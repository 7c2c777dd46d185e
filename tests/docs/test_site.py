"""The documentation is built without a warning, and no link in it or in the repository's documents is broken."""

from __future__ import annotations

import subprocess
import sys
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


@pytest.mark.parametrize("document", [*documents(), ROOT / "llms.txt", ROOT / "CHANGELOG.md"], ids=name_of)
def test_links_of_the_repositorys_documents_lead_somewhere(document: Path) -> None:
    assert not broken_in_repository(document)
    assert all(link.startswith("https://") for link in links_of(document) if "://" in link)

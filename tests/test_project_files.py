"""The files around the code: what they name is there, and what they say of the project is true."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
TEXTS = ["CITATION.cff", "CODE_OF_CONDUCT.md", "SECURITY.md", "RELEASING.md", ".github/pull_request_template.md"]


def _read(path: Path) -> Any:
    return pytest.importorskip("yaml").safe_load(path.read_text("utf-8"))


def test_the_citation_has_what_its_schema_asks_for() -> None:
    cited = _read(ROOT / "CITATION.cff")
    assert {"cff-version", "message", "title", "authors"} <= set(cited)
    assert (cited["cff-version"], cited["type"]) == ("1.2.0", "software")
    assert cited["version"] == PROJECT["version"]
    assert cited["license"] == PROJECT["license"]
    assert cited["authors"] == PROJECT["authors"] == [{"name": "The CommonGround authors"}]
    assert [paper["notes"].split(",")[0] for paper in cited["references"]] == [
        "FedRep", "FLUTE", "Local SGD with feature noise", "RoLoRA",
    ]  # fmt: skip
    sources = " ".join((ROOT / "src/commonground/papers/printed/SOURCES.md").read_text("utf-8").split())
    for paper in cited["references"]:
        assert paper["type"] in ("conference-paper", "article")
        assert paper["title"] in sources
        names = ", ".join(author["family-names"] for author in paper["authors"])
        assert f'{names}, "{paper["title"]}"' in sources
        assert str(paper["year"]) in sources


@pytest.mark.parametrize("form", FORMS, ids=lambda form: str(form.stem))
def test_an_issue_form_can_be_shown(form: Path) -> None:
    """By the rules of the service that shows it: names, labels, ids that differ, known kinds of fields."""
    told = _read(form)
    assert set(told) <= {"name", "description", "title", "labels", "assignees", "body"}
    assert told["name"]
    assert told["description"]
    ids = [field["id"] for field in told["body"]]
    assert len(ids) == len(set(ids)) > 0
    for field in told["body"]:
        assert field["type"] in ("textarea", "input", "dropdown", "checkboxes")
        assert field["attributes"]["label"]
        assert ("options" in field["attributes"]) is (field["type"] in ("dropdown", "checkboxes"))
        assert set(field) <= {"type", "id", "attributes", "validations"}


@pytest.mark.parametrize("name", [*TEXTS, *(str(form.relative_to(ROOT)) for form in FORMS)])
def test_nobody_and_nothing_is_made_up(name: str) -> None:
    """No addresses; links lead to files that are there, or to the pages of standards."""
    text = (ROOT / name).read_text("utf-8")
    assert not re.search(r"[\w.]+@[\w-]+\.\w+", text)
    for link in re.findall(r"\]\(([^)]+)\)", text):
        assert link == "https://semver.org" or (ROOT / link).is_file()


def test_make_targets_and_files_that_are_named_are_there() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    for name in (*TEXTS, "CONTRIBUTING.md"):
        text = (ROOT / name).read_text("utf-8")
        for words in re.findall(r"`make ([a-z -]+)[`=]", text):
            assert set(words.split()) <= targets, name
        for path in re.findall(r"`((?:tests|docs|src|\.ci|examples)/[\w./-]+)`", text):
            assert (ROOT / path).exists() or path.startswith("docs/_build"), (name, path)

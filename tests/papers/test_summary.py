"""All results on one page: every claim with its verdict, what the paper's scale withdraws, and cells that are off."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from commonground.cli import main
from commonground.errors import RunError
from commonground.papers.experiment import Experiment, experiments
from commonground.papers.other_seeds import FILE, write_other_seeds
from commonground.papers.request import Request
from commonground.papers.summary import beside_print, gather, write_summary
from commonground.papers.tables.judge import run_table
from commonground.papers.tables.table import PaperColumn, PaperTable, Row
from commonground.papers.writing import about, write_outcome
from commonground.report.format import show_with_interval


def claim(text: str, holds: bool | None, seeds: int = 3) -> dict[str, Any]:
    return {
        "claim": text, "source": "a paper, Table 1", "paper": 3.0, "measured": 2.0, "low": 1.0, "high": 3.0,
        "seeds": seeds, "holds": holds,
    }  # fmt: skip


def leave(folder: Path, scale: str, *claims: dict[str, Any]) -> None:
    folder.mkdir(parents=True)
    (folder / "reproduction.json").write_text(
        json.dumps(
            {"experiment": "one", "source": "a paper", "scale": scale, "claims": claims, "cells": [], "minutes": 1.5}
        )
    )


def test_the_papers_scale_withdraws_what_the_small_one_said(tmp_path: Path) -> None:
    leave(tmp_path / "small", "small", claim("A above B", False), claim("A above C", True), claim("A above D", True))
    leave(tmp_path / "paper", "paper", claim("A above B", True), claim("A above C", True), claim("A above D", None))
    found = {(v.claim, v.scale): v.status for v in gather(tmp_path).verdicts}
    assert found == {
        ("A above B", "small"): "withdrawn",
        ("A above B", "paper"): "yes",
        ("A above C", "small"): "yes",
        ("A above C", "paper"): "yes",
        ("A above D", "small"): "yes",  # the paper's scale has not decided it
        ("A above D", "paper"): "open",
    }
    write_summary(tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert "6 claims: 4 hold, 0 do not, 1 are open, 1 are withdrawn." in text
    assert (
        "| A above B | other than at the paper's scale (2.0, 3 seeds) | holds (2.0, 3 seeds) | a paper, Table 1 |"
        in text
    )


def test_a_claim_about_all_seeds_is_the_same_on_more_of_them(tmp_path: Path) -> None:
    leave(tmp_path / "small", "small", claim("A never fails: not contradicted in 40 seeds", True, 40))
    leave(tmp_path / "paper", "paper", claim("A never fails: contradicted in 1 of 100 seeds", False, 100))
    assert {(v.scale, v.status) for v in gather(tmp_path).verdicts} == {("small", "withdrawn"), ("paper", "no")}
    write_summary(tmp_path)
    assert "| A never fails | other than at the paper's scale (2.0, 40 seeds) |" in (tmp_path / "README.md").read_text()


def test_a_run_of_other_settings_withdraws_nothing(tmp_path: Path) -> None:
    leave(tmp_path / "small", "small", claim("A above B", True))
    leave(tmp_path / "paper", "paper", claim("A above B", False))
    file = tmp_path / "paper" / "reproduction.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"set": ["step=0.002"]}))
    assert {(v.scale, v.status) for v in gather(tmp_path).verdicts} == {("small", "yes"), ("paper", "no")}
    write_summary(tmp_path)
    assert "Verdicts at both scales" not in (tmp_path / "README.md").read_text()


def test_what_only_reads_carries_out_no_experiment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    leave(tmp_path / "x", "small", claim("yes", True))
    for option in ("--status", "--summary", "--other-seeds"):
        assert main(["reproduce", "fedrep-fig3", option, str(tmp_path), "--out", str(tmp_path / "x")]) == 2
        assert f"{option} measures nothing, it works with what is there" in capsys.readouterr().err


def test_a_text_that_people_have_written_is_not_written_over(tmp_path: Path) -> None:
    leave(tmp_path / "x", "small", claim("yes", True))
    write_summary(tmp_path)
    write_summary(tmp_path)  # its own it takes the place of
    (tmp_path / "README.md").write_text("my own notes\n")
    with pytest.raises(RunError, match=r"README.md' is not one that --summary has written; move it"):
        write_summary(tmp_path)
    assert (tmp_path / "README.md").read_text() == "my own notes\n"


def test_what_does_not_hold_comes_first_and_one_seed_decides_nothing(tmp_path: Path) -> None:
    leave(tmp_path / "x", "small", claim("yes", True), claim("one seed", True, 1), claim("no|pipe", False))
    results = gather(tmp_path)
    assert [(v.claim, v.status) for v in results.verdicts] == [("no|pipe", "no"), ("one seed", "open"), ("yes", "yes")]
    page, readme = write_summary(tmp_path)
    text = readme.read_text()
    assert text.index("## What does not hold") < text.index("## Open") < text.index("## What holds")
    assert "no\\|pipe" in text
    assert "| one seed | 3.0 | 2.00 | one seed | 1 |" in text
    assert '<a href="x/">x</a>' in page.read_text()
    assert '<td class="n" data-value="2.0">2.00</td>' in page.read_text()  # the page sorts by the number behind it
    assert page.name == "summary.html"


def test_what_other_seeds_judge_otherwise_is_open(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, first in (("results/x", 0), ("one", 1000), ("two", 2000), ("other", 3000)):
        wavers = claim("wavers", {0: True, 1000: True, 2000: None, 3000: True}[first])
        leave(tmp_path / name, "small" if name != "other" else "paper", claim("stays", False), wavers)
        file = tmp_path / name / "reproduction.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"seed": first, "seeds": None, "set": []}))
    folder = str(tmp_path / "results" / "x")
    others = ["--other-seeds", str(tmp_path / "one"), "--other-seeds", str(tmp_path / "two")]
    assert main(["reproduce", "--out", folder, *others]) == 0
    assert "changes: wavers\n1 verdict changes over 3 first seeds" in capsys.readouterr().out
    found = {v.claim: v.status for v in gather(tmp_path / "results").verdicts}
    assert found == {"stays": "no", "wavers [holds from 0 and 1000, open from 2000]": "open"}
    assert main(["reproduce", "--out", folder, "--other-seeds", str(tmp_path / "other")]) == 2
    assert "has scale 'paper' and" in capsys.readouterr().err
    assert main(["reproduce", "--out", folder, "--other-seeds", folder]) == 2
    assert "begins at seed 0, as another folder does" in capsys.readouterr().err
    leave(tmp_path / "near", "small", claim("stays", False, seeds=40))
    for first, words in ((961, "has the seeds 961 to 1000 and shares some with 1000 to "), (1003, "")):
        file = tmp_path / "near" / "reproduction.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"seed": first, "seeds": None, "set": []}))
        assert main(["reproduce", "--out", folder, *others, "--other-seeds", str(tmp_path / "near")]) == 2 * bool(words)
        assert words in capsys.readouterr().err


def test_a_claim_that_tells_a_measured_number_is_the_same_from_every_seed(tmp_path: Path) -> None:
    texts = {
        0: ("gone after 12 rounds, k = 2", "gone after 40 rounds, k = 4", "all: contradicted in 3 of 9 seeds"),
        7: ("gone after 15 rounds, k = 2", "gone after 39 rounds, k = 4", "all: not contradicted in 9 seeds"),
    }
    for seed, (one, other, every) in texts.items():
        leave(tmp_path / str(seed), "small", claim(one, True), claim(other, seed == 0), claim(every, seed == 7))
        file = tmp_path / str(seed) / "reproduction.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"seed": seed, "seeds": None, "set": []}))
    assert write_other_seeds(tmp_path / "0", [tmp_path / "7"]) == [texts[0][1], texts[0][2]]
    assert (tmp_path / "0" / FILE).read_text().splitlines()[1:] == [
        '"gone after 12 rounds, k = 2",holds,holds',
        '"gone after 40 rounds, k = 4",holds,does not hold',
        "all: contradicted in 3 of 9 seeds,does not hold,holds",
    ]


def test_remarks_are_carried_along(tmp_path: Path) -> None:
    leave(tmp_path / "x", "small", claim("yes", True))
    (tmp_path / "NOTES.md").write_text("Above all.\n")
    (tmp_path / "x" / "NOTES.md").write_text("It was windy.\n")
    write_summary(tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert text.index("Above all.") < text.index("## What holds") < text.index("### a paper\n\nIt was windy.")


def test_cells_and_their_differences(tmp_path: Path) -> None:
    settings = {"clients": 4, "classes_per_client": 2, "rounds": 1, "local_epochs": 1, "eval_last": 10}
    column = PaperColumn("digits (4, 2)", ("cifar10", "100", "2"), "digits", settings)
    rows = (Row("FedRep", "fedrep"), Row("FedAvg", "fedavg"))
    table = PaperTable("s-table", "fedrep-table1", "a paper, Table 1", rows, (column,), ("FedRep",), seeds=3)
    experiment = Experiment("s-table", "title", table.source, lambda asked: run_table(table, asked), table=table)
    folder = tmp_path / "results" / "paper" / "s-table"
    try:
        for variants in ((), ("no-momentum",)):
            request = Request(folder, "paper", seeds=3, quiet=True, variants=variants)
            write_outcome(experiment.run(request), experiment, about(request, experiment, 1.0), folder)
        write_summary(tmp_path / "results")
        text = (tmp_path / "results" / "README.md").read_text()
        (_,) = beside_print(gather(tmp_path / "results"))
        told = folder / "reproduction.json"
        told.write_text(json.dumps(json.loads(told.read_text()) | {"set": ["lr=0.3"]}))
        assert not [*beside_print(gather(tmp_path / "results"))]  # what was set otherwise is not what was printed
    finally:
        del experiments["s-table"]
    cell = json.loads((folder / "reproduction.json").read_text())["cells"][0]
    measured, low, high = show_with_interval(cell["measured"], cell["low"], cell["high"])
    off = round(cell["measured"] - 87.7, 2)
    alike = f"{off:.{len(measured.partition('.')[2])}f}"  # as many decimals as what it is the difference of
    head = f"| a paper, Table 1 | digits (4, 2) | FedRep | 87.7 | {measured} | {low} to {high} | {alike} |"
    assert f"{head} 3 | paper | [s-table](paper/s-table/) |" in text
    beside = "| method | digits (4, 2) printed | digits (4, 2) ours |\n|---|---:|---:|\n"
    assert (
        f"## a paper, Table 1, as printed and as measured\n\n{beside}| FedRep | 87.7 | {cell['measured']:.1f} |" in text
    )
    differences = (tmp_path / "results" / "paper" / "DIFFERENCES.md").read_text()
    assert f"| digits (4, 2) | FedRep | 87.7 | {off} | below |" in differences
    assert "| plain SGD |" in differences


def test_what_was_set_otherwise_is_said_beside_the_scale(tmp_path: Path) -> None:
    leave(tmp_path / "results" / "x", "paper", claim("yes", True))
    file = tmp_path / "results" / "x" / "reproduction.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"set": ["lr=0.3", "rounds=3"]}))
    write_summary(tmp_path / "results")
    text = (tmp_path / "results" / "README.md").read_text()
    assert text.count("| paper, with lr=0.3, rounds=3 |") == 2  # of the claim and of the experiment


def test_nothing_there_and_damage_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "--summary", str(tmp_path)]) == 2
    assert "holds no results" in capsys.readouterr().err
    leave(tmp_path / "x", "small", {"claim": "without figures"})
    with pytest.raises(RunError, match=r"x/reproduction.json' is damaged: a claim lacks its figures"):
        gather(tmp_path)


def test_the_committed_page_is_the_generated_one(tmp_path: Path) -> None:
    """results/README.md is written by `commonground reproduce --summary results`, after every change below it."""
    committed = Path(__file__).parents[2] / "results"
    results = tmp_path / "results"
    for path in [*committed.rglob("*.json"), *committed.rglob("*.csv"), *committed.rglob("NOTES.md")]:
        copy = results / path.relative_to(committed)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    write_summary(results)
    for page in [path for path in results.rglob("*.md") if path.name in ("README.md", "DIFFERENCES.md")]:
        assert page.read_text("utf-8") == (committed / page.relative_to(results)).read_text("utf-8")


def test_what_a_paper_prints_is_told_as_it_is_printed(tmp_path: Path) -> None:
    three = [claim(f"claim {value}", False) | {"paper": value, "measured": value} for value in (2.62, 87.713, 1.8)]
    leave(tmp_path / "x", "small", *three)
    page = write_summary(tmp_path)[0].read_text()
    for text in ("2.62", "87.71", "1.8"):
        assert f">{text}</td>" in page
    assert ">1.800<" not in page

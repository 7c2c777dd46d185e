"""RoLoRA's experiments with language models: the tiny path, files of the user's own, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from commonground.cli import main
from commonground.data.text.prompts import alpaca_prompt
from commonground.papers.rolora.language import tiny_llama
from commonground.papers.rolora.mmlu import KINDS, Question, kind_of, prompt_of, read_questions
from commonground.papers.rolora.table2 import FOLDERS, made_up_questions

pytest.importorskip("transformers")

TINY = ["rounds=2", "steps=2", "rates=[0.1]", "engine=batched", "workers=1"]


def reproduce(name: str, out: Path, *settings: str, seeds: int = 1) -> dict[str, Any]:
    chosen = [part for value in [*TINY, *settings] for part in ("--set", value)]
    assert main(["reproduce", name, *chosen, "--seeds", str(seeds), "--quiet", "--out", str(out)]) == 0
    whole: dict[str, Any] = json.loads((out / "reproduction.json").read_text())
    return whole


def test_the_small_scale_of_table_2_judges_nothing(tmp_path: Path) -> None:
    whole = reproduce("rolora-table2", tmp_path, "methods=['rolora']", "tasks=['BoolQ','OBQA']")
    assert whole["claims"] == []
    assert [c["paper"] for c in whole["cells"]] == [None, None]
    assert whole["notes"][0].startswith("A trial of the path, not of the paper")
    answers = next((tmp_path / "runs").rglob("*-answers.json"))
    assert set(json.loads(answers.read_text())["scores"]) == {"BoolQ", "OBQA"}
    stamp = answers.stat().st_mtime_ns
    reproduce("rolora-table2", tmp_path, "methods=['rolora']", "tasks=['BoolQ','OBQA']")
    assert answers.stat().st_mtime_ns == stamp  # the model is not asked again


def test_table_2_with_files_of_the_users_own(tmp_path: Path) -> None:
    train, tests = made_up_questions(8, "train"), made_up_questions(2, "test")
    tasks = ("PIQA", "ARC-e")
    rows = [row for task in tasks for row in train[task]]
    texts = [alpaca_prompt(row["instruction"]) + " " + row["output"] for row in rows]
    model = tiny_llama(tmp_path / "model", texts, 64)
    (tmp_path / "train.json").write_text(json.dumps(rows))
    for task in tasks:
        folder = tmp_path / "tests" / FOLDERS[task][1]
        folder.mkdir(parents=True)
        (folder / "test.json").write_text(json.dumps(tests[task]))
    files = [f"model={model}", f"train={tmp_path / 'train.json'}", f"tests={tmp_path / 'tests'}"]
    settings = ["tasks=['PIQA','ARC-e']", "methods=['lora','rolora']", "ranks=[8]", "clients=2"]
    whole = reproduce("rolora-table2", tmp_path / "out", *files, *settings)
    by = {(c["column"], c["method"]): c["paper"] for c in whole["cells"]}
    assert by["PIQA, rank 8", "RoLoRA"] == 61.26
    claim = next(c for c in whole["claims"] if c["claim"].startswith("RoLoRA above LoRA on ARC-e"))
    assert claim["paper"] == pytest.approx(33.19 - 27.36)
    assert claim["holds"] is None  # one seed


def test_a_model_that_learns_answers_is_read_as_the_format_asks(tmp_path: Path) -> None:
    # The made-up questions can be learnt by heart, so the path from training to a written answer has to work. All is
    # learnt at every rate from 0.05 to 0.3; at 0.5 training is thrown off or not, as the processor happens to round.
    settings = ["methods=['lora']", "tasks=['BoolQ']", "clients=1", "rounds=10", "steps=10", "batch_size=8"]
    settings += ["target_modules='q_proj,v_proj,o_proj,up_proj,down_proj,gate_proj'", "ranks=[16]", "rates=[0.15]"]
    whole = reproduce("rolora-table2", tmp_path, *settings)
    assert whole["cells"][0]["measured"] == 100.0


@pytest.mark.parametrize("execute", [False, True])
def test_the_small_scale_of_table_12(execute: bool, tmp_path: Path) -> None:
    whole = reproduce("rolora-table12", tmp_path, "methods=['ffa-lora']", f"execute={str(execute).lower()}")
    columns = {c["column"] for c in whole["cells"]}
    assert columns == {"MMLU", *(f"MMLU-{kind}" for kind in KINDS)} | ({"HumanEval"} if execute else set())
    assert whole["claims"] == []
    assert any("not run" in note for note in whole["notes"]) is not execute


@pytest.mark.parametrize(
    ("name", "settings", "says"),
    [
        ("rolora-table2", ["--scale", "paper"], "the training file is not given; name it with --set train="),
        ("rolora-table2", ["--set", "train=/nowhere.json"], "'/nowhere.json' does not exist"),
        ("rolora-table2", ["--set", "tasks=['COPA']"], "unknown task 'COPA'"),
        ("rolora-table2", ["--set", "new_tokens=64"], "new_tokens is 64"),
        ("rolora-table12", ["--scale", "paper"], "CodeAlpaca's file is not given"),
        ("rolora-table12", ["--set", "benchmarks=['GSM8K']"], "benchmarks is ['GSM8K']"),
    ],
)
def test_refusals(
    name: str, settings: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", name, *settings, "--quiet", "--out", str(tmp_path / "out")]) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_mmlu(tmp_path: Path) -> None:
    folder = tmp_path / "test"
    folder.mkdir()
    (folder / "astronomy_test.csv").write_text('"Which, then?",a,b,c,d,C\n')
    questions = read_questions(tmp_path, "test")
    question = questions["astronomy"][0]
    assert question == Question("astronomy", "Which, then?", ("a", "b", "c", "d"), "C")
    prompt = prompt_of(question, questions, shots=1)
    assert prompt == (
        "The following are multiple choice questions (with answers) about astronomy.\n\n"
        "Which, then?\nA. a\nB. b\nC. c\nD. d\nAnswer: C\n\n"
        "Which, then?\nA. a\nB. b\nC. c\nD. d\nAnswer:"
    )
    assert [kind_of(s) for s in ("anatomy", "philosophy", "sociology", "marketing")] == [
        "stem",
        *KINDS[:1],
        "social",
        "other",
    ]

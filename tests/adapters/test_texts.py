"""The commands for texts: train, adapt, predict, export, on tiny models with a tokenizer of their own."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import commonground as cg
from commonground.cli import main
from commonground.data.text import TextSamples
from commonground.engine import load_run
from commonground.errors import ConfigError, DataError, RunError
from commonground.prediction.texts import answer, classify, read_texts
from tests.adapters.conftest import SET, read_table
from tests.language import WORDS
from tests.text_files import some_words

pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")


def test_every_kind_of_file_holds_the_same_texts(place: Path, tmp_path: Path) -> None:
    pairs = [("w1 w2", "w30"), ("w22", "w3 w4 w5")]
    (tmp_path / "a.tsv").write_text("sentence1\tsentence2\n" + "".join(f"{a}\t{b}\n" for a, b in pairs))
    (tmp_path / "a.csv").write_text("id,sentence2,sentence1\n" + "".join(f'7,"{b}",{a}\n' for a, b in pairs))
    rows = [json.dumps({"sentence1": a, "sentence2": b, "more": 1}) for a, b in pairs]
    (tmp_path / "a.jsonl").write_text("\n".join(rows) + "\n")
    run = load_run(place / "pairs")
    found = [classify(run, read_texts(tmp_path / f"a.{kind}"), 2) for kind in ("tsv", "csv", "jsonl")]
    assert found[0].shape == (2, 2)
    np.testing.assert_allclose(found[0].sum(1), 1)
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])
    (tmp_path / "b.csv").write_text("sentence1;sentence2\n" + "".join(f"{a};{b}\n" for a, b in pairs), "utf-16")
    again = classify(run, read_texts(tmp_path / "b.csv", separator="semicolon", encoding="utf-16"), 2)
    assert np.array_equal(found[0], again)
    (tmp_path / "c.csv").write_text("sentence1,sentence2\nw1,снег\n", "koi8-r")
    assert read_texts(tmp_path / "c.csv", encoding="koi8-r").second == ["снег"] != read_texts(tmp_path / "c.csv").second
    other = classify(run, read_texts(tmp_path / "a.tsv"), 1)
    assert not np.allclose(found[0], other), "every client has a head of its own"
    (tmp_path / "a.txt").write_text("w1 w2\nw22\n")
    with pytest.raises(ConfigError, match=r"--separator says nothing of .*a.txt': it is for tables in text files"):
        read_texts(tmp_path / "a.txt", separator=";")
    single = read_texts(tmp_path / "a.txt")
    assert (list(single.first), single.second) == (["w1 w2", "w22"], None)


def test_predict_gives_what_the_run_was_tested_with(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", str(place / "pairs"), "--client", "0", "--input", str(place / "pairs.tsv")]) == 0
    header, *rows = read_table(capsys.readouterr().out)
    assert header == ["sample", "class", "probability"]
    assert len(rows) == 120
    assert {row[1] for row in rows} <= {"low", "high"}
    assert all(0.5 <= float(row[2]) <= 1 for row in rows)


def test_a_table_of_new_clients_is_read_as_the_run_s_was(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Clients by the same column, test rows by the same time."""
    rng = np.random.default_rng(2)

    def table(name: str, sites: str, header: str = "text\tlabel\tsite\twhen") -> str:
        rows = [f"{some_words(rng, 20 * (i % 2), 20 * (i % 2) + 20)}\t{'ab'[i % 2]}\t{site}\t{i}"
                for site in sites for i in range(16)]  # fmt: skip
        (tmp_path / name).write_text("\n".join([header, *rows]) + "\n")
        return str(tmp_path / name)

    run = str(tmp_path / "run")
    given = ["--client-column", "site", "--time-column", "when", "--model", f"hf:{place / 'bert'}", "--rounds", "1"]
    assert main(["train", "rolora", "--data", table("old.tsv", "uvw"), *given, *SET, "--quiet", "--out", run]) == 0
    few = ["--shots", "4", "--epochs", "1", "--repeats", "1"]
    assert main(["adapt", run, "--data", table("new.tsv", "xyz"), *few, "--out", str(tmp_path / "a")]) == 0
    about = json.loads((tmp_path / "a" / "adapt.json").read_text())
    assert (about["clients"], about["left_out"]) == (3, [])
    capsys.readouterr()
    # A class that only the newcomers' test rows have is one the run knows.
    late = "".join(f"w{i}\t{'ab'[i > 12]}\tx\t{i}\n" for i in range(16))
    (tmp_path / "late.tsv").write_text("text\tlabel\tsite\twhen\n" + late)
    assert main(["adapt", run, "--data", str(tmp_path / "late.tsv"), *few, "--out", str(tmp_path / "d")]) == 0
    assert "no training row has" not in capsys.readouterr().err
    other = table("other.tsv", "xy", "text\tlabel\tsite\tday")
    assert main(["adapt", run, "--data", other, *few, "--out", str(tmp_path / "b")]) == 0
    assert "no column 'when', which says the run's test rows; here 25% at random are" in capsys.readouterr().err
    assert main(["adapt", run, "--data", other, "--partition", "iid", "--clients", "5", *few, "--quiet", "--out",
                 str(tmp_path / "c")]) == 0  # fmt: skip
    assert json.loads((tmp_path / "c" / "adapt.json").read_text())["clients"] == 5


def test_a_run_made_in_python_tells_adapt_its_columns(place: Path, tmp_path: Path) -> None:
    """Its settings name neither the labels' column nor the clients'; its split does."""
    from commonground import load_data, train

    rng = np.random.default_rng(3)

    def table(name: str, sites: str) -> str:
        rows = [f"{some_words(rng, 20 * (i % 2), 20 * (i % 2) + 20)}\t{'ab'[i % 2]}\t{site}"
                for site in sites for i in range(16)]  # fmt: skip
        (tmp_path / name).write_text("\n".join(["body\tmark\tsite", *rows]) + "\n")
        return str(tmp_path / name)

    model = f"hf:{place / 'bert'}"
    columns: dict[str, Any] = {"client_column": "site", "target": "mark", "text_column": "body"}
    data = load_data(table("old.tsv", "uvw"), tokenizer=model, max_length=16, **columns)
    train("rolora", data, model=model, rounds=1, out=tmp_path / "run")
    asked = ["--data", table("new.tsv", "xyzx"), "--shots", "4", "--epochs", "1", "--repeats", "1", "--quiet"]
    assert main(["adapt", str(tmp_path / "run"), *asked]) == 0
    about = json.loads((tmp_path / "run" / "adapt.json").read_text())
    assert (about["clients"], about["left_out"]) == (3, [])
    # Texts are cut where those of training were: to 16 tokens, two of which mark beginning and end.
    words = WORDS[:30]
    texts = [TextSamples([" ".join(words[:count])], None, np.zeros(1, np.int64)) for count in (30, 14, 13)]
    whole, cut, shorter = (classify(load_run(tmp_path / "run"), text, 0) for text in texts)
    assert np.array_equal(whole, cut)
    assert not np.array_equal(cut, shorter)


@pytest.mark.parametrize("algorithm", ["rolora", "flora", "fedavg"])
def test_adapt_fits_heads_for_new_clients_of_texts(algorithm: str, place: Path, tmp_path: Path) -> None:
    run = place / "pairs"
    if algorithm != "rolora":
        run = tmp_path / "run"
        base = [
            "--data",
            str(place / "pairs.tsv"),
            "--model",
            f"hf:{place / 'bert'}",
            "--clients",
            "4",
            "--rounds",
            "1",
        ]
        assert main(["train", algorithm, *base, "--lr", "0.3", *SET, "--quiet", "--out", str(run)]) == 0
    # New texts, longer than those of the run, of three classes.
    rng = np.random.default_rng(5)
    rows = [
        [some_words(rng, 0, 40) * 2, some_words(rng, 13 * (i % 3), 13 * (i % 3) + 13), "abc"[i % 3]] for i in range(60)
    ]
    text = "\n".join("\t".join(row) for row in [["sentence1", "sentence2", "label"], *rows]) + "\n"
    (tmp_path / "new.tsv").write_text(text)
    given = ["--data", str(tmp_path / "new.tsv"), "--clients", "3", "--shots", "3,6", "--epochs", "3", "--repeats", "2"]
    assert main(["adapt", str(run), *given, "--lr", "0.1", "--quiet", "--out", str(tmp_path)]) == 0
    results = json.loads((tmp_path / "adapt.json").read_text())["results"]
    assert {(r["method"], r["shots"]) for r in results} == {
        (method, shots) for method in ("frozen body", "local only") for shots in (3, 6)
    }
    assert all(0 <= r["mean"] <= 1 for r in results)


def test_whoever_has_one_client_exports_its_own_model(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As on a client's own host, where a global adapter has a head that nobody has trained."""
    data = ["--data", str(place / "pairs.tsv"), "--model", f"hf:{place / 'bert'}", "--clients", "1", "--rounds", "1"]
    assert main(["train", "lora", *data, *SET, "--quiet", "--out", str(tmp_path / "one")]) == 0
    for given in ([], ["--client", "0"]):
        out = tmp_path / f"out{len(given)}"
        assert main(["export", str(tmp_path / "one"), "--out", str(out), *given]) == 0
        assert ["untrained" in line for line in capsys.readouterr().out.splitlines() if "client 0" in line] == [False]
    one, other = (load_file(tmp_path / f"out{n}" / "adapter_model.safetensors") for n in (0, 2))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_classes_of_a_table_of_texts_are_named_as_not_covered(place: Path, tmp_path: Path) -> None:
    """One row's class shows in the shape of every client's model."""
    data = ["--data", str(place / "pairs.tsv"), "--model", f"hf:{place / 'bert'}", "--clients", "4", "--rounds", "1"]
    private = ["--dp", "client", "--dp-clip", "1", "--dp-noise", "1", "--quiet", "--out", str(tmp_path / "run")]
    assert main(["train", "lora", *data, *SET, *private]) == 0
    told = json.loads((tmp_path / "run" / "summary.json").read_text())["privacy"]["not_covered"]
    assert "classes of the table's label" in told


def test_export_by_the_command(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert main(["export", str(place / "pairs"), "--out", str(out), "--client", "all"]) == 0
    printed = capsys.readouterr().out
    assert "client-3" in printed
    assert "trained" in printed
    assert printed.rstrip().endswith(f"files: {out}")  # whole, however long
    assert (out / "client-0" / "tokenizer.json").is_file()
    assert main(["export", str(place / "pairs"), "--out", str(tmp_path / "merged"), "--merge", "--client", "1"]) == 0
    # A merged model is a model like any other: a run may start from it.
    data = ["--data", str(place / "pairs.tsv"), "--model", f"hf:{tmp_path / 'merged'}", "--clients", "4"]
    assert main(["train", "lora", *data, "--rounds", "1", *SET, "--quiet", "--out", str(tmp_path / "next")]) == 0
    start = [*data[:2], "--model", f"hf:{place / 'bert'}", "--clients", "4", "--rounds", "1", *SET]
    start += ["--set", f"model.adapter={out / 'client-0'}", "--set", "model.alpha=16"]
    assert main(["train", "lora", *start, "--quiet", "--out", str(tmp_path / "from")]) == 0


@pytest.mark.parametrize("format", ["onnx", "torch"])
def test_the_card_s_lines_take_texts(format: Any, place: Path, tmp_path: Path) -> None:
    """Tokenizers give tokens in another order than the program takes them, and longer texts are cut as in the run."""
    pytest.importorskip("onnxruntime")
    run = load_run(place / "pairs")
    cg.export_model(run, tmp_path / "own", client=1, format=format)
    texts = read_texts(place / "pairs.tsv")
    assert texts.second is not None
    first = [f"{text} {'w1 ' * 40 if number % 5 == 0 else ''}".strip() for number, text in enumerate(texts.first)]
    card = (tmp_path / "own" / "README.md").read_text("utf-8")
    names: dict[str, Any] = {"folder": tmp_path / "own", "texts": list(zip(first, texts.second, strict=True))}
    exec(card.split("```python\n")[1].split("```")[0], names)
    said = names["prediction"]
    own = classify(run, replace(texts, first=tuple(first)), 1)
    np.testing.assert_allclose(np.asarray(getattr(said, "detach", lambda: said)()), own, atol=1e-5)
    assert "in the order input_ids, attention_mask, token_type_ids" in card
    assert "cut to 24 tokens" in card


@pytest.mark.parametrize("merge", [False, True])
def test_what_others_load_is_no_damaged_model(merge: bool, place: Path, tmp_path: Path) -> None:
    cg.export_adapter(load_run(place / "pairs"), tmp_path / "out", client=1, merge=merge)
    whose = "a model of transformers'" if merge else "an adapter of peft's"
    with pytest.raises(RunError, match=rf"holds {whose}; its README.md says how that is loaded"):
        cg.load_exported(tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text("utf-8")
    assert "| texts are cut as by | tokenizer(texts, truncation=True, max_length=24) |" in card


REFUSALS = {
    "no such client": (["export", "pairs", "--out", "x", "--client", "9"], "has no client '9'"),
    "full folder": (["export", "pairs", "--out", "pairs"], "is not empty; choose another --out"),
    "predict numbers": (["predict", "pairs", "--client", "0", "--input", "x.npy"], "is not one of texts: .tsv"),
    "no input": (["predict", "pairs", "--client", "0", "--input", "x.tsv"], "'x.tsv' does not exist"),
    "tokens to classify": (
        ["predict", "pairs", "--client", "0", "--input", "x.tsv", "--max-new-tokens", "3"],
        "--max-new-tokens is for language models",
    ),
    "no instruction": (["predict", "answers", "--client", "0", "--input", "pairs.tsv"], "has no column 'instruction'"),
    "encoding of instructions": (
        ["predict", "answers", "--client", "0", "--input", "answers.json", "--encoding", "utf-8"],
        "--encoding says nothing of 'answers.json': it is for tables in text files",
    ),
    "too many tokens": (
        ["predict", "answers", "--client", "0", "--input", "answers.json", "--max-new-tokens", "64"],
        "--max-new-tokens is 64, and the model reads at most 64 tokens in all",
    ),
    "adapt an answering model": (["adapt", "answers", "--shots", "2"], "which has no head to fit for new clients"),
    "adapt to pictures": (["adapt", "pairs", "--data", "digits", "--shots", "2"], "classifies texts, and digits has"),
    "adapter of nothing": (
        [
            "train",
            "lora",
            "--data",
            "pairs.tsv",
            "--model",
            "hf:bert",
            "--set",
            "model.adapter=x",
            *SET,
            "--clients",
            "4",
            "--out",
            "x",
        ],
        "the folder 'x' holds no adapter",
    ),
}


@pytest.mark.parametrize(("args", "sentence"), REFUSALS.values(), ids=REFUSALS)
def test_refusals_in_one_sentence(
    args: list[str], sentence: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    assert main(args) == 2
    printed = capsys.readouterr()
    assert sentence in printed.err
    assert len(printed.err.strip().splitlines()) == 1
    assert not (place / "x").exists()


def test_glue_knows_pairs(place: Path, tmp_path: Path) -> None:
    run = load_run(place / "pairs")
    glue = replace(run, config=run.config.model_copy(update={"data": "rte"}))
    (tmp_path / "a.txt").write_text("w1 w2\n")
    match = r"holds single texts, but the run was trained on pairs of texts \(sentence1, sentence2\)"
    with pytest.raises(DataError, match=match):
        classify(glue, read_texts(tmp_path / "a.txt"), 0)
    with pytest.raises(ConfigError, match="classifies texts and does not answer"):
        answer(run, ["w1"], 0)


def test_a_run_from_python_remembers_its_columns_of_texts(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "t.csv"
    rows = [f"w{i % 5} w{i % 7},w{i % 3},k{i % 2},c{i % 2}" for i in range(24)]
    table.write_text("\n".join(["sentence1,sentence2,label,who", *rows]))
    model = f"hf:{place / 'bert'}"
    given: dict[str, Any] = {"text_column": "sentence2,sentence1", "client_column": "who", "max_length": 24}
    data = cg.load_data(str(table), tokenizer=str(place / "bert"), **given)
    run = cg.train(
        "lora", data, model=model, model_options={"max_length": 24}, rounds=1, lr=0.3, workers=1, out=tmp_path / "run"
    )
    assert run.trained.text_columns == load_run(tmp_path / "run").trained.text_columns == ("sentence2", "sentence1")
    assert main(["predict", str(tmp_path / "run"), str(table), "--client", "c1"]) == 0
    said = [float(row[-1]) for row in read_table(capsys.readouterr().out)[1:]]
    wanted = classify(run, read_texts(table, ("sentence2", "sentence1")), 1).max(1)
    other = classify(run, read_texts(table), 1).max(1)
    assert said == pytest.approx(wanted.tolist(), abs=1e-6)
    assert np.abs(wanted - other).max() > 1e-4

    single = tmp_path / "single.csv"
    single.write_text("\n".join(["text,label,who", *(f"w{i % 5},k{i % 2},c{i % 2}" for i in range(12))]))
    assert main(["predict", str(tmp_path / "run"), str(single), "--client", "c1"]) == 2
    assert "single.csv holds single texts, but the run was trained on pairs of texts" in capsys.readouterr().err
    newcomers = ["--client-column", "who", "--shots", "2", "--epochs", "1", "--repeats", "1"]
    assert main(["adapt", str(tmp_path / "run"), "--data", str(single), *newcomers]) == 2
    assert "single.csv holds single texts, but the run was trained on pairs of texts" in capsys.readouterr().err
    assert main(["adapt", str(tmp_path / "run"), "--data", str(table), *newcomers, "--quiet"]) == 0

    # A newcomer need not have all of the run's classes, and keeps their order.
    rows = [f"w{i % 5},w{i % 3},k1,new" for i in range(12)]
    (tmp_path / "new.csv").write_text("\n".join(["sentence1,sentence2,label,who", *rows]))
    few = ["--data", str(tmp_path / "new.csv"), "--client-column", "who", "--keep", "--epochs", "40", "--lr", "0.3"]
    assert main(["adapt", str(tmp_path / "run"), *few]) == 0
    capsys.readouterr()
    assert main(["predict", str(tmp_path / "run"), str(tmp_path / "new.csv"), "--client", "new"]) == 0
    assert {tuple(row[1:3]) for row in read_table(capsys.readouterr().out)[1:]} == {("new", "k1")}


@pytest.mark.parametrize("kind", ["command", "python"])
def test_rows_of_a_table_of_texts_are_answered_by_their_own_clients(
    kind: str, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of clients with few rows by the one into which they were pooled, whose names the run keeps."""
    rows = [f"w{i % 5} w{i % 7},{'yes' if i % 2 else 'no'},c{i % 3}" for i in range(30)]
    rows += ["w1,yes,few", "w2,no,few", "w3,no,less"]
    table, run = tmp_path / "t.csv", tmp_path / "run"
    table.write_text("\n".join(["text,ill,who", *rows]))
    read: dict[str, Any] = {"client_column": "who", "few_rows": "pool", "min_rows": 5}
    if kind == "command":
        asked = ["--client-column", "who", "--label", "ill", "--few-rows", "pool", "--min-rows", "5"]
        model = ["--model", f"hf:{place / 'bert'}", "--lr", "0.3", "--rounds", "2", "--set", "head=personal", *SET]
        assert main(["train", "lora", "--data", str(table), *asked, *model, "--out", str(run)]) == 0
    else:
        data = cg.load_data(str(table), tokenizer=str(place / "bert"), label="ill", max_length=24, **read)
        options = {"max_length": 24, "rank": 2, "layers": "1-2"}
        settings: dict[str, Any] = {"model": f"hf:{place / 'bert'}", "model_options": options, "lr": 0.3, "rounds": 2}
        cg.train("lora", data, options={"head": "personal"}, **settings, workers=1, out=run)
    assert "pooled_clients" not in (run / "summary.json").read_text("utf-8")
    shuffled = [rows[i] for i in np.random.default_rng(3).permutation(len(rows))]
    (tmp_path / "new.csv").write_text("\n".join(["who,ill,text", *(",".join(r.split(",")[::-1]) for r in shuffled)]))
    capsys.readouterr()
    assert main(["predict", str(run), str(tmp_path / "new.csv")]) == 0
    told = capsys.readouterr()
    header, *said = read_table(told.out)
    assert header == ["sample", "who", "class", "probability"]
    trained = load_run(run)
    texts = read_texts(tmp_path / "new.csv")
    each = {name: classify(trained, texts, number) for number, name in enumerate(trained.trained.known.names)}
    right = 0
    for row, (line, (sample, who, cls, probability)) in enumerate(zip(shuffled, said, strict=True)):
        _, label, owner = line.split(",")
        own = each[owner if owner in each else "(few rows)"][row]
        assert (int(sample), who, cls) == (row, owner, ("no", "yes")[int(own.argmax())])
        assert float(probability) == pytest.approx(own.max(), abs=1e-5)
        right += cls == label
    assert f"accuracy {100 * right / len(rows):.1f} % over {len(rows)} rows" in told.err
    assert np.abs(each["c0"] - each["c1"]).max() > 1e-3  # so that it says whose model was asked

    (tmp_path / "other.csv").write_text("text,who\nw1,c0\nw2,c9\n")
    assert main(["predict", str(run), str(tmp_path / "other.csv")]) == 2
    refused = capsys.readouterr().err
    assert "1 of the 2 clients took no part in the run, the first is 'c9'" in refused
    assert refused.endswith("`commonground adapt` serves new ones\n")  # there is no global model that could be asked
    (tmp_path / "bare.csv").write_text("text\nw1\nw2\n")
    assert main(["predict", str(run), str(tmp_path / "bare.csv")]) == 2
    assert "has no column 'who'; give --client ID (LoRA has no global model)" in capsys.readouterr().err
    assert main(["predict", str(run), str(tmp_path / "bare.csv"), "--max-new-tokens", "3"]) == 2
    assert "--max-new-tokens is for language models" in capsys.readouterr().err
    assert main(["predict", str(run), str(tmp_path / "bare.csv"), "--client", "c0"]) == 0
    assert read_table(capsys.readouterr().out)[0] == ["sample", "class", "probability"]


def test_clients_with_few_texts_are_served_by_the_global_model(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f"w{i % 5} w{i % 7},{'yes' if i % 2 else 'no'},c{i % 3}" for i in range(30)]
    (tmp_path / "t.csv").write_text("\n".join(["text,label,who", *rows, "w1 w3,yes,few"]))
    read = ["--data", str(tmp_path / "t.csv"), "--client-column", "who", "--few-rows", "shared"]
    given = [*read, "--model", f"hf:{place / 'bert'}", "--lr", "0.3", "--rounds", "1", *SET, "--out"]
    assert main(["train", "lora", *given, str(tmp_path / "own")]) == 2
    assert "serves clients with few rows by the global model, and LoRA has none" in capsys.readouterr().err
    run = tmp_path / "run"
    assert main(["train", "lora", *given, str(run), "--set", "head=shared"]) == 0
    assert load_run(run).trained.known.names == ["c0", "c1", "c2"]
    (tmp_path / "new.csv").write_text("text,who\nw1 w3,few\n")
    capsys.readouterr()
    assert main(["predict", str(run), str(tmp_path / "new.csv")]) == 0
    assert float(read_table(capsys.readouterr().out)[1][3]) == pytest.approx(
        classify(load_run(run), read_texts(tmp_path / "new.csv"), None).max(), abs=1e-5
    )


def test_texts_cut_at_another_length_than_the_model_s_are_refused(place: Path) -> None:
    data = cg.load_data(str(place / "pairs.tsv"), 2, tokenizer=str(place / "bert"), max_length=24)
    with pytest.raises(ConfigError, match=r"model.max_length is 3, and the texts of pairs.tsv were cut to 24 tokens"):
        cg.train("lora", data, model=f"hf:{place / 'bert'}", model_options={"max_length": 3}, rounds=1)


def test_texts_may_be_read_by_a_module_of_one_s_own(place: Path) -> None:
    """Its options are not those of a pretrained model, and no length is among them."""
    data = cg.load_data(str(place / "pairs.tsv"), 2, tokenizer=str(place / "bert"), max_length=24)
    module = cg.build_model(f"hf:{place / 'bert'}", data.format.shape, data.classes, seed=0)
    assert cg.train("fedavg", data, model=module, rounds=1).config.model_options == {}


def test_a_run_on_texts_that_are_whole_has_a_report(place: Path, tmp_path: Path) -> None:
    """Nothing is to be said of how they were read."""
    given = ["--data", str(place / "answers.json"), "--model", f"hf:{place / 'llama-lm'}", "--clients", "2", *SET[:4]]
    whole = ["--set", "model.max_length=64", "--rounds", "1", "--quiet", "--out", str(tmp_path / "run")]
    assert main(["train", "lora", *given, *whole]) == 0
    assert "notes" not in json.loads((tmp_path / "run" / "summary.json").read_text("utf-8"))["table"]
    assert "How the data were read" not in (tmp_path / "run" / "report.html").read_text("utf-8")
    # Without a head there is none to tune.
    said = json.loads((tmp_path / "run" / "summary.json").read_text("utf-8"))["personal_accuracy_of"]
    assert said == "the global model (this method has no personal one; see --finetune-epochs with --finetune all)"


def test_how_many_texts_may_have_been_cut_is_said(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f"{'w1 ' * (40 if i % 4 == 0 else 3)},k{i % 2},c{i % 2}" for i in range(24)]
    (tmp_path / "t.csv").write_text("\n".join(["text,label,who", *rows]))
    asked = ["--data", str(tmp_path / "t.csv"), "--client-column", "who", "--model", f"hf:{place / 'bert'}", *SET]
    assert main(["train", "lora", *asked, "--rounds", "1", "--out", str(tmp_path / "run")]) == 0
    told = "6 of 24 texts fill the 24 tokens that are read; what is longer is cut (--set model.max_length says how many"
    assert told in capsys.readouterr().err
    summary = json.loads((tmp_path / "run" / "summary.json").read_text("utf-8"))
    assert any(told in note for note in summary["table"]["notes"])
    assert told in " ".join((tmp_path / "run" / "report.html").read_text("utf-8").split())
    # Data that are no table of a user say it as well, and nobody hears of it where nothing is cut.
    pairs = ["--data", str(place / "pairs.tsv"), "--clients", "2", "--model", f"hf:{place / 'bert'}", "--rounds", "1"]
    assert main(["train", "lora", *pairs, *SET, "--out", str(tmp_path / "pairs")]) == 0
    assert "tokens that are read" not in capsys.readouterr().err


def test_texts_in_columns_that_the_run_was_told(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [f"w{i % 5} w{i % 7};k{i % 2};c{i % 2};{i}" for i in range(24)]
    table = tmp_path / "t.csv"
    table.write_bytes("\n".join(["wörds;kind;who;other", *lines]).encode("latin-1"))
    given = ["--data", str(table), "--text-column", "wörds", "--label", "kind", "--client-column", "who", *SET]
    given += ["--time-column", "other"]
    common = ["--model", f"hf:{place / 'bert'}", "--rounds", "1", "--quiet", "--out", str(tmp_path / "run")]
    assert main(["train", "rolora", *given, *common]) == 0
    assert load_run(tmp_path / "run").trained.split["times"] == {"other": "number"}  # adapt reads others' like this
    assert main(["predict", str(tmp_path / "run"), str(table), "--client", "c1"]) == 0
    assert len(read_table(capsys.readouterr().out)) == 25
    newcomers = ["--data", str(table), "--client-column", "who", "--shots", "2", "--epochs", "1", "--repeats", "1"]
    assert main(["adapt", str(tmp_path / "run"), *newcomers, "--quiet"]) == 0
    table.write_bytes("\n".join(["wörds;kind;who;other", *(line + ",032" for line in lines)]).encode("latin-1"))
    assert main(["adapt", str(tmp_path / "run"), *newcomers, "--quiet"]) == 2
    assert "column 'other': '0,032' has a decimal comma" in capsys.readouterr().err  # whose point the run knows
    table.write_text("words;kind\nw1;k1\n", "utf-8")
    assert main(["predict", str(tmp_path / "run"), str(table), "--client", "c1"]) == 2
    assert "has no column 'wörds' (did you mean 'words'?)" in capsys.readouterr().err


def test_texts_in_a_file_per_client(place: Path, tmp_path: Path) -> None:
    """A folder of them is answered as it was trained on: each row by its file's model."""
    (tmp_path / "shops").mkdir()
    for shop in ("north", "south"):
        lines = [f"{' '.join(WORDS[i : i + 3])},{'good' if i % 2 else 'bad'}" for i in range(12)]
        (tmp_path / "shops" / f"{shop}.csv").write_text("\n".join(["text,mood", *lines]) + "\n", "utf-8")
    data = ["--data", str(tmp_path / "shops"), "--client-column", "file", "--text-column", "text", "--target", "mood"]
    model = ["--model", f"hf:{place / 'bert'}", "--rounds", "1", "--quiet", *SET]
    assert main(["train", "lora", *data, *model, "--out", str(tmp_path / "run")]) == 0
    assert cg.load_run(tmp_path / "run").trained.known.names == ["north", "south"]
    out = tmp_path / "said.csv"
    assert main(["predict", str(tmp_path / "run"), str(tmp_path / "shops"), "--out", str(out)]) == 0
    header, *rows = read_table(out.read_text("utf-8"))
    assert [row[header.index("file")] for row in rows] == ["north"] * 12 + ["south"] * 12

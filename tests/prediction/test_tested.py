"""The samples that a run was tested on, one by one: the same rows and figures as in training."""

from __future__ import annotations

import itertools
import os
import unicodedata
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import commonground as cg
from commonground import load_data, load_run, train
from commonground.cli import main
from commonground.engine.run import at_hand
from commonground.errors import ConfigError, DataError
from tests.helpers import made_data
from tests.language import tiny_model, token_data
from tests.text_files import save_tokenizer, some_words


def table(rows: int = 160) -> pd.DataFrame:
    rng = np.random.default_rng(5)
    frame = pd.DataFrame({"who": [f"w{i % 4}" for i in range(rows)]})
    frame["a"], frame["b"] = rng.normal(size=rows).round(4), rng.normal(size=rows).round(4)
    frame["group"] = rng.integers(0, 30, rows)
    frame["kind"] = np.where(frame.a + frame.b * (frame.who < "w2") > 0, "up", "down")
    frame["price"] = (3 * frame.a - frame.b + 10).round(4)
    frame["cost"] = (frame.b * 100).round(2)
    return frame


def on_table(tmp_path: Path, frame: pd.DataFrame, method: str = "fedrep", **settings: Any) -> cg.Run:
    frame.to_csv(tmp_path / "t.csv", index=False)
    given: dict[str, Any] = {"client_column": "who", "rounds": 3, "engine": "serial", "out": tmp_path / "run"}
    train(method, tmp_path / "t.csv", **{"target": "kind", "drop": ["price", "cost"], **given, **settings})
    return load_run(tmp_path / "run")


def reported(run: cg.Run, key: str = "personal_accuracy") -> dict[str, float]:
    return {run.trained.known.names[row["client"]]: row[key] for row in run.clients}


def accuracy_of(tests: pd.DataFrame) -> dict[str, float]:
    return (tests["actual"] == tests["class"]).groupby(tests["client"]).mean().to_dict()


@pytest.mark.parametrize("settings", [{}, {"group_column": "group"}, {"scaling": "client"}, {"test_samples": 5},
                                      {"validation_fraction": 0.2}])  # fmt: skip
def test_rows_and_figures_are_those_of_the_run(settings: dict[str, Any], tmp_path: Path) -> None:
    run = on_table(tmp_path, table(), **settings)
    tests = cg.predict_tests(run)
    assert accuracy_of(tests) == pytest.approx(reported(run), abs=1e-12)
    own = table().iloc[tests["sample"]]  # numbers from 0, as of a DataFrame's rows
    assert list(own.kind) == list(tests["actual"])
    assert list(own.who) == list(tests["client"])
    assert tests["sample"].is_unique
    if "group_column" in settings:
        for who in run.trained.known.names:
            rest = table()[(table().who == who) & ~table().index.isin(tests["sample"])]
            assert not set(rest.group) & set(own[own.who == who].group)
    whole = cg.predict_rows(run, table()).iloc[tests["sample"]]
    np.testing.assert_allclose(whole[["down", "up"]], tests[["down", "up"]], rtol=0, atol=1e-6)


def test_rows_without_a_target_are_counted_as_the_file_has_them(tmp_path: Path) -> None:
    frame = table()
    frame.loc[::7, "kind"] = None
    tests = cg.predict_tests(on_table(tmp_path, frame, missing_target="drop"))
    assert list(frame.iloc[tests["sample"]].kind) == list(tests["actual"])
    assert not (tests["sample"] % 7 == 0).any()


def test_numbers_and_labels(tmp_path: Path) -> None:
    both = on_table(tmp_path, table(), task="regression", target="price,cost", drop=["kind"])
    tests = cg.predict_tests(both)
    assert list(tests.columns) == ["sample", "client", "actual price", "actual cost", "price", "cost"]
    own = table().iloc[tests["sample"]]
    np.testing.assert_allclose(tests[["actual price", "actual cost"]], own[["price", "cost"]], rtol=1e-6)
    frame = table()
    frame["cold"], frame["dry"] = (frame.a > 0).astype(int), (frame.b > 0).astype(int)
    (tmp_path / "labels").mkdir()
    labels = on_table(tmp_path / "labels", frame, task="multilabel", target="cold,dry", drop=["kind", "price", "cost"])
    tests = cg.predict_tests(labels)
    assert list(tests.columns)[:4] == ["sample", "client", "actual cold", "actual dry"]
    assert list(tests["actual dry"]) == list(frame.iloc[tests["sample"]].dry)


@pytest.mark.parametrize("method", ["fedavg", "fedrep"])
def test_named_data_and_objects(method: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"rounds": 2, "engine": "serial", "feature_noise": 0.5}
    run = train(method, "digits", clients=6, partition="shards:3", seed=4, out=tmp_path / "run", **settings)
    key = "personal_accuracy" if method == "fedrep" else "global_accuracy"
    for one in (run, tmp_path / "run"):
        tests = cg.predict_tests(one)
        assert accuracy_of(tests) == pytest.approx(reported(run, key), abs=1e-12)
        assert len(tests) == run.clients.numbers("test_samples").sum()
        if method == "fedavg":  # by its one model, each client's samples with its own noise
            pd.testing.assert_frame_equal(cg.predict_tests(one, shared=True), tests)
    given = train(method, made_data(), out=tmp_path / "made", rounds=1)
    with pytest.raises(ConfigError, match=r"the data of .*, 'made', cannot be read by that name; where .*cg\.predict"):
        cg.predict_tests(given)
    data = made_data()
    tests = cg.predict_tests(given, data=data)
    assert tests["sample"].tolist() == [row for c in range(data.clients) for row in data.test_indices(c)]
    with pytest.raises(ConfigError, match="data is a FederatedDataset, as the run was given, and no list"):
        cg.predict_tests(given, data=[1])  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"the data 'made' are others than .* was trained on .*cg\.predict_tests"):
        cg.predict_tests(given, data=made_data(seed=9))


def test_models_that_a_test_trains_once_more_are_said_to_be_others() -> None:
    data = made_data()
    run = train("perfedavg", data, rounds=1, engine="serial")
    with pytest.warns(UserWarning, match="PerFedAvg trains each client's model once more before a test"):
        cg.predict_tests(run, data=data)


def test_pictures_are_named_by_their_files(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    for who in ("ann", "bob"):
        for kind in ("cat", "dog"):
            folder = tmp_path / "pictures" / who / kind
            folder.mkdir(parents=True)
            for number in range(6):
                shade = rng.integers(0, 120, (8, 8)) + (120 if kind == "dog" else 0)
                image.fromarray(shade.astype(np.uint8)).save(folder / f"{number}.png")
    run = train("fedrep", tmp_path / "pictures", partition="column:client", rounds=2, model="mlp", engine="serial")
    tests = cg.predict_tests(run)
    for row in tests.itertuples():
        assert Path(str(row.sample)).parts[:2] == (row.client, row.actual)
    assert accuracy_of(tests) == pytest.approx(reported(run))


def test_names_of_files_need_not_be_unicode(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    strange = os.fsdecode(b"0\xe9.png")
    for who, kind in itertools.product(("ann", "bob"), ("cat", "dog")):
        folder = tmp_path / "pictures" / who / kind
        folder.mkdir(parents=True)
        for name in (strange, "1.png", "2.png", "3.png"):
            try:
                image.fromarray(np.full((8, 8), 200 * (kind == "cat"), np.uint8)).save(folder / name)
            except OSError:
                pytest.skip("a file system of Unicode names alone")
    run = train("fedavg", tmp_path / "pictures", partition="column:client", rounds=1, model="mlp", out=tmp_path / "run")
    named = {Path(name).name for name in cg.predict_tests(run)["sample"]}
    assert named <= {"0\\udce9.png", "1.png", "2.png", "3.png"}
    for asked in ([], ["--client", "ann"]):
        place = tmp_path / "pictures" / ("ann/cat" if asked else "")
        out = tmp_path / f"{len(asked)}.csv"
        assert main(["predict", str(tmp_path / "run"), str(place), *asked, "--out", str(out)]) == 0
        assert "0\\udce9.png" in out.read_text("utf-8")


def test_texts_and_answers(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    model = tiny_model("bert", tmp_path / "bert")
    save_tokenizer(tmp_path / "bert", language=False)
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"shop": [("north", "south")[i % 2] for i in range(40)]})
    frame["words"] = [some_words(rng, 20 * (i % 3 > 0), 20 + 20 * (i % 3 > 0)) for i in range(40)]
    frame["mood"] = ["good" if i % 3 else "bad" for i in range(40)]
    frame.loc[3, "mood"] = None
    frame.to_csv(tmp_path / "shops.csv", index=False)
    run = train("lora", tmp_path / "shops.csv", client_column="shop", text_column="words", label="mood", model=model,
                model_options={"rank": 2, "max_length": 12}, rounds=2, missing_target="drop")  # fmt: skip
    tests = cg.predict_tests(run)
    assert accuracy_of(tests) == pytest.approx(reported(run), abs=1e-12)
    own = frame.iloc[tests["sample"]]
    assert list(own.mood) == list(tests["actual"])
    assert list(own.shop) == list(tests["client"])
    answers = train("lora", token_data(language=True), model=tiny_model("llama-lm", tmp_path / "lm"), rounds=1)
    with pytest.raises(
        ConfigError,
        match=r"writes answers, whose test samples are not answered again \(--tested\); give it a file of inst",
    ):
        cg.predict_tests(answers)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, out = on_table(tmp_path, table()), tmp_path / "tests.csv"
    capsys.readouterr()
    assert main(["predict", str(tmp_path / "run"), "--tested", "--out", str(out)]) == 0
    said = capsys.readouterr().err
    written = pd.read_csv(out)
    assert list(written.columns) == ["sample", "client", "actual", "class", "probability"]
    assert f"accuracy {100 * (written.actual == written['class']).mean():.1f} % over {len(written)} rows" in said
    mean = 100 * run.summary["personal_accuracy"]["mean"]
    assert f"{mean:.1f} % as the mean over 4 clients" in said
    assert main(["predict", str(tmp_path / "run"), "--tested", "--client", "w2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) - 1 == (written.client == "w2").sum()
    assert main(["predict", str(tmp_path / "run"), str(tmp_path / "t.csv"), "--tested"]) == 2
    assert "--tested takes the run's own data" in capsys.readouterr().err
    assert main(["predict", str(tmp_path / "run"), "--tested", "--separator", ";"]) == 2
    assert "--tested reads the run's own data as in training" in capsys.readouterr().err
    assert main(["predict", str(tmp_path / "run"), str(tmp_path / "t.csv")]) == 0
    assert "its own figures are of test rows alone (predict --tested)" in capsys.readouterr().err
    table().iloc[::-1].to_csv(tmp_path / "t.csv", index=False)
    assert main(["predict", str(tmp_path / "run"), "--tested"]) == 2
    assert "the data 't.csv' are others than" in capsys.readouterr().err
    (tmp_path / "t.csv").unlink()
    assert main(["predict", str(tmp_path / "run"), "--tested"]) == 2
    assert "t.csv" in capsys.readouterr().err


def test_a_client_that_was_added_has_none(tmp_path: Path) -> None:
    on_table(tmp_path, table())
    new = table().assign(who="new")
    cg.keep_clients(tmp_path / "run", load_data(new, client_column="who", target="kind", drop=["price", "cost"],
                                                schema=load_run(tmp_path / "run").trained.schema))  # fmt: skip
    with pytest.raises(ConfigError, match="client 'new' was added after the run, which has no test samples of it"):
        cg.predict_tests(tmp_path / "run", client="new")
    with pytest.raises(ConfigError, match="give either"):
        cg.predict_tests(tmp_path / "run", client="w1", shared=True)


def test_columns_are_named_in_lists_as_well(tmp_path: Path) -> None:
    frame = table().rename(columns={"kind": "kind, of", "group": 'it\'s "q"', "cost": "cost, net"})
    frame.to_csv(tmp_path / "t.csv", index=False)
    given: dict[str, Any] = {"client_column": "who", "task": "regression", "rounds": 1}
    told: dict[str, Any] = {"target": 'price,"cost, net"', "drop": '"kind, of", a', "kinds": 'it\'s "q"=category'}
    texts = train("fedavg", tmp_path / "t.csv", **told, **given)
    lists: dict[str, Any] = {"target": ["price", "cost, net"], "drop": ("kind, of", "a")}
    lists["kinds"] = {'it\'s "q"': "category"}
    named = train("fedavg", tmp_path / "t.csv", **lists, **given)
    assert named.summary["weights_sha256"] == texts.summary["weights_sha256"]
    with pytest.raises(ConfigError, match="the target names the column 'price' twice"):
        train("fedavg", tmp_path / "t.csv", target=["price", "price"], **given)
    assert named.trained.schema == texts.trained.schema
    assert named.trained.schema is not None
    assert named.trained.schema.targets == ("price", "cost, net")
    with pytest.raises(
        DataError, match=r"""did you mean '"kind, of"'.*its columns are: who, a, b, .*"kind, of", price"""
    ):
        train("fedavg", tmp_path / "t.csv", target="price", drop="kind, of", **given)


def test_a_table_that_was_an_object_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its file is there by its name, and how it was read is in no setting."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"who": np.arange(60) % 3, "x": rng.normal(size=60), "y": rng.choice(["no", "yes"], 60)})
    frame.to_csv(tmp_path / "t.csv", index=False)
    monkeypatch.chdir(tmp_path)
    data = cg.load_data("t.csv", client_column="who", target="y")
    cg.train("fedrep", data, rounds=1, out=tmp_path / "run")
    says = r"cannot be read again as they were: t\.csv has no column 'label'.*cg\.predict_tests\(run, data=…\) takes it"
    with pytest.raises(DataError, match=says):
        cg.predict_tests("run")
    assert len(cg.predict_tests("run", data=data)) == len(data.y_test)


def test_right_answers_are_as_the_table_has_them(tmp_path: Path) -> None:
    """2.4757 is 2.4756999… in single precision, which nobody has written."""
    rng = np.random.default_rng(0)
    y = rng.normal(2, 1, size=60).round(4)
    pd.DataFrame({"who": np.arange(60) % 3, "x": y, "y": y}).to_csv(tmp_path / "t.csv", index=False)
    settings: dict[str, Any] = {"client_column": "who", "target": "y", "task": "regression", "rounds": 1}
    run = cg.train("fedavg", tmp_path / "t.csv", out=tmp_path / "run", **settings)
    told = cg.predict_tests(run)
    assert [*told["actual y"]] == [*y[told["sample"]]]
    assert main(["predict", str(tmp_path / "run"), "--tested", "--out", str(tmp_path / "said.csv")]) == 0
    written = pd.read_csv(tmp_path / "said.csv", dtype=str)["actual y"]
    assert [*written] == [f"{value:g}" for value in y[told["sample"]]]


@pytest.mark.parametrize(("middle", "spread", "cents"), [(4.2e9, 3e8, 0), (4.2e9, 1500.0, 2), (1.5e12, 200.0, 0)])
def test_large_targets_are_told_and_judged_to_the_last_digit(
    middle: float, spread: float, cents: int, tmp_path: Path
) -> None:
    """Beyond 2^24 single precision has no room for whole numbers, and no digit of a table's may be lost."""
    rng = np.random.default_rng(0)
    y = (middle + spread * rng.normal(size=120)).round(cents)
    y = y if cents else y.astype(np.int64)
    table = pd.DataFrame({"who": np.arange(120) % 3, "x": (y - middle) / spread + 0.1 * rng.normal(size=120), "y": y})
    table.to_csv(tmp_path / "t.csv", index=False)
    settings: dict[str, Any] = {"client_column": "who", "target": "y", "task": "regression", "rounds": 20}
    run = cg.train("fedavg", tmp_path / "t.csv", out=tmp_path / "run", **settings)
    told = cg.predict_tests(run)
    assert [*told["actual y"]] == [*y[told["sample"]]]
    off = (told["actual y"] - told["y"]).groupby(told["client"])
    by_hand = off.apply(lambda d: float(np.sqrt((d**2).mean()))).mean()
    assert run.summary["metrics"]["rmse"]["mean"] == pytest.approx(by_hand, abs=2e-7 * spread)  # outputs are single
    assert run.summary["metrics"]["r2"]["mean"] > 0.9
    assert main(["predict", str(tmp_path / "run"), "--tested", "--out", str(tmp_path / "said.csv")]) == 0
    said = pd.read_csv(tmp_path / "said.csv")
    assert [*said["actual y"]] == [*told["actual y"]]


@pytest.mark.parametrize("target", ["kind", "price"])
def test_data_of_a_run_of_before_are_read_as_it_has_read_them(target: str, tmp_path: Path) -> None:
    """What this version takes for numbers and dates, earlier ones took for categories, and names as files have them."""
    frame, two = table(), partial(unicodedata.normalize, "NFD")
    index = np.arange(len(frame))
    frame["who"] = np.array([two("Änn"), "Bob", two("Jörg"), "Zoe"])[index % 4]
    frame["split"] = np.where(index // 4 % 4 == 3, "test", "train")  # where they are drawn, it is by clients' names
    frame["pct"], frame["day"] = [f"{i % 8}%" for i in index], [f"{10 + i % 9}.0{1 + i % 5}.24" for i in index]
    said = {"pct": "category", "day": "category"}
    other: dict[str, Any] = (
        {} if target == "kind" else {"target": "price", "drop": ["kind", "cost"], "task": "regression"}
    )
    run = on_table(tmp_path, frame, kinds=said, **other)
    before = replace(run.trained, config=run.trained.config.model_copy(update={"kinds": None}))
    split = {**before.split, "client_names": [two("Änn"), "Bob", two("Jörg"), "Zoe"]}
    again = load_data(tmp_path / "t.csv", client_column="who", label=target, schema=before.schema)
    order = [again.client_id(name) for name in split["client_names"]]
    assert order != sorted(order)  # as Ä is a letter behind Z
    train, test = [again.train_indices(c) for c in order], [again.test_indices(c) for c in order]
    old = replace(
        again, client_names=tuple(split["client_names"]), preprocess=before.format.preprocess, task=before.task,
        train_index=np.concatenate(train), train_offsets=np.cumsum([0, *map(len, train)]),
        test_index=np.concatenate(test), test_offsets=np.cumsum([0, *map(len, test)]),
    )  # fmt: skip
    plain = cg.predict_tests(run).sort_values("sample", ignore_index=True)
    unknown = replace(run, _read=at_hand(before))
    pd.testing.assert_frame_equal(cg.predict_tests(unknown).sort_values("sample", ignore_index=True), plain)
    spelt = replace(run, _read=at_hand(replace(before, split={**split, "fingerprint": old.fingerprint()})))
    assert set(cg.predict_tests(spelt)["client"]) == set(split["client_names"])
    frame.loc[3, "pct"] = "6%"
    frame.to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(DataError, match="are others than"):
        cg.predict_tests(unknown)

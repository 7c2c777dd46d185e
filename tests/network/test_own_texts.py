"""Texts over a network: each host reads its own with the model's tokenizer, and the run is that of one machine."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import commonground as cg
from commonground.cli import deploy as cli_deploy
from commonground.cli import main
from commonground.config import RunConfig
from commonground.data import FederatedDataset
from commonground.data.described import as_agreed, describe_client, described_dataset
from commonground.data.tables.options import TableOptions
from commonground.engine.run import Run
from commonground.errors import ConfigError, RunError, UpdateError
from commonground.network import Answering, Limits, gather, train_over
from commonground.network.desk import Desk
from commonground.network.own_data import TableWords, own_data, write_arrays
from tests.helpers import made_data
from tests.language import tiny_model
from tests.network.town import Town
from tests.text_files import save_tokenizer, some_words

pytest.importorskip("peft")

FAST = Limits(seconds=20, patience=0.2, pause=0.01)
SETTINGS: dict[str, Any] = {
    "rounds": 2,
    "threads": 1,
    "batch_size": 4,
    "seed": 5,
    "model_options": {"rank": 2, "max_length": 64},
}
TEXT_COLUMN = TableOptions(text_column=("words",))


def model(folder: Path, kind: str = "bert", labels: int = 3) -> str:
    name = tiny_model(kind, folder, labels=labels)
    save_tokenizer(folder, kind.endswith("-lm"))
    return name


def table(path: Path, sites: Mapping[str, Sequence[str]]) -> Path:
    """Rows of texts of sites, by the labels that each has, in turn."""
    rng = np.random.default_rng(1)
    with path.open("w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["site", "words", "mood"])
        for longer, (site, moods) in enumerate(sites.items()):
            for row in range(12):
                words = " ".join(some_words(rng, 0, 40) for _ in range(1 + longer))
                lines.writerow([site, words, moods[row % len(moods)]])
    return path


def part(joined: Path, site: str) -> Path:
    with joined.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    own = joined.with_name(f"{site}.csv")
    with own.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(row[1:] for row in rows if row[0] in ("site", site))
    return own


def over(owns: Mapping[str, FederatedDataset], folder: Path, algorithm: str = "lora", **settings: Any) -> Run:
    town = Town(next(iter(owns.values())), folder / "sites", tokenizer=settings["model"])
    town.names, town.data = list(owns), list(owns.values())
    town.folders = [folder / "sites" / name for name in owns]
    town.desks = {100 + c: town._desk(c) for c in range(len(owns))}
    config = RunConfig.make({"algorithm": algorithm, "data": "arrays", **SETTINGS, **settings})
    return train_over(town, config, gather(town, len(owns), 10), FAST, folder / "run")


def read(path: Path, name: str, tokenizer: str, max_length: int = 64) -> FederatedDataset:
    found = own_data(str(path), name, None, TableWords("mood", None, TEXT_COLUMN, 5, tokenizer, max_length))
    assert isinstance(found, FederatedDataset)
    return found


def test_hosts_with_other_classes_and_lengths_train_what_one_machine_trains(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The joined table's test rows, classes (south has one alone, west a third) and lengths are found apart."""
    name = model(tmp_path / "model")
    sites = {"north": ["good", "bad"], "south": ["good"], "west": ["fair", "bad", "good"]}
    joined = table(tmp_path / "joined.csv", sites)
    data = cg.load_data(
        joined,
        client_column="site",
        text_column="words",
        label="mood",
        tokenizer=name,
        max_length=64,
        seed=9,
        test_seed=0,
    )
    assert data.class_names == ("bad", "fair", "good")
    here = cg.train("lora", data, engine="serial", model=name, **SETTINGS)
    owns = {site: read(part(joined, site), site, name) for site in sites}
    assert [own.class_names for own in owns.values()] == [("bad", "good"), ("good",), ("bad", "fair", "good")]
    assert len({own.x_train.shape[1] for own in owns.values()}) == 3
    there = over(owns, tmp_path, model=name)
    assert there.summary["weights_sha256"] == here.summary["weights_sha256"]
    assert there.personal_accuracy == here.personal_accuracy
    folder = next((tmp_path / "sites" / "south" / "models").iterdir())
    assert cg.load_run(folder).trained.text_columns == ("words",)
    capsys.readouterr()
    assert main(["predict", str(folder), str(tmp_path / "south.csv")]) == 0
    answers = capsys.readouterr().out.splitlines()
    assert len(answers) >= 12
    assert all(any(name in line for name in data.class_names) for line in answers[-12:])


def test_instructions_are_answered_over_a_network(tmp_path: Path) -> None:
    name = model(tmp_path / "model", "llama-lm")
    rng = np.random.default_rng(2)
    rows = [
        {"site": site, "instruction": some_words(rng, 0, 20), "output": some_words(rng, 20, 40), "answer": answer}
        for site, answers in (("north", "yn"), ("south", "n"), ("west", "ym"))
        for number in range(10)
        for answer in answers[number % len(answers)]
    ]
    joined = tmp_path / "joined.json"
    joined.write_text(json.dumps(rows))
    data = cg.load_data(joined, partition="column:site", tokenizer=name, max_length=64, seed=0)
    here = cg.train("rolora", data, engine="serial", model=name, **SETTINGS)
    owns = {}
    for site in ("north", "south", "west"):
        own = tmp_path / f"{site}.json"
        own.write_text(
            json.dumps([{k: v for k, v in row.items() if k != "site"} for row in rows if row["site"] == site])
        )
        found = own_data(str(own), site, None, TableWords(tokenizer=name, max_length=64))
        assert isinstance(found, FederatedDataset)
        owns[site] = found
    there = over(owns, tmp_path, "rolora", model=name)
    assert there.summary["weights_sha256"] == here.summary["weights_sha256"]


def test_a_client_keeps_its_classes_by_their_names(tmp_path: Path) -> None:
    name = model(tmp_path / "model")
    joined = table(tmp_path / "joined.csv", {"north": ["b", "d"], "south": ["a", "c", "b"]})
    north, south = (read(part(joined, site), site, name) for site in ("north", "south"))
    agreed = described_dataset([describe_client(north, "north"), describe_client(south, "south")])
    assert agreed.class_names == ("a", "b", "c", "d")
    tokens = agreed.x_train.shape[1] - 1
    now = as_agreed(north, agreed.class_names, {}, tokens)
    assert [now.class_names[y] for y in now.y_train] == [north.class_names[y] for y in north.y_train]
    assert [now.class_names[y] for y in now.y_test] == [north.class_names[y] for y in north.y_test]
    assert (agreed.one_of_many, now.one_of_many, north.one_of_many) == (False, False, True)
    fixed = r"^the server leaves out classes of this client's, or takes several for one$"  # and names no label
    for lie in (("a", "b", "c"), ("a", "c"), ("a",), ()):
        with pytest.raises(UpdateError, match=fixed):
            as_agreed(north, lie, {}, tokens)
    twice = replace(north, class_names=("1", "1.0"))
    with pytest.raises(UpdateError, match=fixed):
        as_agreed(twice, ("1", "2"), {}, tokens)
    with pytest.raises(UpdateError, match=fixed):
        as_agreed(made_data((6,)), ("a",), {})


def test_classes_of_texts_are_in_the_order_in_which_all_have_them(tmp_path: Path) -> None:
    """A function of a host may order its classes otherwise; where all agree, that stays."""
    name = model(tmp_path / "model")
    own = read(part(table(tmp_path / "joined.csv", {"north": ["b", "a"]}), "north"), "north", name)
    turned = replace(own, class_names=("b", "a"), y_train=1 - own.y_train, y_test=1 - own.y_test)
    both = [describe_client(turned, "north"), describe_client(turned, "south")]
    assert described_dataset(both).class_names == ("b", "a")
    mixed = [describe_client(turned, "north"), describe_client(own, "south")]
    assert described_dataset(mixed).class_names == ("a", "b")


def test_classes_that_are_spelt_otherwise_are_one(tmp_path: Path) -> None:
    name = model(tmp_path / "model")
    joined = table(tmp_path / "joined.csv", {"north": ["1", "2"], "south": ["1.0", "2.0", "3.0"]})
    owns = [read(part(joined, site), site, name) for site in ("north", "south")]
    agreed = described_dataset([describe_client(own, site) for own, site in zip(owns, "ns", strict=True)])
    assert agreed.class_names == ("1", "2", "3.0")
    tokens = agreed.x_train.shape[1] - 1
    now = as_agreed(owns[1], agreed.class_names, {}, tokens)
    assert now.y_train.tolist() == owns[1].y_train.tolist()


def test_who_demands_privacy_tells_no_classes_of_its_texts(tmp_path: Path) -> None:
    name = model(tmp_path / "model")
    own = read(part(table(tmp_path / "joined.csv", {"north": ["HIV+", "b"]}), "north"), "north", name)
    with pytest.raises(
        ConfigError, match=r"the classes of its texts would be told .* file\.py:function, which says them"
    ):
        Answering(own, "north", tmp_path / "sites", demand="example")
    agreed = replace(own, one_of_many=False)  # as a function's, whose classes all know beforehand
    assert Answering(agreed, "north", tmp_path / "sites", demand="example").hello()


def test_the_command_reads_texts_as_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name, found = model(tmp_path / "model"), list[Answering]()
    rows = part(table(tmp_path / "joined.csv", {"north": ["a", "b"]}), "north")
    monkeypatch.setattr(cli_deploy, "_take_part", lambda fleet, answering, say: found.append(answering))
    command = ["deploy", "client", "--folder", str(tmp_path / "client"), "--name", "north", "--data", str(rows)]
    command += [
        "--text-column",
        "words",
        "--target",
        "mood",
        "--tokenizer",
        name,
        "--server",
        "127.0.0.1:1",
        "--insecure",
    ]
    assert main([*command, "--max-length", "5"]) == 0
    (answering,) = found
    assert isinstance(answering.data, FederatedDataset)
    assert (answering.tokenizer, answering.data.x_train.shape[1]) == (name, 1 + 5)
    assert answering.data.class_names == ("a", "b")
    assert "client north: " in capsys.readouterr().err  # that texts fill the five tokens
    assert main(command) == 2  # the model reads 64 tokens, and 128 are usual
    assert "max_length is 128, and the model of the tokenizer" in capsys.readouterr().err


def test_a_run_with_another_model_is_refused(tmp_path: Path) -> None:
    name, other = model(tmp_path / "model"), model(tmp_path / "other")
    own = read(part(table(tmp_path / "joined.csv", {"north": ["a", "b"]}), "north"), "north", name)
    town = Town(own, tmp_path / "sites")
    heard: list[str] = []
    town.desks = {100: Desk(Answering(own, "north", tmp_path / "sites" / "north", tokenizer=name), heard.append)}
    config = RunConfig.make({"algorithm": "lora", "data": "arrays", "model": other, **SETTINGS})
    with pytest.raises(RunError) as error:
        train_over(town, config, gather(town, 1, 10), FAST, tmp_path / "run")
    assert str(error.value) == (  # which names no folder of the client's host
        "client 'north' takes no part in this run, and says 'its texts were read for another model than the run\\'s'"
    )
    assert heard == [f"the run's model is {other}, and --tokenizer is {name}"]


def test_longer_texts_are_cut_where_the_owner_says(tmp_path: Path) -> None:
    name = model(tmp_path / "model")
    own = read(part(table(tmp_path / "joined.csv", {"north": ["a", "b"]}), "north"), "north", name, max_length=4)
    assert own.x_train.shape[1] == 1 + 4
    assert any("fill the 4 tokens that are read" in note for note in own.about["notes"])


def refused(source: Path, words: TableWords, schema: Path | None = None) -> str:
    with pytest.raises(ConfigError) as error:
        own_data(str(source), "north", schema, words)
    return str(error.value)


def test_what_is_not_of_texts_is_refused(tmp_path: Path) -> None:
    name = model(tmp_path / "model")
    rows = part(table(tmp_path / "joined.csv", {"north": ["a", "b"]}), "north")
    assert refused(rows, TableWords("mood", None, TEXT_COLUMN)) == (
        "--text-column words is of texts, which a model's tokenizer reads: add --tokenizer hf:NAME, the model that "
        "the run adapts"
    )
    write_arrays(made_data((5,)), 0, tmp_path / "arrays")
    assert refused(tmp_path / "arrays", TableWords(tokenizer=name)).endswith("is neither")
    assert refused(rows, TableWords("mood", None, TEXT_COLUMN, 5, name), tmp_path / "schema.json").startswith(
        f"the schema '{tmp_path / 'schema.json'}' is of a table's numbers and categories"
    )
    said = refused(rows, TableWords("mood", "regression", TEXT_COLUMN, 5, name))
    assert said.endswith("are texts, which are for classification, not for regression")


def test_a_length_without_a_tokenizer_is_refused_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["deploy", "client", "--folder", str(tmp_path / "client"), "--data", "x.csv", "--server", "a:1"]
    assert main([*command, "--insecure", "--target", "mood", "--max-length", "9"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "commonground: --max-length 9 is of texts, which a model's tokenizer reads: add --tokenizer"
    ]

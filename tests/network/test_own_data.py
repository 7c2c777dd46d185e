"""A client's own data: folders of arrays, functions, tables by an agreed schema; what clients have to agree on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import commonground as cg
from commonground.cli import main
from commonground.data import FederatedDataset, load_data
from commonground.data.described import as_agreed, describe_client, described_dataset, read_description
from commonground.data.part import part_of
from commonground.errors import ConfigError, DataError
from commonground.network import Answering
from commonground.network.own_data import TableWords, write_arrays
from commonground.network.own_data import own_data as any_own_data
from commonground.network.running import run_settings
from tests.helpers import made_data


def own_data(source: str, name: str, schema: Path | None = None) -> FederatedDataset:
    found = any_own_data(source, name, schema)
    assert isinstance(found, FederatedDataset)
    return found


def test_a_folder_gives_back_what_was_written(tmp_path: Path) -> None:
    data = load_data("digits", 3, seed=0)
    write_arrays(data, 1, tmp_path)
    own = own_data(str(tmp_path), "north")
    whole = part_of(data, [1])
    for field in ("x_train", "y_train", "x_test", "y_test"):
        assert np.array_equal(getattr(own, field), getattr(whole, field))
    assert (own.name, own.preprocess, own.class_names) == (data.name, data.preprocess, data.class_names)


def test_arrays_of_one_class_are_a_clients(tmp_path: Path) -> None:
    for field in ("x_train", "x_test"):
        np.save(tmp_path / f"{field}.npy", np.ones((2, 3), np.float32))
    for label in (0, 7):  # of which the other clients may know more
        for field in ("y_train", "y_test"):
            np.save(tmp_path / f"{field}.npy", np.full(2, label))
        assert own_data(str(tmp_path), "north").classes == label + 1


def test_who_demands_privacy_does_not_tell_the_largest_label_of_arrays(tmp_path: Path) -> None:
    write_arrays(made_data(), 0, tmp_path)
    named = own_data(str(tmp_path), "north")
    assert Answering(named, "north", tmp_path / "sites", demand="client").hello()
    (tmp_path / "data.json").unlink()
    counted = own_data(str(tmp_path), "north")
    assert Answering(counted, "north", tmp_path / "sites").hello()
    with pytest.raises(ConfigError, match=r"its largest label would be told .*; name them all, by class_names in data"):
        Answering(counted, "north", tmp_path / "sites", demand="client")


def test_what_is_missing_or_wrong_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"neither a folder of arrays nor file\.py:function"):
        own_data(str(tmp_path / "nothing"), "north")
    write_arrays(made_data(), 0, tmp_path)
    (tmp_path / "data.json").write_text('{"scale": "much"}')
    with pytest.raises(DataError, match="does not describe the client's data: scale"):
        own_data(str(tmp_path), "north")
    (tmp_path / "data.json").unlink()
    np.save(tmp_path / "y_test.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match=r"y_test\.npy' cannot be read"):
        own_data(str(tmp_path), "north")


def test_a_function_of_several_clients_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    one = "(np.zeros((3, 2), 'f'), [0, 1, 0], np.zeros((2, 2), 'f'), [0, 1])"
    path.write_text(f"import numpy as np\ndef two():\n    return [{one}, {one}]\n")
    with pytest.raises(DataError, match="the data of 2 clients, not of one"):
        own_data(f"{path}:two", "north")


def table(folder: Path, rows: int, seed: int, kind: str) -> Path:
    rng = np.random.default_rng(seed)
    age, town = rng.normal(40, 10, rows), rng.choice(["a", "b", "c"], rows)
    target = (age > 40).astype(int) if kind == "classification" else 1000 * seed + 3 * age
    path = folder / f"{kind}-{seed}.csv"
    pd.DataFrame({"age": age.round(3), "town": town, "goal": target, "site": f"s{seed}"}).to_csv(path, index=False)
    return path


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_tables_take_the_schema_of_a_run(kind: str, tmp_path: Path) -> None:
    example = table(tmp_path, 80, 0, kind)
    out = tmp_path / "example"
    cg.train(
        "local", str(example), target="goal", task=kind, rounds=1, model="linear", clients=1, out=out, partition="iid"
    )
    with pytest.raises(ConfigError, match=r"needs --target.*or --schema"):
        own_data(str(example), "north")
    own = [own_data(str(table(tmp_path, 40 + n, n, kind)), "x", out / "schema.json") for n in (1, 2)]
    assert [data.x_train.shape[1] for data in own] == [4, 4]
    assert own[0].preprocess == own[1].preprocess
    whole = described_dataset([describe_client(data, name) for data, name in zip(own, "pq", strict=True)])
    assert whole.train_sizes.tolist() == [len(data.x_train) for data in own]
    if kind == "regression":
        targets = np.concatenate([data.y_train for data in own]).astype(np.float64)
        assert whole.task.mean == pytest.approx((targets.mean(),))  # type: ignore[attr-defined]
        assert whole.task.std == pytest.approx((targets.std(),))  # type: ignore[attr-defined]
        agreed = as_agreed(own[0], whole.class_names, vars(whole.task))
        assert agreed.task == whole.task


def test_what_clients_do_not_agree_on_is_named() -> None:
    one = describe_client(part_of(made_data(), [0]), "north")
    for change, what in (
        ({"fields": (("", "<f8", (9,)),)}, "'north' and 'south' do not agree on the samples"),
        ({"scale": 2.0}, "do not agree on the preprocessing"),
        ({"task": "regression"}, "do not agree on the task"),
        ({"class_names": ("x", "y", "z")}, "have other names"),
    ):
        other = one.model_copy(update={"name": "south", **change})
        with pytest.raises(DataError, match=what):
            described_dataset([one, other])


@pytest.mark.parametrize(
    "change", [{"train": 0}, {"train": "7"}, {"more": 1}, {"fields": [["", "|O8", [3]]]}, {"classes": 0}, {"name": ""},
               {"fields": [["", "<f4", [1 << 40]]]}, {"fields": [["", "<f4", [1 << 20, 1 << 20]]]},
               {"fields": [["", "<i3", [4]]]}, {"fields": [["", "<f0", [4]]]}, *(
                   {"task": "regression", "class_names": [], "classes": 1, "task_settings": {"mean": mean, "std": std}}
                   for mean, std in ((["a"], ["b"]), ([[1.0]], [[1.0]]), (1.0, 1.0), ([None], [None]), ([1e300], [1.0]),
                                     ([float("nan")], [1.0]), ([0.0], [float("inf")]), ([0.0], [-1.0]), ([0.0], []),
                                     ([True], [1.0]), ([0.0], [0.0])))]
)  # fmt: skip
def test_a_description_that_cannot_be_is_refused(change: dict[str, object]) -> None:
    plain = json.loads(describe_client(part_of(made_data(), [0]), "north").model_dump_json())
    assert read_description(json.dumps(plain)).name == "north"
    with pytest.raises(DataError, match="this describes"):
        read_description(json.dumps({**plain, **change}))


def test_a_described_data_set_holds_no_sample_and_no_count_of_labels() -> None:
    data = made_data()
    parts = [describe_client(part_of(data, [c]), f"c{c}") for c in range(data.clients)]
    whole = described_dataset(parts)
    assert not whole.x_train.any()
    assert not whole.class_counts("train").any()
    assert whole.test_sizes.tolist() == data.test_sizes.tolist()
    assert whole.described
    assert replace(whole, described=False).class_counts("train").sum() != 0


def test_what_a_table_needs_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, folder = table(tmp_path, 40, 1, "classification"), str(tmp_path / "client")
    schema = tmp_path / "schema.json"
    for options, said in (
        ([], "needs --target, the column to predict"),
        (["--target", "goul"], "has no column 'goul' (did you mean 'goal'?)"),
        (["--target", "goal", "--drop", "sight"], "has no column 'sight'"),
        (["--target", "goal", "--schema", str(schema)], "leave out --target and --task"),
    ):
        command = ["deploy", "client", "--folder", folder, "--data", str(path), "--server", "127.0.0.1:1", "--insecure"]
        assert main([*command, *options]) == 2
        assert said in capsys.readouterr().err
    write_arrays(made_data(), 0, tmp_path / "arrays")
    with pytest.raises(ConfigError, match="are for tables"):
        any_own_data(str(tmp_path / "arrays"), "north", None, TableWords(target="goal"))


@pytest.mark.parametrize("name", ["task", "drop", "scaling", "engine", "ray_address", "init_from"])
def test_what_is_said_of_data_and_hosts_is_said_by_the_client(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"--{name.replace('_', '-')} is not for a run over a network"):
        run_settings({"algorithm": "fedavg", name: "none"}, tmp_path / "run", resume=False)

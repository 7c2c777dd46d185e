"""Data sets of Hugging Face's package: as objects, from a folder, with parts and classes; offline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import commonground as cg
from commonground.cli import main
from commonground.errors import CommonGroundError, ConfigError, DataError

datasets = pytest.importorskip("datasets")

COLUMNS: dict[str, Any] = {"client_column": "shop", "label": "sold"}


def columns(rows: int = 40, seed: int = 0) -> dict[str, list[Any]]:
    rng = np.random.default_rng(seed)
    return {
        "shop": [("north", "south")[i % 2] for i in range(rows)],
        "price": rng.normal(10, 3, rows).round(2).tolist(),
        "kind": rng.choice(["new", "used"], rows).tolist(),
        "sold": rng.integers(0, 2, rows).tolist(),
    }


def same(one: cg.FederatedDataset, other: cg.FederatedDataset) -> None:
    for field in ("x_train", "y_train", "x_test", "y_test"):
        np.testing.assert_array_equal(getattr(one, field), getattr(other, field))
    assert one.client_names == other.client_names


def test_an_object_is_what_its_table_is(tmp_path: Path) -> None:
    frame = pd.DataFrame(columns())
    frame.to_csv(tmp_path / "t.csv", index=False)
    wanted = cg.load_data(tmp_path / "t.csv", **COLUMNS)
    given = datasets.Dataset.from_dict(columns())
    same(cg.load_data(given, **COLUMNS), wanted)
    same(cg.load_data(frame, **COLUMNS), wanted)
    given.save_to_disk(str(tmp_path / "saved"))
    same(cg.load_data(tmp_path / "saved", **COLUMNS), wanted)
    turned = datasets.Dataset.from_dict({n: v[::-1] for n, v in columns().items()}).select(range(39, -1, -1))
    same(cg.load_data(turned, **COLUMNS), wanted)  # rows in the order of its indices


def test_parts_and_classes(tmp_path: Path) -> None:
    words = datasets.ClassLabel(names=["no", "yes"])
    train, test, hidden = (datasets.Dataset.from_dict(columns(n, n)) for n in (40, 12, 8))
    parts = {"train": train.cast_column("sold", words), "validation": test.cast_column("sold", words)}
    parts["test"] = hidden.map(lambda row: {"sold": -1}).cast_column("sold", words)
    given = datasets.DatasetDict(parts)
    given.save_to_disk(str(tmp_path / "saved"))
    for one in (given, tmp_path / "saved"):
        data = cg.load_data(one, **COLUMNS)
        assert (len(data.x_train), len(data.x_test), data.class_names) == (40, 12, ("no", "yes"))
        assert data.schema is not None
        assert data.schema.notes[:2] == ("test rows are the part 'validation'", "left out: the parts 'test'")
        north = [y for shop, y in zip(columns(12, 12)["shop"], columns(12, 12)["sold"], strict=True) if shop == "north"]
        assert data.y_test[data.test_indices(0)].tolist() == north


def test_by_command(tmp_path: Path) -> None:
    datasets.Dataset.from_dict(columns()).save_to_disk(str(tmp_path / "saved"))
    settings = ["--client-column", "shop", "--target", "sold", "--rounds", "2", "--quiet"]
    assert main(["train", "fedrep", "--data", str(tmp_path / "saved"), *settings, "--out", str(tmp_path / "run")]) == 0
    out = ["--out", str(tmp_path / "said.csv")]
    assert main(["predict", str(tmp_path / "run"), str(tmp_path / "saved"), *out]) == 0
    said = pd.read_csv(tmp_path / "said.csv")
    assert len(said) == 40


def test_the_hub_without_a_tokenizer_is_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    given = datasets.DatasetDict({"train": datasets.Dataset.from_dict(columns())})
    asked = []

    def load_dataset(*names: str, **rest: Any) -> Any:
        asked.append(names)
        return given

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    data = cg.load_data("hf:me/shops", **COLUMNS)
    assert asked == [("me/shops",)]
    same(data, cg.load_data(given["train"], **COLUMNS))
    texts = datasets.Dataset.from_dict(
        {"sentence": [f"this is text number {i} of all" for i in range(60)], "label": [0, 1] * 30}
    )
    monkeypatch.setattr(datasets, "load_dataset", lambda *names, **rest: {"train": texts})
    with pytest.raises(DataError, match="is a text, for a model hf:NAME"):
        cg.load_data("hf:me/texts", clients=2)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (lambda d: d.to_iterable_dataset(), "is a stream"),
        (lambda d: datasets.DatasetDict(other=d), "no part 'train'; its parts are: other"),
        (lambda d: datasets.DatasetDict(train=d.add_column("split", [0] * 40), test=d), "a column 'split' as well"),
        (lambda d: d.select([]), "has 0 rows"),
        (lambda d: datasets.Dataset.from_dict({"list": [[1], [2]]}), "no columns of numbers"),
        (lambda d: d.remove_columns("sold"), "no column 'sold'"),
        (
            lambda d: [1, 2],
            "a table is a DataFrame, a pyarrow Table, a datasets.Dataset or the path of a file, and no list",
        ),
    ],
)
def test_refused_in_a_sentence(given: Any, says: str) -> None:
    with pytest.raises(CommonGroundError, match=says):
        cg.load_data(given(datasets.Dataset.from_dict(columns())), **COLUMNS)


def test_a_damaged_folder_is_named(tmp_path: Path) -> None:
    datasets.Dataset.from_dict(columns()).save_to_disk(str(tmp_path / "saved"))
    for file in (tmp_path / "saved").glob("*.arrow"):
        file.write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"saved could not be read as a saved data set: "):
        cg.load_data(tmp_path / "saved", **COLUMNS)
    with pytest.raises(ConfigError, match="texts of files, not of objects"):
        cg.load_data(pd.DataFrame(columns()), tokenizer="hf:x", **COLUMNS)

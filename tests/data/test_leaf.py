"""LEAF's files: users and their samples, in one file, in several, or in the folders train and test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import commonground as cg
from commonground.cli import main
from commonground.errors import CommonGroundError


def users(*names: str, rows: int = 8, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    data = {name: {"x": rng.normal(size=(rows, 4)).tolist(), "y": [i % 3 * 5 for i in range(rows)]} for name in names}
    return {"users": list(names), "num_samples": [rows] * len(names), "user_data": data}


def put(path: Path, whole: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(whole), "utf-8")
    return path


def test_users_of_one_file_are_clients(tmp_path: Path) -> None:
    whole = users("f1", "f10", "f2")
    data = cg.load_data(put(tmp_path / "all.json", whole))
    assert sorted(data.client_names or ()) == ["f1", "f10", "f2"]
    assert data.class_names == ("0", "5", "10")
    assert (data.train_sizes.tolist(), data.test_sizes.tolist()) == ([6] * 3, [2] * 3)
    rows = np.sort(np.concatenate([data.x_train, data.x_test])[:, 0])
    expected = np.sort([x[0] for own in whole["user_data"].values() for x in own["x"]])
    np.testing.assert_array_equal(rows, expected.astype(np.float32))
    named = ["--data", str(tmp_path / "all.json"), "--rounds", "1", "--quiet", "--out", str(tmp_path / "run")]
    assert main(["train", "fedrep", *named]) == 0
    assert cg.load_run(tmp_path / "run").config.model == "mlp"
    assert cg.load_data(tmp_path / "all.json", 2, partition="iid").clients == 2


def test_folders_say_what_is_tested(tmp_path: Path) -> None:
    for part, rows in (("train", 8), ("test", 4)):
        put(tmp_path / part / "a.json", users("f1", "f2", rows=rows))
        put(tmp_path / part / "b.json", users("f3", rows=rows, seed=1))
    data = cg.load_data(tmp_path)
    assert (data.train_sizes.tolist(), data.test_sizes.tolist()) == ([8] * 3, [4] * 3)
    assert data.client_names == ("f1", "f2", "f3")
    with pytest.raises(CommonGroundError, match="its folders train and test say what is tested"):
        cg.load_data(tmp_path, test_share=0.5)
    for name in ("a.json", "b.json"):
        (tmp_path / "test" / name).unlink()
    with pytest.raises(CommonGroundError, match="has a folder train and none called test with files of the same form"):
        cg.load_data(tmp_path)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"x": [["a b", "c"], ["d", "e"]], "y": [0, 1]}, "user 'f1' are texts or names of files, .* the columns text"),
        ({"x": [[1, 2], [3]], "y": [0, 1]}, "the samples of user 'f1' are no numbers of one shape"),
        ({"x": [[1, 2], [3, 4]], "y": [0]}, "user 'f1' has 2 samples and 1 labels; as many are needed"),
        ({"x": [[1, 2], [3, 4]], "y": [0, 1]}, r"of user 'f2' have shape \(4,\), and those of 'f1' \(2,\)"),
        ({"x": [[1.0] * 4] * 2, "y": [0.5, 1]}, "a label of user 'f1' is no class"),
        ({"x": 3}, "user 'f1' has no lists 'x' and 'y'"),
    ],
)
def test_what_is_not_so_is_named(changed: dict[str, Any], says: str, tmp_path: Path) -> None:
    whole = users("f1", "f2")
    whole["user_data"]["f1"] = changed
    with pytest.raises(CommonGroundError, match=says):
        cg.load_data(put(tmp_path / "t.json", whole))


def test_what_tables_alone_have_is_refused(tmp_path: Path) -> None:
    path = put(tmp_path / "t.json", users("f1", "f2"))
    with pytest.raises(CommonGroundError, match="is data in LEAF's form, no table; there are no columns to drop"):
        cg.load_data(path, drop="a")
    with pytest.raises(CommonGroundError, match=r"clients of '.*' are its users; the column is called 'user'"):
        cg.load_data(path, client_column="who")

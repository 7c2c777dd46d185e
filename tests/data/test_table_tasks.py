"""Tables whose rows are to be given a number or several labels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from commonground import load_data
from commonground.cli import main
from commonground.errors import ConfigError, DataError
from commonground.tasks import Classification, MultiLabel, Regression


def write(path: Path, rows: int = 60, clients: int = 3) -> Path:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, rows))
    price = 1000 + 50 * (2 * a - b) + rng.normal(size=rows)
    lines = ["a,b,price,weight,red,big,shop"]
    lines += [
        f"{a[i]:.4f},{b[i]:.4f},{price[i]:.3f},{a[i] + 1:.3f},{int(a[i] > 0)},{int(b[i] > 1)},s{i % clients}"
        for i in range(rows)
    ]
    file = path / "shops.csv"
    file.write_text("\n".join(lines) + "\n")
    return file


def test_a_quantity_is_no_class_unasked(tmp_path: Path) -> None:
    file = write(tmp_path)
    with pytest.raises(DataError, match=r"the column 'price' holds 60 different numbers; say --task regression"):
        load_data(file, label="price", partition="column:shop")
    classes = load_data(file, label="price", partition="column:shop", task="classification")
    assert (classes.task, classes.classes) == (Classification(), 60)


def test_a_regression_knows_its_targets_scale(tmp_path: Path) -> None:
    data = load_data(write(tmp_path), label="price", partition="column:shop", task="regression")
    assert isinstance(data.task, Regression)
    np.testing.assert_allclose(data.task.mean, data.y_train.mean(0, dtype=np.float64), rtol=1e-6)
    np.testing.assert_allclose(data.task.std, data.y_train.std(0, dtype=np.float64), rtol=1e-5)
    assert (data.classes, data.class_names, data.sample_shape) == (1, ("price",), (5,))


def test_several_targets_and_several_labels(tmp_path: Path) -> None:
    file = write(tmp_path)
    both = load_data(file, label="price, weight", partition="column:shop", task="regression")
    assert (both.class_names, both.y_train.shape[1], both.sample_shape) == (("price", "weight"), 2, (4,))
    marked = load_data(file, label="red,big", partition="column:shop")
    assert (marked.task, marked.class_names) == (MultiLabel(), ("red", "big"))


@pytest.mark.parametrize(
    ("label", "task", "says"),
    [
        ("price,none", "regression", "has no column 'none'"),
        ("shop", "regression", "both the label and the client column"),
        ("red,big", "classification", "a classification has one label column, and 2 are named"),
        ("price", "multilabel", "are not zeros and ones"),
        ("price", "answers", "a table is for classification, regression or multilabel, not for answers"),
        ("price", "sorting", "unknown task 'sorting'"),
    ],
)
def test_what_does_not_fit_is_said(label: str, task: str, says: str, tmp_path: Path) -> None:
    with pytest.raises((ConfigError, DataError), match=says):
        load_data(write(tmp_path), label=label, partition="column:shop", task=task)


def test_words_are_no_targets(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("a,label\n1,x\n2,y\n3,x\n4,y\n")
    with pytest.raises(DataError, match="'label' holds no numbers; a target of this task must be numeric"):
        load_data(file, 1, task="regression")


def test_data_with_a_task_of_their_own() -> None:
    with pytest.raises(ConfigError, match="'digits' are for classification, not for regression"):
        load_data("digits", task="regression")


def test_new_clients_are_scaled_as_in_training(tmp_path: Path) -> None:
    """A feature in another unit changes what a trained body makes of it."""
    import json

    file, out = write(tmp_path), tmp_path / "run"
    split = ["--partition", "column:shop"]
    table = ["--data", str(file), *split]
    assert main(["train", "fedrep", *table, "--target", "price", "--task", "regression", "--out", str(out)]) == 0
    lines = [line.split(",") for line in file.read_text().splitlines()]
    other = tmp_path / "other.csv"
    rows = [[str(3 * float(line[0])), *line[1:]] for line in lines[1:]]
    other.write_text("\n".join(",".join(line) for line in [lines[0], *rows]) + "\n")
    means = []
    for data in (file, other):
        where = tmp_path / data.stem
        command = ["adapt", str(out), "--data", str(data), *split, "--shots", "5", "--out", str(where), "--epochs", "3"]
        assert main(command) == 0
        means.append(json.loads((where / "adapt.json").read_text("utf-8"))["results"][0]["mean"])
    # By the new table's own deviation both would be the same.
    assert abs(means[1] - means[0]) > 0.05 * means[0]


def test_by_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = write(tmp_path), tmp_path / "run"
    command = ["train", "fedrep", "--data", str(file), "--partition", "column:shop", "--target", "price"]
    assert main([*command, "--out", str(out)]) == 2
    assert "say --task regression" in capsys.readouterr().err
    assert main([*command, "--task", "regression", "--rounds", "20", "--out", str(out)]) == 0
    import json

    summary = json.loads((out / "summary.json").read_text("utf-8"))
    assert (summary["task"], summary["metric"]) == ("regression", "rmse")
    assert "personal_accuracy" not in summary
    assert summary["metrics"]["rmse"]["over_rows"] < 60  # predicting the mean alone misses by over 100
    assert summary["metrics"]["r2"]["over_rows"] > 0.7

"""Every task's targets, losses, scores and metrics against numbers worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from commonground.errors import ConfigError, DataError, ModelError
from commonground.tasks import AnswerTokens, Classification, MultiLabel, Regression, Task, make_task, tasks


def tensor(*rows: Any) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def metrics_of(task: Task, output: Tensor, y: Tensor) -> dict[str, float]:
    """Metrics of all rows as one set."""
    means = {n: s.double().mean(0, keepdim=True).numpy() for n, s in task.scores(output, y).items()}
    return {name: float(value[0]) for name, value in task.metrics(means).items()}


def test_tasks_by_name() -> None:
    wanted: dict[str, Any] = {"answers": AnswerTokens, "classification": Classification, "multilabel": MultiLabel}
    wanted |= {"regression": Regression}
    assert tasks == wanted
    for name, cls in wanted.items():
        assert make_task(name) == cls()
    mine = Regression((1.0,), (2.0,))
    assert make_task(mine) is mine
    with pytest.raises(ConfigError, match="unknown task 'ranking'; known are classification, answers, multilabel, reg"):
        make_task("ranking")
    with pytest.raises(ConfigError, match=r"a task is an object, such as Regression\(\), and not its class"):
        make_task(Regression)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"a task is a name or an object of commonground.Task, not int"):
        make_task(3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("task", "metric", "higher", "percent", "worst", "softmax"),
    [
        (Classification(), "accuracy", True, True, "p10", True),
        (AnswerTokens(), "accuracy", True, True, "p10", False),
        (MultiLabel(), "f1", True, True, "p10", False),
        (Regression(), "rmse", False, False, "p90", False),
    ],
)
def test_headlines(task: Task, metric: str, higher: bool, percent: bool, worst: str, softmax: bool) -> None:
    assert (task.metric, task.higher_is_better, task.percent, task.worst, task.softmax) == (
        metric, higher, percent, worst, softmax
    )  # fmt: skip


# -- classification ---------------------------------------------------------------------------------------------------


def test_classification() -> None:
    task = Classification()
    # e^0 : e^ln3 = 1 : 3, so the probabilities of the second class are 3/4 and 1/2.
    output, y = tensor([0.0, math.log(3)], [0.0, 0.0], [2.0, 2.0 + math.log(3)]), torch.tensor([1, 0, 0])
    torch.testing.assert_close(task.loss(output, y), torch.log(tensor(4 / 3, 2.0, 4.0)), rtol=0, atol=1e-15)
    assert float(task.mean_loss(output, y)) == pytest.approx(math.log(4 / 3 * 2 * 4) / 3, abs=1e-15)
    assert metrics_of(task, output, y) == {"accuracy": 2 / 3}
    np.testing.assert_allclose(task.predict(output), [[0.25, 0.75], [0.5, 0.5], [0.25, 0.75]], rtol=0, atol=1e-15)
    assert task.columns(["cat", "dog"]) == ["probability of cat", "probability of dog"]
    assert task.choose(np.array([[0.25, 0.75], [0.6, 0.4]]), ["cat", "dog"]) == ["dog", "cat"]


def test_targets_of_classification() -> None:
    task = Classification()
    y = task.targets(np.array([2, 0, 1], dtype=np.uint8), "y_train")
    assert y.dtype == np.int64
    assert task.outputs((y, y), "mine") == 3
    assert task.label_of(y).tolist() == [2, 0, 1]
    assert task.members(y, 3).tolist() == [[False, False, True], [True, False, False], [False, True, False]]
    for wrong in (np.array([0.5]), np.array([[1], [0]]), np.array(["a"])):
        numbers = '; numbers to be predicted are for task="regression"' if wrong.dtype == float else ""
        with pytest.raises(DataError, match=rf"^y_train is .*; one row of whole numbers is needed{numbers}$"):
            task.targets(wrong, "y_train")
    for value in (3, -1):
        with pytest.raises(
            DataError, match=f"^the label of test sample 1 of 'mine' is {value}; with 3 classes it must be 0 to 2$"
        ):
            task.check_targets("mine", "test", np.array([0, value, 9]), 3)
    with pytest.raises(DataError, match="the largest label of 'mine' is 1000000; number the classes from 0, or"):
        task.outputs((np.array([1_000_000]),), "mine")


# -- answers ----------------------------------------------------------------------------------------------------------


def test_answers() -> None:
    """Two tokens of a vocabulary of two, and one token alone: probabilities of the right ones are 3/4, 1/4 and 1/2."""
    task, three = AnswerTokens(), math.log(3)
    output = tensor([[0.0, three], [0.0, three]], [[0.0, 0.0], [9.0, -9.0]])
    y = torch.tensor([[1, 0, -1], [0, -1, -1]])  # longer than the longest answer of this batch
    wanted = tensor((math.log(4 / 3) + math.log(4)) / 2, math.log(2))
    torch.testing.assert_close(task.loss(output, y), wanted, rtol=0, atol=1e-15)
    assert float(task.mean_loss(output, y)) == pytest.approx(float(wanted.mean()), abs=1e-15)
    # An answer is right where each of its tokens is.
    assert task.scores(output, y)["accuracy"].tolist() == [False, True]
    assert task.scores(output, torch.tensor([[1, 1], [0, -1]]))["accuracy"].tolist() == [True, True]
    assert metrics_of(task, output, y) == {"accuracy": 0.5}
    assert task.generative
    with pytest.raises(ModelError, match=r"outputs of shape \(2,\); answers need scores of tokens \[places"):
        task.check(output[0], 2)
    with pytest.raises(ModelError, match="a language model is asked for texts"):
        task.predict(output)


# -- regression -------------------------------------------------------------------------------------------------------

Y = tensor([1.0, 10.0], [3.0, 20.0], [5.0, 60.0])
OUTPUT = tensor([2.0, 10.0], [3.0, 30.0], [3.0, 70.0])  # errors (1, 0), (0, 10), (−2, 10)


def test_regression_of_two_targets() -> None:
    task = Regression()
    assert task.loss(OUTPUT, Y).tolist() == [0.5, 50.0, 52.0]
    assert float(task.mean_loss(OUTPUT, Y)) == 102.5 / 3
    found = metrics_of(task, OUTPUT, Y)
    assert set(found) == {"rmse", "mse", "mae", "r2"}
    mse = (5 / 3 + 200 / 3) / 2
    assert found["mse"] == pytest.approx(mse, abs=1e-13)
    assert found["rmse"] == pytest.approx(math.sqrt(mse), abs=1e-13)
    assert found["mae"] == pytest.approx((1 + 20 / 3) / 2, abs=1e-13)
    # ȳ = (3, 30); Σ(y − ȳ)² = 8 and 400 + 100 + 900 = 1400.
    assert found["r2"] == pytest.approx(((1 - 5 / 8) + (1 - 200 / 1400)) / 2, abs=1e-12)


def test_standardised_regression() -> None:
    """The model's outputs are (y − 3)/2 and (y − 30)/10; losses are of these, metrics in y's own units."""
    task = Regression((3.0, 30.0), (2.0, 10.0))
    output = (OUTPUT - tensor(3.0, 30.0)) / tensor(2.0, 10.0)
    # Errors in units of the deviations: (½, 0), (0, 1), (−1, 1).
    assert task.loss(output, Y).tolist() == [0.125, 0.5, 1.0]
    plain = metrics_of(Regression(), OUTPUT, Y)
    found = metrics_of(task, output, Y)
    assert found == pytest.approx(plain, abs=1e-12)
    np.testing.assert_allclose(task.predict(output), OUTPUT.numpy(), rtol=0, atol=1e-14)
    single = output.float()
    assert task.loss(single, Y.float()).dtype == torch.float32
    assert task.predict(single).dtype == np.float64
    assert task.columns(["height", "weight"]) == ["height", "weight"]
    assert task.choose(np.array([[1.5, 1234567.0]]), ["a", "b"]) == ["1.5, 1.23457e+06"]


def test_means_and_deviations_are_of_all_given_samples() -> None:
    task = Regression.standardised(np.array([[1, 7], [3, 7], [5, 7], [7, 7]]))
    assert task.mean == (4.0, 7.0)
    assert task.std == (math.sqrt(5.0), 1.0)  # (9 + 1 + 1 + 9)/4; targets that do not differ are only shifted
    assert Regression.standardised([2.0, 4.0]) == Regression((3.0,), (1.0,))


@pytest.mark.parametrize("offset", [0.0, 7.0, 1e6])
def test_r2_is_not_defined_where_targets_do_not_differ(offset: float) -> None:
    task = Regression()
    y = tensor([0.1], [0.1], [0.1]) + offset
    for rows in (1, 3):
        found = metrics_of(task, y[:rows] + 1, y[:rows])
        assert math.isnan(found["r2"])
        assert found["rmse"] == pytest.approx(1.0, abs=1e-9)
    # One of two targets is enough: the mean over both is not defined either.
    half = torch.cat([y, tensor([1.0], [2.0], [3.0])], 1)
    assert math.isnan(metrics_of(task, half, half)["r2"])


@pytest.mark.parametrize("offset", [0.0, 1e3, 1e9])
def test_r2_of_large_targets_that_differ_little(offset: float) -> None:
    """Taken from squares of targets as they are, their spread would be lost in rounding."""
    y, output = tensor([0.0], [1.0], [2.0]) + offset, tensor([0.5], [1.0], [2.0])
    task = Regression((offset,), (1.0,)) if offset > 1e3 else Regression()
    found = metrics_of(task, output if task.mean else output + offset, y)
    assert found["r2"] == pytest.approx(1 - 0.25 / 2, abs=1e-9)
    assert found["rmse"] == pytest.approx((0.25 / 3) ** 0.5, abs=1e-9)


def test_targets_of_regression() -> None:
    task = Regression()
    assert task.targets(np.array([1, 2, 3]), "y").tolist() == [[1.0], [2.0], [3.0]]
    kinds: dict[Any, Any] = {np.int64: np.float32, np.float32: np.float32, np.float64: np.float64, np.bool_: np.float32}
    for given, stored in kinds.items():
        y = task.targets(np.ones((4, 2), given), "y")
        assert (y.shape, y.dtype, task.outputs((y, y), "mine")) == ((4, 2), stored, 2)
        assert task.as_tensor(y, torch.float64).dtype == torch.float64
    assert task.members(np.zeros((2, 3)), 3).all()
    assert task.label_of(np.zeros((2, 3))) is None
    wrong: list[Any] = [np.array(["a"]), np.ones((2, 2, 2)), np.array([1j]), np.array(3.0)]
    for values in wrong:
        with pytest.raises(DataError, match=r"^y_test is .*; numbers \[N\] or \[N, targets\] are needed$"):
            task.targets(values, "y_test")
    with pytest.raises(DataError, match="'mine' has 3 targets in its test samples, and 2 in all"):
        task.check_targets("mine", "test", np.zeros((4, 3)), 2)
    for value in (math.nan, math.inf):
        with pytest.raises(DataError, match=r"^a target of train sample 1 of 'mine' is not a finite number$"):
            task.check_targets("mine", "train", np.array([[0.0, 1.0], [0.0, value]]), 2)


# -- several labels ---------------------------------------------------------------------------------------------------


def test_several_labels() -> None:
    """Outputs of ±ln 3 are probabilities of ¾ and ¼; 0 is one half, which says that the label is there."""
    task, three = MultiLabel(), math.log(3)
    output = tensor([three, -three, 0.0], [three, three, -three])
    y = tensor([1.0, 1.0, 0.0], [1.0, 0.0, 0.0])
    wanted = [(math.log(4 / 3) + math.log(4) + math.log(2)) / 3, (math.log(4 / 3) * 2 + math.log(4)) / 3]
    np.testing.assert_allclose(task.loss(output, y), wanted, rtol=0, atol=1e-15)
    found = metrics_of(task, output, y)
    # Said: 1, 3 and 1, 2; there: 1, 2 and 1. TP = 2, FP = 2, FN = 1.
    assert found == pytest.approx({"f1": 4 / 7, "label_accuracy": 3 / 6, "subset_accuracy": 0.0}, abs=1e-15)
    right = metrics_of(task, tensor([three, -1.0, -1.0], [-1.0, 1.0, -1.0]), tensor([1.0, 0, 0], [0, 1.0, 1.0]))
    assert right == pytest.approx({"f1": 4 / 5, "label_accuracy": 5 / 6, "subset_accuracy": 0.5}, abs=1e-15)
    np.testing.assert_allclose(task.predict(output)[0], [0.75, 0.25, 0.5], rtol=0, atol=1e-15)
    assert task.choose(np.array([[0.75, 0.25, 0.5], [0.1, 0.2, 0.3]]), ["a", "b", "c"]) == ["a, c", "–"]


def test_f1_is_over_all_labels_and_not_defined_where_there_are_none() -> None:
    task = MultiLabel()
    nothing = metrics_of(task, tensor([-1.0, -1.0]), tensor([0.0, 0.0]))
    assert math.isnan(nothing["f1"])
    assert (nothing["label_accuracy"], nothing["subset_accuracy"]) == (1.0, 1.0)
    assert metrics_of(task, tensor([1.0, -1.0]), tensor([0.0, 0.0]))["f1"] == 0.0
    # Micro, not macro: a label that is there once counts less than one that is there three times.
    output, y = tensor(*[[1.0, -1.0]] * 3), tensor([1.0, 1.0], [1.0, 0.0], [1.0, 0.0])
    assert metrics_of(task, output, y)["f1"] == pytest.approx(6 / 7, abs=1e-15)


def test_targets_of_several_labels() -> None:
    task = MultiLabel()
    y = task.targets(np.array([[True, False], [True, True]]), "y")
    assert y.tolist() == [[1.0, 0.0], [1.0, 1.0]]
    assert y.dtype == np.float32
    assert task.outputs((y, y), "mine") == 2
    assert task.members(y, 2).tolist() == [[True, False], [True, True]]
    assert task.label_of(y) is None
    with pytest.raises(DataError, match=r"^the labels of test sample 1 of 'mine' are not zeros and ones$"):
        task.check_targets("mine", "test", np.array([[0.0, 1.0], [0.0, 2.0]]), 2)
    with pytest.raises(DataError, match="'mine' has 2 labels in its train samples, and 3 in all"):
        task.check_targets("mine", "train", np.zeros((4, 2)), 3)


def test_a_model_of_another_width_is_refused() -> None:
    for task, counted in ((Classification(), "classes"), (Regression(), "targets"), (MultiLabel(), "labels")):
        task.check(torch.zeros(5, 3), 3)
        for shape, said in (((5, 2), r"\(2,\)"), ((5,), r"\(\)"), ((5, 3, 1), r"\(3, 1\)")):
            with pytest.raises(ModelError, match=f"outputs of shape {said}, but the data has 3 {counted}"):
                task.check(torch.zeros(shape), 3)

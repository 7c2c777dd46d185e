"""Finer figures: by hand, and equal to scikit-learn's for any number of sets of rows at once."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics as sklearn

from commonground.tasks import AnswerTokens, MultiLabel
from commonground.tasks.class_figures import ClassFigures, class_figures
from commonground.tasks.label_figures import LabelFigures
from commonground.tasks.ranking_scores import auc_of_bins, auc_of_sets, binned, log_odds


def of_one(y: Any, p: Any) -> dict[str, float]:
    found = class_figures(np.asarray(y), np.asarray(p), np.zeros(len(y), dtype=np.int64), 1)
    return {name: float(value[0]) for name, value in found.items()}


def softmax(x: Any) -> Any:
    e = np.exp(x)
    return e / e.sum(1, keepdims=True)


def test_two_classes_by_hand() -> None:
    second = np.array([0.1, 0.4, 0.6, 0.5])  # one of the first class is said to be of the second
    found = of_one([0, 0, 0, 1], np.stack([1 - second, second], axis=1))
    # A tie goes to the first class, so that the only one of the second is missed.
    assert found["balanced_accuracy"] == pytest.approx((2 / 3 + 0) / 2)
    assert found["f1"] == pytest.approx((2 * 2 / (3 + 3) + 0) / 2)
    assert found["auc"] == pytest.approx(2 / 3)  # two of three pairs are in order
    assert found["log_loss"] == pytest.approx(-sum(math.log(p) for p in (0.9, 0.6, 0.4, 0.5)) / 4)


def test_a_class_that_is_only_said_counts_in_f1() -> None:
    """As of scikit-learn: a client that lacks a class is wrong whenever its model says it."""
    second = np.array([0.1, 0.9, 0.8, 0.2])
    found = of_one([0, 0, 0, 0], np.stack([1 - second, second], axis=1))
    assert found["f1"] == pytest.approx((2 * 2 / (4 + 2) + 0) / 2)
    assert found["f1"] == pytest.approx(sklearn.f1_score([0, 0, 0, 0], [0, 1, 1, 0], average="macro"))
    assert found["balanced_accuracy"] == 0.5
    assert of_one([0, 0], np.array([[0.9, 0.1], [0.8, 0.2]]))["f1"] == 1.0  # neither there nor said


def test_calibration_by_hand() -> None:
    confident = np.array([[0.9, 0.1]] * 4 + [[0.42, 0.58]] * 2)
    # Four at 0.9, of which 3 are right; two at 0.58, both right.
    found = of_one([0, 0, 0, 1, 1, 1], confident)["calibration_error"]
    assert found == pytest.approx((4 * abs(0.75 - 0.9) + 2 * abs(1 - 0.58)) / 6)


def test_where_a_class_is_not_there() -> None:
    thirds = np.full((3, 3), 1 / 3)
    found = of_one([0, 0, 1], thirds)
    assert found["auc"] == 0.5  # of the two that are there
    assert found["balanced_accuracy"] == 0.5
    assert found["log_loss"] == pytest.approx(math.log(3))
    assert math.isnan(of_one([1, 1, 1], thirds)["auc"])
    assert of_one([0, 1, 2], np.eye(3) * 0.7 + 0.1)["auc"] == 1.0


@pytest.mark.parametrize("classes", [2, 4])
def test_sets_are_those_of_scikit_learn(classes: int) -> None:
    rng = np.random.default_rng(classes)
    p = np.tile(softmax(rng.normal(size=(40, classes))), (10, 1))  # so that there are ties
    y = np.concatenate([np.tile(np.arange(classes), 25), rng.integers(0, classes, 400 - 25 * classes)])
    owner = np.arange(400) % 5
    found = class_figures(y, p, owner, 5)
    for number in range(5):
        rows = owner == number
        own, said = p[rows], p[rows].argmax(1)
        assert found["balanced_accuracy"][number] == pytest.approx(sklearn.balanced_accuracy_score(y[rows], said))
        assert found["f1"][number] == pytest.approx(sklearn.f1_score(y[rows], said, average="macro"))
        assert found["log_loss"][number] == pytest.approx(sklearn.log_loss(y[rows], own))
        area = sklearn.roc_auc_score(y[rows], own[:, 1] if classes == 2 else own, multi_class="ovr")
        assert found["auc"][number] == pytest.approx(area, abs=1e-12)


@pytest.mark.parametrize("classes", [2, 4])
def test_sums_of_clients_are_the_figures_of_all_rows(classes: int) -> None:
    """Exactly, but for the area under the curve, which lies within what is said."""
    rng = np.random.default_rng(7)
    output = torch.from_numpy(rng.normal(size=(600, classes)) * 2)
    y = rng.integers(0, classes, 600)
    output[np.arange(600), y] += 1.0
    kind = ClassFigures()
    rows = kind.of_rows(output, torch.from_numpy(y))
    owner = rng.integers(0, 7, 600)
    parts = []
    for client in range(7):
        own = {name: value[owner == client] for name, value in rows.items()}
        parts.append(kind.told(own, np.zeros(int((owner == client).sum()), dtype=np.int64), 1)[1])
    counts = {name: np.sum([part[name] for part in parts], axis=0) for name in parts[0]}
    found, whole = kind.of_counts(counts), of_one(y, rows["p"])
    within = kind.within(counts)["auc"]
    assert abs(found.pop("auc") - whole.pop("auc")) <= min(within, 1e-4)
    assert within < 0.005
    assert found == pytest.approx(whole, abs=1e-12)
    for name, bounds in kind.bounds(classes).items():
        assert counts[name].shape == bounds.shape


def test_bins_of_scores_that_are_all_equal_are_ties() -> None:
    positive = np.array([[True], [False], [False]])
    assert auc_of_bins(binned(np.zeros((3, 1)), positive)) == (0.5, 0.5)
    assert math.isnan(auc_of_bins(binned(np.zeros((1, 1)), positive[:1]))[0])


def test_scores_that_differ_by_rounding_alone_are_ties() -> None:
    """Or a client would fare otherwise in another engine."""
    scores = log_odds(np.array([0.3, 0.3 + 1e-9]))
    assert auc_of_sets(scores, np.array([False, True]), np.zeros(2, dtype=np.int64), 1)[0] == 0.5
    assert np.isfinite(log_odds(np.array([0.0, 1.0]))).all()


def test_labels_are_those_of_scikit_learn() -> None:
    rng = np.random.default_rng(3)
    output = rng.normal(size=(300, 3))
    y = (rng.random((300, 3)) < [0.5, 0.1, 0.3]).astype(float)
    rows = LabelFigures().of_rows(torch.from_numpy(output), torch.from_numpy(y))
    owner = np.arange(300) % 2
    found, counts = LabelFigures().told(rows, owner, 2)
    for number in range(2):
        p, own = rows["p"][owner == number], y[owner == number]
        assert found["macro_f1"][number] == pytest.approx(sklearn.f1_score(own, p >= 0.5, average="macro"))
        assert found["auc"][number] == pytest.approx(sklearn.roc_auc_score(own, p))
        each = [sklearn.log_loss(own[:, label], p[:, label]) for label in range(3)]
        assert found["log_loss"][number] == pytest.approx(np.mean(each))
    whole = LabelFigures().told(rows, np.zeros(300, dtype=np.int64), 1)[0]
    pooled = LabelFigures().of_counts(counts)
    assert pooled.pop("auc") == pytest.approx(float(whole.pop("auc")[0]), abs=1e-3)
    assert pooled == pytest.approx({name: float(value[0]) for name, value in whole.items()}, abs=1e-12)
    assert MultiLabel().figures == ("f1", "label_accuracy", "subset_accuracy", *LabelFigures.names)


def test_perplexity_counts_tokens() -> None:
    """Two answers of one and three tokens over a vocabulary of two, the second one half certain."""
    sure, half = [math.log(0.9), math.log(0.1)], [0.0, 0.0]
    output = torch.tensor([[sure, half, half], [half, half, half]], dtype=torch.double)
    y = torch.tensor([[0, -1, -1], [0, 1, 0]])
    kind = AnswerTokens().fine
    found, counts = kind.told(kind.of_rows(output, y), np.array([0, 1]), 2)
    np.testing.assert_allclose(found["perplexity"], [1 / 0.9, 2.0])
    np.testing.assert_allclose(found["token_accuracy"], [1.0, 2 / 3])
    assert kind.of_counts(counts)["perplexity"] == pytest.approx(math.exp((3 * math.log(2) - math.log(0.9)) / 4))


@pytest.mark.parametrize("mirrored", [False, True])
def test_confident_models_rank_as_their_outputs_do(mirrored: bool) -> None:
    """Also where a probability is 1 in all its digits, and whichever of two classes is the second."""
    margin = np.array([36.0, 37.0, 38.0, 39.0, 40.0])
    output = torch.from_numpy(np.stack([np.zeros(5), margin], axis=1))
    y = np.array([0, 0, 1, 1, 1])
    rows = ClassFigures().of_rows(output.flip(1) if mirrored else output, torch.from_numpy(1 - y if mirrored else y))
    assert of_one(rows["y"], rows["p"])["auc"] == 1.0
    three = torch.cat([output, torch.full((5, 1), -50.0, dtype=torch.float64)], dim=1)
    assert of_one(y, ClassFigures().of_rows(three, torch.from_numpy(y))["p"])["auc"] == 1.0

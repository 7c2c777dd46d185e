"""Figures of classes, against numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from commonground.tasks.figures import calibration_error, class_figures


def test_two_classes_by_hand() -> None:
    y = np.array([0, 0, 0, 1])
    second = np.array([0.1, 0.4, 0.6, 0.5])  # one of the first class is said to be of the second
    found = class_figures(y, np.stack([1 - second, second], axis=1))
    # A tie goes to the first class, so that the only one of the second is missed.
    assert found["balanced_accuracy"] == pytest.approx((2 / 3 + 0) / 2)
    assert found["f1"] == pytest.approx((2 * 2 / (3 + 3) + 0) / 2)
    assert found["auc"] == pytest.approx(2 / 3)  # two of three pairs are in order
    assert found["log_loss"] == pytest.approx(-sum(math.log(p) for p in (0.9, 0.6, 0.4, 0.5)) / 4)


def test_calibration_by_hand() -> None:
    confident = np.array([[0.9, 0.1]] * 4 + [[0.42, 0.58]] * 2)
    y = np.array([0, 0, 0, 1, 1, 1])
    # Four at 0.9, of which 3 are right; two at 0.58, both right.
    assert calibration_error(y, confident) == pytest.approx((4 * abs(0.75 - 0.9) + 2 * abs(1 - 0.58)) / 6)


def test_where_a_class_is_not_there() -> None:
    thirds = np.full((3, 3), 1 / 3)
    found = class_figures(np.array([0, 0, 1]), thirds)
    assert math.isnan(found["auc"])
    assert found["balanced_accuracy"] == 0.5
    assert found["log_loss"] == pytest.approx(math.log(3))
    three = np.eye(3) * 0.7 + 0.1
    assert class_figures(np.array([0, 1, 2]), three)["auc"] == 1.0

"""scikit-learn's own checks of estimators."""

from __future__ import annotations

from typing import Any

from sklearn.utils.estimator_checks import parametrize_with_checks

from commonground.sklearn import FederatedClassifier, FederatedRegressor

# float64, because check_methods_subset_invariance wants answers of single rows and of many equal to 1e-7, which
# float32 products are not; test_estimators.py bounds the difference there.
COMMON: dict[str, Any] = {
    "rounds": 5,
    "local_epochs": 2,
    "model_options": {"hidden": 16},
    "settings": {"dtype": "float64"},
    "random_state": 0,
}
ESTIMATORS = [
    FederatedClassifier("fedrep", options={"head_epochs": 2}, **COMMON),
    FederatedRegressor("fedavg", **COMMON),
]

EXPECTED_FAILURES: dict[str, str] = {}
"""Checks that cannot hold, each with its reason; there is none."""


@parametrize_with_checks(ESTIMATORS, expected_failed_checks=lambda estimator: EXPECTED_FAILURES)
def test_estimators_pass(estimator: Any, check: Any) -> None:
    check(estimator)

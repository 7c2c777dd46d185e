"""The estimators: classes and numbers."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from commonground.sklearn.base import FederatedEstimator
from commonground.sklearn.rows import InputError
from commonground.tasks import CLASSIFICATION, Regression

__all__ = ["FederatedClassifier", "FederatedRegressor"]

Labels = npt.NDArray[Any]


class FederatedClassifier(ClassifierMixin, FederatedEstimator):
    """A classifier for every client; parameters and attributes are those of
    :class:`~commonground.sklearn.base.FederatedEstimator`. Rare classes: ``settings={"class_weights": "balanced"}``.

    Attributes:
        classes_: labels, sorted.
    """

    __metadata_request__predict_proba: ClassVar = {"groups": True}

    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:
        """Train.

        Args:
            X: [rows, columns] numbers, an array or a DataFrame; images [rows, height, width, channels].
            y: [rows] labels.
            groups: [rows] each row's client, a number or a text.

        Raises:
            ValueError: rows, labels or clients that cannot be used.
            ConfigError: a parameter that is none.
        """
        X, y, clients = self._rows(X, y, groups, fitting=True)
        check_classification_targets(y)
        self.classes_, code = np.unique(column_or_1d(y, warn=True), return_inverse=True)
        if len(self.classes_) == 1:
            raise InputError(f"all rows are of one class, '{self.classes_[0]}'; a classifier needs two")
        names = [str(label) for label in self.classes_]
        return self._train(X, code, clients, len(names), CLASSIFICATION, class_names=names, counted_classes=True)

    def predict(self, X: Any, groups: Any = None) -> Labels:
        """Each row's most probable label [rows], by its client's own model; arguments as of :meth:`fit`."""
        chosen: Labels = self._answers(X, groups).argmax(1)
        labels: Labels = self.classes_[chosen]
        return labels

    def predict_proba(self, X: Any, groups: Any = None) -> npt.NDArray[np.float64]:
        """Each row's probability of every class [rows, classes], in the order of ``classes_``."""
        return self._answers(X, groups)

    def score(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> float:
        """The accuracy of :meth:`predict`."""
        return float(accuracy_score(y, self.predict(X, groups), sample_weight=sample_weight))


class FederatedRegressor(RegressorMixin, FederatedEstimator):
    """A regressor for every client; parameters and attributes are those of
    :class:`~commonground.sklearn.base.FederatedEstimator`.

    Targets are standardised by the mean and deviation of all clients' rows together, and predicted in their own units.
    """

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn should know of it."""
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:
        """Train; y is [rows] or [rows, targets] numbers, the rest as of :meth:`FederatedClassifier.fit`."""
        X, y, clients = self._rows(X, y, groups, fitting=True, y_numeric=True, multi_output=True)
        y = np.asarray(y, dtype=np.float64)
        self._flat = y.ndim == 1
        task = Regression.standardised(y)
        targets = task.targets(y, "y")
        names = [f"target {number}" for number in range(targets.shape[1])]
        return self._train(X, targets, clients, len(names), task, class_names=names)

    def predict(self, X: Any, groups: Any = None) -> npt.NDArray[np.float64]:
        """Each row's number [rows] (or numbers [rows, targets]), by its client's own model."""
        said = self._answers(X, groups)
        return said[:, 0] if self._flat else said

    def score(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> float:
        """R² of :meth:`predict`."""
        return float(r2_score(y, self.predict(X, groups), sample_weight=sample_weight))

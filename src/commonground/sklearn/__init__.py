"""Federated models as estimators of scikit-learn: in pipelines, searches and cross-validation like any other.

``from commonground.sklearn import FederatedClassifier, FederatedRegressor``
"""

from commonground.sklearn.estimators import FederatedClassifier, FederatedRegressor

__all__ = ["FederatedClassifier", "FederatedRegressor"]

"""Federated estimators: whose model answers, and the tools of scikit-learn around them."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.model_selection import GridSearchCV, GroupKFold, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import commonground as cg
from commonground.errors import ConfigError, DataError
from commonground.sklearn import FederatedClassifier, FederatedRegressor
from commonground.sklearn.rows import client_names

QUICK: dict[str, Any] = {"rounds": 4, "model_options": {"hidden": 8}, "random_state": 3}


@cache
def problem(clients: int = 3, rows: int = 40) -> tuple[Any, Any, Any]:
    """Rows of clients who disagree: client c's label is the sign of the first column, turned round for odd c."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(clients * rows, 4)) * [1, 10, 0.1, 1] + [0, 100, 0, 5]
    groups = np.array([f"client-{c}" for c in range(clients)]).repeat(rows)
    turned = np.arange(clients).repeat(rows) % 2
    return X, np.where((X[:, 0] > 0) ^ (turned == 1), "yes", "no"), groups


def frame() -> tuple[Any, Any, Any]:
    X, y, groups = problem()
    table = pd.DataFrame(X, columns=list("abcd"))
    table.insert(1, "customer", groups)
    return table, y, groups


@pytest.fixture
def routing() -> Iterator[None]:
    with sklearn.config_context(enable_metadata_routing=True):
        yield


# -- whose model answers ----------------------------------------------------------------------------------------------


def test_a_known_client_is_answered_by_its_own_model() -> None:
    """Clients who contradict each other are all served, which one model for all cannot."""
    X, y, groups = problem()
    own = FederatedClassifier("fedrep", **QUICK | {"rounds": 15}).fit(X, y, groups)
    assert own.score(X, y, groups=groups) > 0.9
    wrong = np.where(groups == "client-0", "client-1", "client-0")[:40]
    assert own.score(X[:40], y[:40], groups=wrong) < 0.3  # client 0's rows, answered by who says the opposite
    mixed = np.random.default_rng(1).permutation(len(X))
    np.testing.assert_array_equal(own.predict(X[mixed], groups[mixed]), own.predict(X, groups)[mixed])
    assert own.classes_.tolist() == ["no", "yes"]
    assert own.clients_.tolist() == ["client-0", "client-1", "client-2"]
    assert len(own.loss_curve_) == own.n_iter_ == 15


def test_unknown_clients_are_answered_by_the_shared_model() -> None:
    X, y, groups = problem()
    fitted = FederatedClassifier("fedavg", **QUICK).fit(X, y, groups)
    new = np.full(len(X), "somebody")
    np.testing.assert_array_equal(fitted.predict_proba(X, new), fitted.run_.predict(X))
    with pytest.warns(UserWarning, match="nobody says which client the rows are of; the global model answers"):
        np.testing.assert_array_equal(fitted.predict_proba(X), fitted.run_.predict(X))
    with pytest.warns(UserWarning, match="nobody says which client") as heard:
        fitted.score(X, y)
    assert heard[0].filename == __file__  # the caller's line, and none of the package
    half = np.where(np.arange(len(X)) < 40, "somebody", groups)
    np.testing.assert_allclose(fitted.predict_proba(X, half)[:40], fitted.run_.predict(X[:40]), rtol=1e-5)


def test_without_a_shared_model_by_the_mean_of_all_clients() -> None:
    X, y, groups = problem()
    fitted = FederatedClassifier("fedrep", **QUICK).fit(X, y, groups)
    mean = np.mean([fitted.run_.predict(X, client=name) for name in fitted.clients_], axis=0)
    np.testing.assert_allclose(fitted.predict_proba(X, np.full(len(X), "new")), mean, rtol=1e-6)
    with pytest.warns(UserWarning, match="the mean of all clients' models answers: give groups="):
        np.testing.assert_allclose(fitted.predict_proba(X), mean, rtol=1e-6)
    refusing = FederatedClassifier("fedrep", unknown="refuse", **QUICK).fit(X, y, groups)
    with pytest.raises(DataError, match="the client 'new' is not among the 3 that were fitted"):
        refusing.predict(X, np.full(len(X), "new"))
    for ask in (lambda: refusing.predict(X), lambda: refusing.score(X, y)):
        with pytest.raises(DataError, match="nobody says which of the 3 clients the rows are of; give groups="):
            ask()


def test_models_before_their_last_training_are_told() -> None:
    X, y, groups = problem()
    with pytest.warns(
        UserWarning, match="PerFedAvg trains each client's model once more before a test and forgets that"
    ):
        FederatedClassifier("perfedavg", **QUICK).fit(X, y, groups)


def test_it_is_the_run_that_train_makes() -> None:
    """Same seed, same rows, same settings: the same weights."""
    X, y, groups = problem()
    fitted = FederatedClassifier("fedper", standardize=False, **QUICK).fit(X, y, groups)
    parts = [(X[groups == c], (y[groups == c] == "yes").astype(int)) for c in np.unique(groups)]
    data = cg.FederatedDataset.from_arrays([(*part, *part) for part in parts], client_names=list(fitted.clients_))
    run = cg.train("fedper", data, rounds=4, model_options={"hidden": 8}, seed=3, eval_every=4)
    assert fitted.run_.summary["weights_sha256"] == run.summary["weights_sha256"]
    assert fitted.loss_curve_ == [row["train_loss"] for row in run.history]


def test_single_rows_are_answered_like_many() -> None:
    X, y, groups = problem()
    fitted = FederatedClassifier("fedrep", **QUICK).fit(X, y, groups)
    alone = np.concatenate([fitted.predict_proba(X[i : i + 1], groups[i : i + 1]) for i in range(0, len(X), 9)])
    np.testing.assert_allclose(alone, fitted.predict_proba(X, groups)[::9], atol=1e-5)


# -- regression -------------------------------------------------------------------------------------------------------


def test_numbers_in_their_own_units() -> None:
    X, _, groups = problem()
    slope = np.where(groups == "client-1", -1.0, 1.0)
    y = 1000 + 50 * slope * X[:, 0]
    fitted = FederatedRegressor("fedrep", **QUICK | {"rounds": 20}).fit(X, y, groups)
    assert fitted.score(X, y, groups=groups) > 0.8
    assert fitted.predict(X, groups).shape == (len(X),)
    assert abs(fitted.predict(X, groups).mean() - 1000) < 20
    both = FederatedRegressor("fedavg", **QUICK).fit(X, np.stack([y, -y], axis=1), groups)
    assert both.predict(X, groups).shape == (len(X), 2)


# -- scikit-learn's tools ---------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("routing")
def test_groups_are_routed_through_pipelines_searches_and_splitters() -> None:
    X, y, groups = problem()
    model = FederatedClassifier("fedrep", **QUICK)
    whole = make_pipeline(StandardScaler(), model).fit(X, y, groups=groups)
    assert whole[-1].clients_.tolist() == np.unique(groups).tolist()
    assert whole.predict_proba(X, groups=groups).shape == (len(X), 2)
    scores = cross_val_score(model, X, y, params={"groups": groups}, cv=GroupKFold(3))
    assert scores.shape == (3,)
    known = cross_val_score(
        FederatedClassifier("fedrep", **QUICK | {"rounds": 15}), X, y, params={"groups": groups},
        cv=KFold(2, shuffle=True, random_state=0),
    )  # fmt: skip
    assert known.min() > 0.8  # score was given the groups as well, or no model could serve all
    search = GridSearchCV(model, {"options__head_epochs": [1, 3], "lr": [0.01]}, cv=GroupKFold(3), refit=False)
    search.fit(X, y, groups=groups)
    assert {p["options__head_epochs"] for p in search.cv_results_["params"]} == {1, 3}
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


def test_a_client_column_needs_no_routing() -> None:
    table, y, groups = frame()
    X, _, _ = problem()
    by_column = FederatedClassifier("fedrep", client_column="customer", **QUICK).fit(table, y)
    by_groups = FederatedClassifier("fedrep", **QUICK).fit(X, y, groups)
    assert by_column.run_.summary["weights_sha256"] == by_groups.run_.summary["weights_sha256"]
    assert by_column.n_features_in_ == 5
    assert by_column.feature_names_in_.tolist() == ["a", "customer", "b", "c", "d"]
    np.testing.assert_array_equal(by_column.predict_proba(table), by_groups.predict_proba(X, groups))
    scores = cross_val_score(clone(by_column), table, y, groups=groups, cv=GroupKFold(3))
    assert scores.shape == (3,)
    numbered = np.column_stack([X, np.arange(3).repeat(40)])
    by_number = FederatedClassifier("fedrep", client_column=-1, **QUICK).fit(numbered, y)
    assert by_number.clients_.tolist() == ["0", "1", "2"]
    with pytest.raises(ValueError, match=r"feature names should match"):
        by_column.predict(table[["a", "b", "customer", "c", "d"]])
    with pytest.raises(DataError, match="there is no client column 'costumer'; the columns are a, customer, b, c, d"):
        FederatedClassifier(client_column="costumer", **QUICK).fit(table, y)


def test_clients_that_are_said_in_two_ways_must_be_the_same() -> None:
    X = np.column_stack([np.repeat([7, 8], 30), np.random.default_rng(0).normal(size=(60, 2))])
    y = (X[:, 1] > 0).astype(int)
    model = FederatedClassifier("fedrep", client_column=0, rounds=1, random_state=0)
    same = model.fit(X, y, groups=["7"] * 30 + ["8"] * 30).predict_proba(X)
    np.testing.assert_array_equal(model.fit(X, y).predict_proba(X), same)
    with pytest.raises(ValueError, match="row 30 belongs to '8' by client_column and to '9' by groups; give one of"):
        model.fit(X, y, groups=[7] * 30 + [9] * 30)
    with pytest.raises(ValueError, match="row 0 belongs to '7' by client_column and to '8' by groups; give one of"):
        model.predict(X, groups=[8] * 60)


def test_categories_are_encoded_by_a_pipeline() -> None:
    table, y, groups = frame()
    table["d"] = np.where(table["d"] > 5, "high", "low")
    encode = make_column_transformer(
        (OneHotEncoder(sparse_output=False), ["d"]), remainder="passthrough", verbose_feature_names_out=False
    ).set_output(transform="pandas")
    model = make_pipeline(encode, FederatedClassifier("fedavg", client_column="customer", **QUICK)).fit(table, y)
    assert model[-1].clients_.tolist() == np.unique(groups).tolist()
    assert {"d_high", "d_low", "customer"} < set(model[-1].feature_names_in_)
    assert model.predict(table).shape == (len(table),)


# -- parameters -------------------------------------------------------------------------------------------------------


def test_settings_of_a_method_are_parameters() -> None:
    model = FederatedClassifier("fedrep", options={"head_epochs": 3}, model_options={"hidden": 8})
    assert model.get_params()["options__head_epochs"] == 3
    twin = clone(model).set_params(options__head_epochs=5, options__body_epochs=2, rounds=2)
    assert (twin.options, model.options) == ({"head_epochs": 5, "body_epochs": 2}, {"head_epochs": 3})
    assert twin.rounds == 2
    twin.set_params(settings__class_weights="balanced")
    assert (twin.get_params()["settings__class_weights"], model.settings) == ("balanced", None)
    X, y, groups = problem()
    assert twin.fit(X, y, groups).run_.config.class_weights == "balanced"
    assert twin.run_.config.options == {"head_epochs": 5, "body_epochs": 2}


def test_random_state() -> None:
    X, y, groups = problem()

    def weights(random_state: Any) -> str:
        fitted = FederatedClassifier("fedper", **QUICK | {"random_state": random_state, "rounds": 1}).fit(X, y, groups)
        return str(fitted.run_.summary["weights_sha256"])

    assert weights(1) == weights(1) != weights(2)
    assert weights(np.random.RandomState(5)) == weights(np.random.RandomState(5))
    assert weights(None) != weights(None)


def test_what_is_fitted_can_be_pickled_and_keeps_answering() -> None:
    X, y, groups = problem()
    for algorithm in ("fedrep", "fedavg", "ditto"):
        fitted = FederatedClassifier(algorithm, **QUICK).fit(X, y, groups)
        again = pickle.loads(pickle.dumps(fitted))
        np.testing.assert_array_equal(again.predict_proba(X, groups), fitted.predict_proba(X, groups))
        assert again.run_.summary == fitted.run_.summary


def test_early_stopping_and_callbacks() -> None:
    X, y, groups = problem()
    heard: list[int] = []

    def hear(row: dict[str, Any]) -> bool:
        heard.append(row["round"])
        return len(heard) < 2

    stopped = FederatedClassifier("fedavg", on_round=hear, **QUICK)
    assert stopped.fit(X, y, groups).n_iter_ == 2
    assert heard == [1, 2]
    early = FederatedClassifier("fedavg", validation_fraction=0.2, early_stopping=1, **QUICK | {"rounds": 30})
    assert early.fit(X, y, groups).n_iter_ < 30
    assert early.predict(X, groups).shape == (len(X),)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"algorithm": "fedrpe"}, r"did you mean 'fedrep'\?"),
        ({"options": {"head_epoch": 3}}, r"did you mean 'head_epochs'\?"),
        ({"settings": {"lr": 0.1}}, "'lr' in settings is a parameter of the estimator"),
        ({"settings": {"data": "digits"}}, "'data' is no setting of an estimator"),
        ({"settings": {"batch_nrom": "local"}}, r"did you mean 'batch_norm'\?"),
        ({"unknown": "guess"}, "unknown is 'guess'; rows of unknown clients are 'shared' or 'refuse'"),
    ],
)
def test_parameters_that_are_none(given: dict[str, Any], said: str) -> None:
    X, y, groups = problem()
    with pytest.raises(ConfigError, match=said):
        FederatedClassifier(**QUICK | given).fit(X, y, groups)


def test_rows_that_cannot_be_used() -> None:
    X, y, groups = problem()
    model = FederatedClassifier(**QUICK)
    with pytest.raises(ValueError, match=r"groups has the shape \(5,\), and there are 120 rows"):
        model.fit(X, y, groups[:5])
    with pytest.raises(ValueError, match="row 2 has no client"):
        model.fit(X, y, [*groups[:2], None, *groups[3:]])
    with pytest.raises(ValueError, match="row 2 has no client"):
        model.fit(X, y, [*map(str, groups[:2]), np.nan, *map(str, groups[3:])])
    with pytest.raises(ValueError, match="all rows are of one class, 'yes'"):
        model.fit(X, np.full(len(X), "yes"), groups)


@pytest.mark.parametrize("algorithm", ["l2gd", "ditto", "fedrep"])
def test_rows_of_the_only_client_are_answered_by_its_own_model(algorithm: str) -> None:
    """Which is another one than the global model of these methods."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 4))
    y = (X @ [1.0, 2.0, -1.0, 0.5] > 0).astype(int)
    model = FederatedClassifier(algorithm, rounds=4, random_state=0).fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        said = model.predict_proba(X)
    np.testing.assert_array_equal(said, model.predict_proba(X, groups=["all"] * 120))
    assert model.score(X, y) == pytest.approx(model.run_.summary["personal_accuracy"]["mean"])


def test_a_moment_is_one_client_in_whatever_resolution() -> None:
    days = pd.to_datetime(["2024-01-01", "2024-01-02", "2024-01-01"])
    wanted = ["2024-01-01 00:00:00", "2024-01-02 00:00:00"]
    whole = [np.asarray(days).astype(f"datetime64[{unit}]") for unit in ("ns", "us", "s", "D")]
    for groups in (*whole, np.asarray(days.astype(object)), np.array([day.to_pydatetime() for day in days])):
        names, number = client_names(groups, 3)
        assert names == wanted
        assert number.tolist() == [0, 1, 0]
    single = np.array([np.float32(7), np.float32(8), np.float32(7)], dtype=object)
    assert client_names(single, 3)[0] == ["7", "8"]


def test_a_client_is_known_by_its_text() -> None:
    for groups in ([7, 10, 7], [7.0, 10.0, 7.0], ["7", "10", "7"], np.array([7, "10", "7"], dtype=object)):
        names, number = client_names(groups, 3)
        assert (names, number.tolist()) == (["10", "7"], [1, 0, 1])


def test_targets_beyond_single_precision_are_no_divergence() -> None:
    x = np.random.default_rng(0).normal(size=(40, 3))
    plain, near, beyond = (FederatedRegressor("fedavg", rounds=9, random_state=0) for _ in range(3))
    learnt = plain.fit(x, x[:, 0]).predict(x)
    for scale, model in ((1e37, near), (1e39, beyond)):  # their mean is taken off, and what is learnt divided
        np.testing.assert_allclose(model.fit(x, scale * x[:, 0]).predict(x) / scale, learnt, atol=1e-4)
    y = 1e39 * x[:, :1]
    data = cg.FederatedDataset.from_arrays([(x[:30], y[:30], x[30:], y[30:])] * 2, task=cg.Regression())
    with pytest.raises(DataError, match="a target is beyond what float32 holds; divide all by a number, or choose"):
        cg.train("fedavg", data, rounds=1)  # here nothing is

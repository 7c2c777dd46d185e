"""Aggregates by hand, what false updates do to them, and in every engine."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from commonground import load_data, train
from commonground.aggregation import aggregates, parse_aggregate
from commonground.algorithms import Server, Update, registry
from commonground.algorithms.fedrep import FedRep
from commonground.cli import main
from commonground.data import FederatedDataset
from commonground.errors import CommonGroundError, ConfigError

ROBUST = ["median", "trimmed:0.25", "krum:2", "multi-krum:2:4", "bulyan:2"]
EVERY = ["mean", *ROBUST, "clip:0.5"]


def combine(text: str, *rows: list[float], center: list[float] | None = None) -> list[float]:
    updates = [{"a": torch.tensor(row)} for row in rows]
    weights = [1 / len(rows)] * len(rows)
    made = parse_aggregate(text)(updates, weights, {} if center is None else {"a": torch.tensor(center)})
    return made["a"].tolist()


# -- by hand ----------------------------------------------------------------------------------------------------------


def test_mean_median_and_trimmed_mean_by_hand() -> None:
    rows = [[1.0, 50.0], [2.0, 40.0], [9.0, 0.0], [4.0, 10.0]]
    assert combine("mean", *rows) == [4.0, 25.0]
    assert combine("median", *rows) == [3.0, 25.0]
    assert combine("median", *rows[:3]) == [2.0, 40.0]
    assert combine("trimmed:0.25", *rows) == [3.0, 25.0]  # 1 and 9, 50 and 0 are left out
    assert combine("trimmed:0.24", *rows) == [4.0, 25.0]  # ⌊0.96⌋ = 0
    assert combine("trimmed:0", *rows) == [4.0, 25.0]


def test_krum_by_hand() -> None:
    """n = 5, f = 1: scores are sums over the 2 nearest others. On a line at 0, 1, 3, 4.5, 100 they are

    1 + 9, 1 + 4, 2.25 + 4, 2.25 + 12.25 and 95.5² + 97².
    """
    rows = [[0.0], [1.0], [3.0], [4.5], [100.0]]
    assert combine("krum:1", *rows) == [1.0]
    assert combine("multi-krum:1:2", *rows) == [2.0]  # 1 and 3
    assert combine("multi-krum:1:3", *rows) == pytest.approx([4 / 3])  # and 0


def test_bulyan_by_hand() -> None:
    """n = 7, f = 1: θ = 5 are selected, and the θ − 2 = 3 values nearest to their median averaged.

    Of 0, 1, 2, 3, 4, 50, −60 Krum (4 nearest others) first takes 2, whose score is 1 + 1 + 4 + 4, then by 3 nearest
    others of 0, 1, 3, 4 and the outliers 1 or 3, and never an outlier while three others are left: 0 to 4 are
    selected, their median is 2, and the three nearest are 1, 2, 3.
    """
    assert combine("bulyan:1", [0.0], [50.0], [1.0], [2.0], [-60.0], [3.0], [4.0]) == [2.0]


def test_clipping_by_hand() -> None:
    """Around (1, 1): the change (3, 4) of length 5 becomes (0.6, 0.8); (0.3, 0.4) stays."""
    assert combine("clip:1", [4.0, 5.0], [1.3, 1.4], center=[1.0, 1.0]) == pytest.approx([1.45, 1.6])
    assert combine("clip:1", [3.0, 4.0], [0.0, 0.0]) == pytest.approx([0.3, 0.4])  # around nothing
    assert combine("clip:1", [1e30, 0.0], [0.0, 0.0]) == pytest.approx([0.5, 0.0])


# -- what holds of them -----------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    text=st.sampled_from(ROBUST),
    seed=st.integers(0, 10**6),
    false=st.sampled_from([1e30, -1e30, 1e4, -3e38]),
)
def test_two_false_updates_of_eleven_stay_within_the_true_ones(text: str, seed: int, false: float) -> None:
    rng = np.random.default_rng(seed)
    true = [{"a": torch.tensor(rng.normal(size=3), dtype=torch.float32)} for _ in range(9)]
    updates = [*true, {"a": torch.full((3,), false)}, {"a": torch.full((3,), false)}]
    order = rng.permutation(11)
    made = parse_aggregate(text)([updates[i] for i in order], [1 / 11] * 11, {})["a"]
    lowest = torch.stack([u["a"] for u in true]).amin(0)
    highest = torch.stack([u["a"] for u in true]).amax(0)
    assert ((made >= lowest - 1e-6) & (made <= highest + 1e-6)).all()


@pytest.mark.parametrize("text", EVERY)
def test_equal_updates_are_their_aggregate_whatever_the_order(text: str) -> None:
    one = {"a": torch.tensor([1.0, -2.0]), "b": torch.tensor([[0.25]])}
    start = {name: value - 0.1 for name, value in one.items()}
    made = parse_aggregate(text)([one] * 11, [1 / 11] * 11, start)
    assert all(torch.allclose(made[name], one[name]) for name in one)
    assert made.keys() == one.keys()
    rng = np.random.default_rng(1)
    rows = [rng.normal(size=2).tolist() for _ in range(11)]
    shuffled = [rows[i] for i in rng.permutation(11)]
    assert combine(text, *rows) == pytest.approx(combine(text, *shuffled), abs=1e-6)


# -- false clients ----------------------------------------------------------------------------------------------------

FALSE = (0, 5, 10, 15)  # of 20: a fifth
DATA: dict[str, Any] = {"clients": 20, "classes_per_client": 2}


@dataclass(frozen=True)
class Attacked(FedRep):
    """FedRep whose server hears something else from some clients than what they trained."""

    how: str = "sign"
    name = "attacked"
    title = "Attacked FedRep"

    def server_update(self, server: Server, updates: Sequence[Update], round: int) -> None:
        def lie(name: str, value: Tensor) -> Tensor:
            if self.how == "huge":
                return torch.full_like(value, 1e30)
            return server.shared[name] - 10 * (value - server.shared[name])

        heard = [
            replace(u, tensors={n: lie(n, v) for n, v in u.tensors.items()}) if u.client in FALSE else u
            for u in updates
        ]
        super().server_update(server, heard, round)


del registry["attacked"]  # no method of the library


def flipped() -> FederatedDataset:
    """Digits whose false clients have their labels turned round: 0 for 9, 1 for 8 …"""
    data = load_data("digits", **DATA, seed=3)
    rows = []
    for client in range(data.clients):
        train_rows, test_rows = data.train_indices(client), data.test_indices(client)
        y = data.y_train[train_rows]
        turned = 9 - y if client in FALSE else y
        rows.append((data.x_train[train_rows], turned, data.x_test[test_rows], data.y_test[test_rows]))
    return FederatedDataset.from_arrays(rows, classes=10, preprocess=data.preprocess, name="digits")


def honest_accuracy(how: str, aggregate: str) -> float:
    """Of the honest clients' own models after 20 rounds, in percent."""
    data = flipped() if how == "labels" else load_data("digits", **DATA, seed=3)
    method = FedRep() if how in ("labels", "none") else Attacked(how=how)
    run = train(method, data, rounds=20, seed=3, aggregate=aggregate, device="cpu", eval_every=20)
    return 100 * float(np.mean([c["personal_accuracy"] for i, c in enumerate(run.clients) if i not in FALSE]))


@pytest.fixture(scope="module")
def clean() -> float:
    return honest_accuracy("none", "mean")


@pytest.mark.parametrize("aggregate", ["median", "trimmed:0.2", "multi-krum:4:10", "bulyan:4"])
@pytest.mark.parametrize("how", ["sign", "huge", "labels"])
def test_a_fifth_of_false_clients_costs_the_others_little(how: str, aggregate: str, clean: float) -> None:
    assert honest_accuracy(how, aggregate) > clean - 3


@pytest.mark.parametrize("how", ["sign", "huge"])
def test_the_plain_mean_does_not_bear_them(how: str, clean: float) -> None:
    """Heads of their own save most of FedRep's accuracy on digits even on a body that was driven away."""
    try:
        found = honest_accuracy(how, "mean")
    except CommonGroundError:
        return  # what came of 1e30 could not be trained on
    assert found < clean - 3


# -- in a run ---------------------------------------------------------------------------------------------------------


@pytest.mark.engine
@pytest.mark.parametrize("aggregate", ["median", "trimmed:0.25", "krum:1", "bulyan:1", "clip:0.5"])
def test_every_engine_has_the_same_numbers(aggregate: str) -> None:
    def weights(**more: Any) -> str:
        made: dict[str, Any] = {
            "clients": 8,
            "classes_per_client": 2,
            "rounds": 2,
            "device": "cpu",
            "model_options": {"hidden": [8]},
        }
        return str(train("fedrep", "digits", **made, **more).summary["weights_sha256"])

    found = {weights(engine=engine, workers=2, aggregate=aggregate) for engine in ("serial", "processes", "messages")}
    assert len(found) == 1
    assert found != {weights()}


@pytest.mark.parametrize("method", sorted(registry))
def test_every_method_combines_so_or_says_why_not(method: str) -> None:
    cls = registry[method]
    made: dict[str, Any] = {"clients": 8, "classes_per_client": 2, "rounds": 1, "device": "cpu"}
    if method == "fedbn":
        made["model_options"] = {"norm": "layer"}
        made["options"] = {"layers": "all"}
    if cls.own_aggregate:
        said = f"--aggregate median takes the mean's place, and {cls.title} has none: {cls.own_aggregate}"
        if "aggregate" in dict(cls.unused):  # which a comparison leaves out
            said = f"--aggregate median says nothing to {cls.title}: {cls.own_aggregate}; leave it out"
        with pytest.raises(ConfigError, match=re.escape(said)):
            train(method, "digits", aggregate="median", **made)
    else:
        assert np.isfinite(train(method, "digits", aggregate="median", **made).personal["mean"])


def test_refusals(capsys: pytest.CaptureFixture[str]) -> None:
    for text, said in (
        ("medain", r"unknown aggregate 'medain' \(did you mean 'median'\?\)"),
        ("krum", "is not of the form krum:F"),
        ("krum:x", "is not of the form krum:F: 'x' is none"),
        ("krum:1_0", "is not of the form krum:F: '1_0' is none"),
        ("multi-krum:1", "is not of the form multi-krum:F:M"),
        ("trimmed:0.5", "must be at least 0 and less than 0.5"),
        ("trimmed:1e-320", "leaves out no update of any number of clients"),
        ("clip:0", "must be a positive number"),
        ("krum:-1", "must be at least 0"),
    ):
        with pytest.raises(ConfigError, match=said):
            parse_aggregate(text)
    base = ["train", "fedrep", "--clients", "6", "--classes-per-client", "2", "--rounds", "1", "--quiet"]
    assert main([*base, "--aggregate", "bulyan:1"]) == 2
    assert "needs at least 7 updates in a round, and 6 clients take part" in capsys.readouterr().err
    assert main([*base, "--aggregate", "trimmed:0.16"]) == 2  # ⌊0.96⌋ = 0
    said = "needs at least 7 updates in a round, and 6 clients take part; take more clients, or another"
    assert said in capsys.readouterr().err
    assert main([*base, "--aggregate", "trimmed:0.16", "--clients", "9", "--participation", "0.5"]) == 2
    assert "take a larger --participation, or another aggregate" in capsys.readouterr().err
    assert main(["compare", "fedrep", "fedper:aggregate=krum:9", *base[2:], "--no-local-only"]) == 2
    assert "FedPer (aggregate=krum:9): --aggregate krum:9 needs at least 21 updates" in capsys.readouterr().err
    for share, least in (("0", 1), ("0.1", 10), ("0.2", 5), ("0.29", 4), ("0.45", 3)):
        assert parse_aggregate(f"trimmed:{share}").least() == least
    assert main([*base, "--aggregate", "median", "--weighting", "samples"]) == 2
    assert "cannot weigh updates by samples" in capsys.readouterr().err
    assert main([*base, "--aggregate", "medain"]) == 2
    assert "did you mean 'median'" in capsys.readouterr().err


def test_each_says_where_it_is_from() -> None:
    for name, cls in aggregates.items():
        assert cls.source[-4:].isdigit(), name
        assert cls.source.split(",")[0] in str(cls.__doc__), name

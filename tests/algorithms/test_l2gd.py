"""L2GD by hand, in every engine."""

from __future__ import annotations

from typing import Any

import pytest

from commonground import train
from commonground.algorithms import make_algorithm
from commonground.errors import ConfigError
from commonground.keys import numpy_stream
from tests.algorithms.reference import (
    ALL,
    EPOCHS,
    SEED,
    SETTINGS,
    Weights,
    mean,
    network,
    plan_batches,
    problem,
    sgd,
    start,
)
from tests.helpers import (
    ENGINES,
    Whole,
    assert_same_run,
    assert_tensors_close,
    dropping_chain,
    made_data,
    normed,
    seeded,
    train_whole,
)

P, ALPHA, LAMBDA, N, ROUNDS = 0.5, 0.9, 0.8, 3, 12
AVERAGING = [numpy_stream(SEED, "coin", r).random() < P for r in range(1, ROUNDS + 1)]


def by_hand(share: float) -> tuple[Weights, list[Weights]]:
    """The last x̄ and every x_i."""
    data, x_bar = problem(), start()
    x = [start() for _ in range(N)]
    for round, averaging in enumerate(AVERAGING, start=1):
        if averaging:
            x_bar = mean(x, [1, 1, 1])
            x = [{n: (1 - share) * x_i[n] + share * x_bar[n] for n in ALL} for x_i in x]
        else:
            x = [sgd(x[i], ALL, plan_batches(data, i, round, 1, epochs=EPOCHS)) for i in range(N)]
    return x_bar, x


def test_the_coin_falls_both_ways() -> None:
    first = AVERAGING.index(False)
    assert AVERAGING[first:].count(True) > 1


@pytest.mark.parametrize("authors", [False, True])
@pytest.mark.parametrize("engine", ENGINES)
def test_rounds_by_hand(engine: str, authors: bool) -> None:
    p = 0.5 if authors else P
    options = {"p": p, "alpha": ALPHA, "strength": LAMBDA, "authors_code": authors}
    settings: dict[str, Any] = SETTINGS | {"engine": engine, "rounds": ROUNDS, "options": options}
    got = train_whole("l2gd", problem(), model=network(), **settings)
    x_bar, x = by_hand(ALPHA * LAMBDA / (N * (1 - p if authors else p)))
    assert_tensors_close(got.run.shared, x_bar, 1e-11)
    for mine, wanted in zip(got.personal, x, strict=True):
        assert_tensors_close(mine, {f"own/{n}": v for n, v in wanted.items()}, 1e-11)
    assert [row["bytes_up"] > 0 for row in got.run.history] == AVERAGING
    # The model is sent to each client once; then what it is told of the mean, which is as large.
    model = max(row["bytes_up"] for row in got.run.history)
    told = [model * averaging for averaging in AVERAGING]
    assert [row["bytes_down"] for row in got.run.history] == [told[0] + model, *told[1:]]


def test_the_factor_of_averaging() -> None:
    """αλ/(np) in the paper, αλ/(n(1 − p)) in the code of FedRep's authors; n = 2 models at 0 and 1, p = 0.8."""
    import torch

    from commonground.algorithms import Server, Update

    updates = [Update(i, 5, {"w": torch.tensor([float(i)])}) for i in range(2)]
    for authors, share in ((False, 0.25 / (2 * 0.8)), (True, 0.25 / (2 * 0.2))):
        algorithm = make_algorithm("l2gd", {"p": 0.8, "authors_code": authors})
        server = Server({"w": torch.zeros(1)}, clients=2)
        algorithm.server_update(server, updates, 1)
        replies = algorithm.replies(server, updates)
        assert server.shared["w"].item() == 0.5
        assert [replies[i]["own/w"].item() for i in range(2)] == pytest.approx([share / 2, 1 - share / 2])


def test_p_is_a_probability() -> None:
    with pytest.raises(ConfigError, match=r"'p' is 1\.5"):
        make_algorithm("l2gd", {"p": 1.5})


@pytest.mark.parametrize("model", [dropping_chain, normed])
@pytest.mark.parametrize("engine", ENGINES[1:])
def test_engines_agree(engine: str, model: Any) -> None:
    if model is normed and engine == "batched":
        pytest.skip("BatchNorm is refused there")

    def run(engine: str) -> Whole:
        return train_whole(
            "l2gd", made_data((6, 4, 8)), model=seeded(model), engine=engine, dtype="float64", rounds=5,
            options={"p": 0.5},
        )  # fmt: skip

    assert_same_run(run("serial"), run(engine), 1e-9 if engine == "batched" else 0.0)


def test_learns() -> None:
    """About three local rounds in 30."""
    run = train("l2gd", "digits", clients=20, classes_per_client=5, rounds=30, engine="batched", eval_every=30)
    assert run.personal_accuracy["mean"] > 0.3

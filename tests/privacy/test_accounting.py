"""ε against formulas of its own: exact for Gaussians, and between proven bounds with sampling."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from scipy.optimize import brentq
from scipy.stats import norm

from commonground import load_data, train
from commonground.config import RunConfig
from commonground.engine.prepare import prepare_setup
from commonground.engine.private.summary import privacy_summary
from commonground.errors import ConfigError
from commonground.privacy import CLIP, Budget, about_privacy, noise_for, usual_delta
from commonground.privacy.accounting import GAUSSIAN, RENYI


def exact(sensitivity: float, std: float, rounds: int, delta: float) -> float:
    """ε of Gaussian noise (Balle and Wang 2018, Theorem 8), T releases being one of √T times the sensitivity."""
    mu = math.sqrt(rounds) * sensitivity / std

    def excess(epsilon: float) -> float:
        return float(norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)) - delta

    return float(brentq(excess, 0, 60))


@pytest.mark.parametrize(("noise", "rounds", "delta"), [(4.64, 30, 0.0063), (1.0, 1, 1e-5), (20.0, 100, 1e-3)])
def test_a_replaced_client_moves_the_sum_by_twice_the_clip_norm(noise: float, rounds: int, delta: float) -> None:
    budget, clip = Budget(noise, rounds, 100, 100), 0.37
    epsilon, how = budget.epsilon(delta)
    assert epsilon == pytest.approx(exact(2 * clip, noise * clip, rounds, delta), rel=1e-6)
    assert budget.zero_out(delta) == pytest.approx(exact(clip, noise * clip, rounds, delta), rel=1e-6)
    assert how == GAUSSIAN


def test_sampling_lies_between_the_exact_bound_of_one_round_and_none_at_all() -> None:
    """Balle, Barthe, Gaboardi 2018, Theorem 9: a sampled round is (log(1 + q(e^ε − 1)), qδ)-private, and tight."""
    noise, q, delta = 2.0, 0.1, 1e-4
    found, how = Budget(noise, 1, 100, 10).epsilon(delta)
    tight = math.log1p(q * math.expm1(exact(2, noise, 1, delta / q)))
    assert how == RENYI
    assert tight < found < exact(2, noise, 1, delta)
    assert Budget(noise, 1, 100, 10).zero_out(delta) is None


def test_the_smaller_of_two_true_bounds_is_taken() -> None:
    half = Budget(4.0, 100, 100, 50)
    assert half.epsilon(1e-2) == Budget(4.0, 100, 100, 100).epsilon(1e-2)
    assert Budget(4.0, 100, 100, 10).epsilon(1e-2)[0] < half.epsilon(1e-2)[0] / 3


@pytest.mark.parametrize("participants", [10, 100])
@pytest.mark.parametrize("epsilon", [0.5, 8.0])
def test_noise_for_an_epsilon_is_enough_and_hardly_more(participants: int, epsilon: float) -> None:
    budget = Budget(1.0, 30, 100, participants)
    noise = noise_for(epsilon, 6.31e-3, budget)
    assert replace(budget, noise=noise).epsilon(6.31e-3)[0] <= epsilon
    assert replace(budget, noise=noise * 0.999).epsilon(6.31e-3)[0] > epsilon


def test_nothing_released_is_nothing_given_away() -> None:
    assert Budget(1.0, 0, 10, 10).epsilon(0.05)[0] == Budget(1.0, 0, 10, 10).zero_out(0.05) == 0.0
    assert usual_delta(100) == 0.00631


# -- of runs ----------------------------------------------------------------------------------------------------------

SMALL: dict[str, Any] = {
    "clients": 10, "classes_per_client": 3, "rounds": 3, "device": "cpu", "engine": "serial", "dp": "client",
    "dp_clip": 1.0, "model_options": {"hidden": [4]},
}  # fmt: skip


def private(method: str = "fedrep", **settings: Any) -> dict[str, Any]:
    found: dict[str, Any] = train(method, "digits", **SMALL | settings).summary["privacy"]
    return found


def test_a_run_tells_what_it_gave_away() -> None:
    told = private(dp_noise=2.0)
    delta = usual_delta(10)
    assert told["epsilon"] == pytest.approx(exact(2, 2.0, 3, delta), rel=1e-6)
    assert told["epsilon_zero_out"] == pytest.approx(exact(1, 2.0, 3, delta), rel=1e-6)
    assert told | {
        "level": "client", "where": "server", "delta": delta, "clip": 1.0, "noise": 2.0, "sampling": "all clients",
        "rounds": 3, "clients": 10, "participants": 10, "accountant": GAUSSIAN, "noise_from": "seed",
        "neighbours": "all data of one client replaced", "hidden_from": "everyone but the server",
    } == told  # fmt: skip
    assert about_privacy(told).startswith(f"ε {told['epsilon']:.2f} at δ 0.079 for all data of one client, against")


def test_who_sends_zero_moves_the_number_within_the_clip_by_one() -> None:
    """Each round tells the changes with z_Δ, and with σ_b = max(n/20, Z) the number within C, which is 0 or 1 each."""
    told = private(dp_noise=2.0, dp_adaptive_clip=0.5)
    on_changes, on_number = told["noise_on_changes"], 2.0
    assert on_changes == pytest.approx((1 / 4 - 1 / 16) ** -0.5)
    both = (on_changes**-2 + on_number**-2) ** -0.5
    assert told["epsilon_zero_out"] == pytest.approx(exact(1, both, 3, usual_delta(10)), rel=1e-6)
    assert told["epsilon_zero_out"] > 1.5 * private(dp_noise=2.0)["epsilon_zero_out"]
    assert told["epsilon"] == private(dp_noise=2.0)["epsilon"]


def test_where_clients_are_absent_the_noise_on_their_number_is_that_of_the_fewest() -> None:
    config = RunConfig.make(SMALL | {"algorithm": "fedavg", "dp_noise": 0.25, "dp_adaptive_clip": 0.5})
    setup = prepare_setup(config, load_data("digits", clients=10, classes_per_client=3))
    shared = {CLIP: torch.tensor(0.1)}

    def zero_out(came: list[int]) -> float:
        return float(privacy_summary(setup, 3, shared, {}, came)["privacy"]["epsilon_zero_out"])

    def by_hand(fewest: int) -> float:
        on_number = max(fewest / 20, 0.25)
        on_changes = (0.25**-2 - (2 * on_number) ** -2) ** -0.5
        return exact(1, (on_changes**-2 + on_number**-2) ** -0.5, 3, usual_delta(10))

    assert zero_out([10, 10, 10]) == zero_out([]) == pytest.approx(by_hand(10), rel=1e-6)
    assert zero_out([10, 7, 9]) == pytest.approx(by_hand(7), rel=1e-6)
    assert by_hand(7) > 1.1 * by_hand(10)
    # Of a round that was repeated nobody knows how many had come at first.
    told = privacy_summary(setup, 3, shared, {2: 2}, [10, 10, 10])["privacy"]
    assert told["noise_on_changes"] == pytest.approx((0.25**-2 - 0.5**-2) ** -0.5)


def test_noise_that_can_be_subtracted_is_said_to_be() -> None:
    told = private(dp_noise=2.0)
    says = "; the noise follows from the seed, and whoever knows that can subtract it: --dp-secret-noise"
    assert says in about_privacy(told)
    assert says in about_privacy(private(dp="example", dp_noise=2.0))
    assert says not in about_privacy(private(dp_noise=2.0, dp_secret_noise=True))
    before = {key: value for key, value in private(dp_noise=2.0, dp_adaptive_clip=0.5).items() if key != "last_clip"}
    assert "changes cut to 1 at first, so that 50 % of the clients are within that, noise 2 times" in about_privacy(
        before
    )


def test_a_run_shares_the_methods_tensors_alone() -> None:
    plain, adaptive = (
        train("fedavg", "digits", **SMALL, dp_noise=2.0, dp_adaptive_clip=share) for share in (None, 0.5)
    )
    assert set(adaptive.shared) == set(plain.shared)
    assert set(adaptive.trained.shared) == {*plain.shared, "dp/clip"}, "whose length is kept, to go on"


def test_sampling_and_its_noise() -> None:
    told = private(dp_epsilon=2.0, participation=0.2, dp_delta=0.01)
    assert 1.99 < told["epsilon"] <= 2.0
    assert told["participants"] == 2
    assert told["sampling"] == "without replacement, a fixed number"
    assert told["noise"] == noise_for(2.0, 0.01, Budget(1.0, 3, 10, 2))
    assert "epsilon_zero_out" not in told


def test_local_noise_counts_the_rounds_of_one_client_and_amplifies_nothing() -> None:
    told = private(dp_noise=2.0, dp_where="client", participation=0.2, rounds=6)
    assert told["rounds"] < 6
    assert told["epsilon"] == pytest.approx(exact(2, 2.0, told["rounds"], told["delta"]), rel=1e-6)
    central = Budget(2.0 * 2**0.5, 6, 10, 2).epsilon(told["delta"])[0]
    assert told["epsilon_of_models"] == pytest.approx(central)
    assert told["hidden_from"] == "the server and everyone else"
    assert "epsilon_of_models" not in private(dp_noise=2.0, dp_where="client", aggregate="median")


def test_who_sends_once_or_never_gives_away_less() -> None:
    assert private("one-shot", dp_noise=2.0, local_steps=2)["rounds"] == 1
    assert private("local", dp_noise=2.0)["epsilon"] == 0.0


def test_a_stopped_run_tells_of_the_rounds_it_did() -> None:
    run = train("fedrep", "digits", **SMALL, dp_noise=2.0, on_round=lambda row: row["round"] < 2)
    assert run.summary["privacy"]["rounds"] == 2
    assert run.summary["privacy"]["epsilon"] == Budget(2.0, 2, 10, 10).epsilon(usual_delta(10))[0]


def test_without_the_accountant_nothing_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(ConfigError, match=r"needs the package dp-accounting.* 'commonground\[privacy\]'"):
        private(dp_noise=2.0)

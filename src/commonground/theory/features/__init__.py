"""Feature learning with local steps (Bao, Crawshaw, Liu 2024): data, network, three ways to train, both dynamics.

One study of them::

    model = FeatureModel(d=500, K=6, K0=3, N=6, n=5, m=40, alpha=1.3, rho=rho_for_gap(1.3, 3, 0.012), beta=0.5,
                         sigma_xi=0.063, sigma_0=0.002)
    problem = draw_problem(model, range(20))
    run = descend(problem, "global", eta=1.0, rounds=8000, units=1000)
    run.training_error, run.test_error, run.gamma  # [20, 2, 6], [20, 2, 6], [20, 2, 1, 40, 6]
    one_shot = descend(problem, "local", eta=1.0, rounds=1000).final.averaged()
    error_of(problem, one_shot, units=1000)  # [20, 6]

Slips in the paper's text, read as meant: the first line of (C.4) lacks η; (B.3), (B.4) write t−1 in a sum over t;
(B.19), (B.20), (C.15) have α³ − K0ρ³ where a normal client has α³ − K0β³; Lemma A.1's noise norm is of order √d σ_ξ,
not d σ_ξ, and its projection leaves out all K features; Lemma 5.1 is about normal features; the start is
σ0 = Θ(d^-0.52) throughout.
"""

from commonground.theory.features.errors import directions, population_test_error, sampled_test_error, training_error
from commonground.theory.features.full import FullState, full_start
from commonground.theory.features.network import gradient, loss, margin, output
from commonground.theory.features.problem import (
    FeatureModel,
    Problem,
    beta_limit,
    draw_problem,
    patches,
    rho_for_gap,
)
from commonground.theory.features.reduced import Products, ReducedState, reduced_start
from commonground.theory.features.scales import (
    doubling_rounds,
    feature_threshold,
    learning_rounds,
    memorisation_rounds,
    noise_threshold,
)
from commonground.theory.features.signals import GradientSignals, gradient_signals
from commonground.theory.features.training import (
    Dynamics,
    State,
    Trajectory,
    Updates,
    descend,
    error_of,
    recorded_rounds,
)

__all__ = [
    "Dynamics",
    "FeatureModel",
    "FullState",
    "GradientSignals",
    "Problem",
    "Products",
    "ReducedState",
    "State",
    "Trajectory",
    "Updates",
    "beta_limit",
    "descend",
    "directions",
    "doubling_rounds",
    "draw_problem",
    "error_of",
    "feature_threshold",
    "full_start",
    "gradient",
    "gradient_signals",
    "learning_rounds",
    "loss",
    "margin",
    "memorisation_rounds",
    "noise_threshold",
    "output",
    "patches",
    "population_test_error",
    "recorded_rounds",
    "reduced_start",
    "rho_for_gap",
    "sampled_test_error",
    "training_error",
]

"""Feature learning with local steps (Bao, Crawshaw, Liu 2024): data, network, both dynamics, errors, signals."""

import math
from dataclasses import replace

import pytest
import torch
from scipy import stats

from commonground.errors import ConfigError, DivergenceError
from commonground.theory import features as fl

SMALL = fl.FeatureModel(
    d=40,
    K=4,
    K0=2,
    N=8,
    n=3,
    m=5,
    alpha=1.2,
    rho=0.8,
    beta=0.4,
    sigma_xi=0.2,
    sigma_0=0.05,
)


def by_hand() -> fl.Problem:
    """K = 2 features (the first confounds), two clients of one sample, one filter; d = 4, axis-parallel."""
    model = fl.FeatureModel(
        d=4,
        K=2,
        K0=1,
        N=2,
        n=1,
        m=1,
        alpha=2.0,
        rho=1.0,
        beta=0.5,
        sigma_xi=1.0,
        sigma_0=1.0,
    )
    noise = torch.tensor([[[[0.0, 0, 1, 0]], [[0.0, 0, 0, 2]]]], dtype=torch.float64)
    labels = torch.tensor([[[1.0], [-1.0]]], dtype=torch.float64)
    start = torch.tensor([[[0.5, 0.25, 0.5, 0.25]]], dtype=torch.float64)
    return fl.Problem(model, (0,), torch.eye(4, dtype=torch.float64)[:, :2].unsqueeze(0), noise, labels, start)


# Client 0 (v_1, y = 1):  patches 2v_1, −v_1, ξ = e_3; products 1, −1/2, 1/2; F = 1 − 1/8 + 1/8 = 1.
# Client 1 (v_2, y = −1): patches −2v_2, v_2/2, ξ = 2e_4; products −1/2, 1/8, 1/2; F = −1/8 + 1/512 + 1/8, yF = −1/512.
# Minus the gradient is 3 y ℓ Σ products² · patch: client 0: 3ℓ(2·1 − 1/4) = 21/4 ℓ along v_1, 3/4 ℓ along e_3;
# client 1: −3ℓ(−2/4 + 1/128) = 189/128 ℓ along v_2, −3ℓ · 2/4 = −3/2 ℓ along e_4.
ELL = (1 / (1 + math.e), 1 / (1 + math.exp(-1 / 512)))
PULL = (
    torch.tensor([21 / 4, 0, 3 / 4, 0], dtype=torch.float64) * ELL[0],
    torch.tensor([0, 189 / 128, 0, -3 / 2], dtype=torch.float64) * ELL[1],
)


@pytest.mark.parametrize("dynamics", ["reduced", "full"])
def test_one_step_worked_out_by_hand(dynamics):
    problem, eta = by_hand(), 0.1
    start = problem.start[0, 0]
    after_global = start + eta * (PULL[0] + PULL[1]) / 2
    run = fl.descend(problem, "global", eta, 1, dynamics=dynamics)
    torch.testing.assert_close(run.margin[0, 0, :, 0], torch.tensor([1, -1 / 512], dtype=torch.float64))
    torch.testing.assert_close(run.gamma[0, 1, 0, 0], after_global[:2], rtol=1e-14, atol=0)
    torch.testing.assert_close(
        run.xi[0, 1, :, 0, 0], after_global[2:] * torch.tensor([1.0, 2.0]).double(), rtol=1e-14, atol=0
    )
    torch.testing.assert_close(run.training_error[0, 0], torch.tensor([0.0, 1.0]).double())
    local = fl.descend(problem, "local", eta, 1, dynamics=dynamics)
    for i in range(2):
        torch.testing.assert_close(local.gamma[0, 1, i, 0], (start + eta * PULL[i])[:2], rtol=1e-14, atol=0)
    # after one step the mean of the clients' models is the model of the mean gradient
    mean = local.final.averaged()
    torch.testing.assert_close(mean.gamma[:, 0], run.gamma[:, 1, 0], rtol=1e-14, atol=0)
    torch.testing.assert_close(mean.xi, run.xi[:, 1], rtol=1e-14, atol=0)


def test_gradient_equals_autograd():
    for problem in (by_hand(), fl.draw_problem(SMALL, [3, 4])):
        x = fl.patches(problem)
        w = (10 * problem.start).unsqueeze(1).repeat(1, problem.model.N, 1, 1).requires_grad_()
        (expected,) = torch.autograd.grad(fl.loss(w, x, problem.labels).sum(), w)
        torch.testing.assert_close(fl.gradient(w, x, problem.labels), expected, rtol=1e-12, atol=1e-14)


def test_drawn_data_follow_the_definition():
    problem = fl.draw_problem(SMALL, range(3))
    v, x, y = problem.features, fl.patches(problem), problem.labels
    eye = torch.eye(4, dtype=torch.float64).expand(3, 4, 4)
    torch.testing.assert_close(v.mT @ v, eye)
    assert (problem.noise.flatten(1, 2) @ v).abs().max() < 1e-15
    assert x.shape == (3, 8, 3, 4, 40)
    assert SMALL.held.bincount().tolist() == [2, 2, 2, 2]
    torch.testing.assert_close(x[:, 1, 2, 0], 1.2 * y[:, 1, 2, None] * v[..., 1])
    torch.testing.assert_close(x[:, 1, 2, 1], -0.8 * y[:, 1, 2, None] * v[..., 0])
    torch.testing.assert_close(x[:, 1, 2, 2], -0.8 * y[:, 1, 2, None] * v[..., 1])
    torch.testing.assert_close(x[:, 6, 0, 1], -0.4 * y[:, 6, 0, None] * v[..., 2])
    torch.testing.assert_close(x[:, 6, 0, 2], -0.4 * y[:, 6, 0, None] * v[..., 2])
    torch.testing.assert_close(x[..., -1, :], problem.noise)
    alone = fl.draw_problem(SMALL, [2])
    assert torch.equal(alone.noise[0], problem.noise[2])
    assert torch.equal(alone.start[0], problem.start[2])
    wide = fl.draw_problem(replace(SMALL, d=4000), [0])
    assert abs(float(wide.noise.square().mean() / 0.04) - 3996 / 4000) < 0.02


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"N": 4, "n": 1, "m": 1},
        {"d": 6},  # fewer noise directions than patches: the Gram matrix is singular
        {"K0": 0},
        {"K0": 4},
    ],
)
def test_reduced_dynamics_equal_the_full_simulation(change):
    model = replace(SMALL, **change)
    problem = fl.draw_problem(model, range(4))
    rounds = fl.recorded_rounds(400, 9)
    for updates in ("global", "local"):
        full, reduced = (
            fl.descend(problem, updates, 0.3, 400, record=rounds, dynamics=d, units=50) for d in ("full", "reduced")
        )
        assert full.margin[:, -1].amax() > 1 > full.margin[:, 0].amax()  # it has learned in between
        assert full.test_error is not None
        assert reduced.test_error is not None
        for one, other in [
            (full.gamma, reduced.gamma),
            (full.xi, reduced.xi),
            (full.margin, reduced.margin),
            (full.final.noise_gram, reduced.final.noise_gram),
        ]:
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
        # the root of a singular WHWᵀ (d = 6) is as exact as the root of a rounding error
        torch.testing.assert_close(full.test_error, reduced.test_error, rtol=1e-6, atol=1e-8)
    means = [run.final.averaged() for run in (full, reduced)]  # of the local models
    for name in ("gamma", "xi", "margin", "noise_gram"):
        torch.testing.assert_close(getattr(means[0], name), getattr(means[1], name), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(*(fl.error_of(problem, mean, 50) for mean in means), rtol=1e-6, atol=1e-8)
    assert means[0].gamma.shape[1] == 1


def test_a_step_of_the_signal_is_equation_b1_and_c2():
    problem = fl.draw_problem(SMALL, range(2))
    state = fl.reduced_start(problem, local=False)
    nu = torch.sigmoid(-state.margin).mean(-1)  # [S, N]
    clients_of = lambda k: nu[:, SMALL.held == k].sum(1)[:, None]  # noqa: E731
    gamma, moved = state.gamma[:, 0], state.step(0.7).gamma[:, 0]
    a, r, b = 1.2**3, 0.8**3, 0.4**3
    confounding = 3 * 0.7 / 8 * (a * clients_of(1) - r * (clients_of(0) + clients_of(1)))
    torch.testing.assert_close(moved[..., 1], gamma[..., 1] + confounding * gamma[..., 1] ** 2)
    normal = 3 * 0.7 * (a - 2 * b) / 8 * clients_of(3)
    torch.testing.assert_close(moved[..., 3], gamma[..., 3] + normal * gamma[..., 3] ** 2)
    local = fl.reduced_start(problem, local=True).step(0.7).gamma
    own = gamma[..., 0] + 3 * 0.7 * (a - r) * nu[:, 0, None] * gamma[..., 0] ** 2
    other = gamma[..., 1] - 3 * 0.7 * r * nu[:, 0, None] * gamma[..., 1] ** 2
    torch.testing.assert_close(local[:, 0, :, 0], own)
    torch.testing.assert_close(local[:, 0, :, 1], other)
    torch.testing.assert_close(local[:, 0, :, 2:], gamma[..., 2:])


def test_test_error_against_counting():
    model = replace(SMALL, n=2, sigma_xi=0.4)
    problem = fl.draw_problem(model, range(3))
    final = fl.descend(problem, "local", 0.1, 60, dynamics="full").final
    for state in (final, final.averaged()):
        exact = fl.error_of(problem, state, 4000)
        assert isinstance(state, fl.FullState)
        counted = fl.sampled_test_error(problem, state.weights, 4000)
        assert float(exact.min()) < 0.1  # the case is not trivial
        assert float(exact.max()) > 0.5
        assert ((exact - counted).abs() < 0.03).all()


def test_test_error_of_one_filter_is_exact():
    model = replace(SMALL, m=1, K0=0, K=2, N=2, alpha=1.0, sigma_xi=2.0)
    units = fl.directions([0], 1, 1)
    gamma = torch.tensor([[[[0.5, -0.5]]]], dtype=torch.float64)
    error = fl.population_test_error(model, gamma, torch.full((1, 1, 1, 1), 0.09, dtype=torch.float64), units)
    # yF = Γ³ + g³ < 0 as g < −Γ with g ~ N(0, (2 · 0.3)²)
    expected = [stats.norm.cdf(-0.5 / 0.6), stats.norm.cdf(0.5 / 0.6)]
    torch.testing.assert_close(error[0], torch.tensor(expected, dtype=torch.float64))
    zero = torch.zeros_like(gamma)
    ones = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    assert fl.population_test_error(model, zero, ones, units)[0].tolist() == [0.5, 0.5]
    assert fl.population_test_error(model, gamma, 0 * ones, units)[0].tolist() == [0.0, 1.0]
    assert fl.population_test_error(model, zero, 0 * ones, units)[0].tolist() == [0.0, 0.0]


def test_gradient_signals_are_those_of_figure_2():
    problem = fl.draw_problem(replace(SMALL, sigma_0=1e-5), range(2))
    signals = fl.gradient_signals(problem)
    a, r, b = 1.2**3, 0.8**3, 0.4**3
    held = torch.nn.functional.one_hot(SMALL.held, 4).double()
    torch.testing.assert_close(signals.positive, (a * held).expand(2, 8, 4), rtol=1e-9, atol=1e-12)
    negative = torch.zeros(8, 4, dtype=torch.float64)
    negative[SMALL.confounded, :2] = -r
    negative[~SMALL.confounded] = -2 * b * held[~SMALL.confounded]
    torch.testing.assert_close(signals.negative, negative.expand(2, 8, 4), rtol=1e-9, atol=1e-12)
    positive, averaged = signals.averaged
    torch.testing.assert_close(positive[0], torch.full((4,), a / 4, dtype=torch.float64), rtol=1e-9, atol=0)  # α³/K
    expected = torch.tensor([-2 * r / 4] * 2 + [-2 * b / 4] * 2, dtype=torch.float64)  # −K0ρ³/K, −K0β³/K
    torch.testing.assert_close(averaged[0], expected, rtol=1e-9, atol=0)
    torch.testing.assert_close((signals.positive + signals.negative)[0], SMALL.signals(), rtol=1e-9, atol=1e-12)


def test_no_feature_doubles_before_theorem_3s_rounds():
    model = replace(SMALL, rho=1 / 40, sigma_0=0.01)
    problem = fl.draw_problem(model, range(10))
    start = fl.reduced_start(problem, local=False).gamma
    bound = fl.doubling_rounds(model, 0.5, start)
    run = fl.descend(problem, "global", 0.5, int(bound.max()), record=range(int(bound.max()) + 1))
    rounds = torch.tensor(run.rounds)
    before = run.gamma.amax((2, 3, 4)) <= 2 * start.amax((1, 2, 3))[:, None]
    assert before[rounds <= bound[:, None]].all()


def test_theorems_1_and_2_show():
    """Global updates fit the noise of confounding clients, local ones learn their feature; d = 500."""
    model = fl.FeatureModel(
        d=500,
        K=6,
        K0=3,
        N=6,
        n=5,
        m=40,
        alpha=1.3,
        rho=fl.rho_for_gap(1.3, 3, 6 / 500),
        beta=fl.beta_limit(1.3, 3) / 2,
        sigma_xi=1.5 * 500**-0.51,
        sigma_0=0.1 * 500**-0.52,
    )
    problem = fl.draw_problem(model, range(100, 105))
    wide = fl.descend(problem, "global", 2.0, 2500, units=200)
    assert wide.test_error is not None
    assert (wide.training_error[:, -1] == 0).all()
    assert ((wide.test_error[:, -1, model.confounded] - 0.5).abs() < 0.05).all()
    assert (wide.test_error[:, -1, ~model.confounded] < 1e-6).all()
    local = fl.descend(problem, "local", 2.0, 500, units=200)
    assert local.test_error is not None
    assert (local.training_error[:, -1] == 0).all()
    assert (local.test_error[:, -1] < 1e-6).all()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"K0": 5}, r"K0 is 5; it must lie in \[0, 4\]"),
        ({"d": 4}, "d is 4; it must be at least 5"),
        ({"rho": -0.1}, "rho is -0.1"),
        ({"n": 0}, "n is 0; it must be at least 1"),
        ({"m": 0}, "m is 0"),
        ({"N": 6}, "N is 6, no multiple of K = 4"),
        ({"N": 0}, "N is 0"),
        ({"K": 0}, "K is 0"),
        ({"alpha": 0.0}, "alpha is 0; it must be positive"),
        ({"beta": -1.0}, "beta is -1"),
        ({"sigma_xi": 0.0}, "sigma_xi is 0"),
        ({"sigma_0": math.nan}, "sigma_0 is nan"),
    ],
)
def test_refusals(change, words):
    with pytest.raises(ConfigError, match=words):
        replace(SMALL, **change)


def test_refusals_of_a_run():
    problem = fl.draw_problem(SMALL, [0])
    with pytest.raises(ConfigError, match="eta is 0"):
        fl.descend(problem, "global", 0.0, 1)
    with pytest.raises(ConfigError, match="rounds is -1"):
        fl.descend(problem, "local", 0.1, -1)
    with pytest.raises(ConfigError, match="gap is 3; it must lie in"):
        fl.rho_for_gap(1.0, 2, 3.0)
    with pytest.raises(ConfigError, match="K0 is 0"):
        fl.beta_limit(1.0, 0)


@pytest.mark.parametrize("dynamics", ["reduced", "full"])
def test_divergence_is_named(dynamics):
    problem = fl.draw_problem(SMALL, [7])
    with pytest.raises(
        DivergenceError, match=r"gradient descent with global updates diverges.*seed 7, step size 1e\+06"
    ):
        fl.descend(problem, "global", 1e6, 300, dynamics=dynamics)


def test_features_and_clients_are_counted_in_whole_numbers() -> None:
    with pytest.raises(ConfigError, match=r"K0 is 1.5; it must be a whole number \(confounding features\)"):
        replace(SMALL, K0=1.5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"N is 8.0; it must be a whole number"):
        replace(SMALL, N=8.0)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="there is no seed"):
        fl.draw_problem(SMALL, [])

"""RoLoRA and FFA-LoRA on the linear model: by hand, against literal code, and against what the paper states."""

from __future__ import annotations

import math

import pytest
import torch

from commonground.errors import ConfigError, DivergenceError
from commonground.theory.draws import normal
from commonground.theory.rolora import (
    Problem,
    angle_distance,
    angle_floor,
    angles,
    contracts,
    exact_b,
    expected_ffa_loss,
    ffa_draws,
    ffa_excess,
    gradient_a,
    heterogeneous,
    heterogeneous_factor,
    heterogeneous_rounds,
    heterogeneous_step_limit,
    homogeneous,
    lemma_factor,
    lemma_step_limit,
    next_angle,
    population_loss,
    rolora,
    rolora_steps,
    theorem_rounds,
    two_cycle,
)

SEEDS = range(20)


def test_one_round_by_hand() -> None:
    # d = 2, one client, one sample x = (1, 1); a* = e1, b* = (2, 0), a = (0.6, 0.8).
    # y = 2; x·a = 1.4: b = (2/1.4, 0) = (10/7, 0). Residual x·a b − y = 0: the gradient vanishes, one sample fits.
    a_star, b_star, a_start = (torch.tensor(v, dtype=torch.float64) for v in ([[1, 0]], [[[2, 0]]], [[0.6, 0.8]]))
    one = Problem(a_star, b_star, a_start, seeds=(0,))
    x = torch.ones(1, 1, 1, 2, dtype=torch.float64)
    b = exact_b(x, one.a_start, one)
    assert b.flatten().tolist() == pytest.approx([10 / 7, 0])
    assert gradient_a(x, one.a_start, b[:, 0], one).abs().max() < 1e-15
    # A second sample (1, −1): x·a = (1.4, −0.2), y = (2, 2): b = (2.8 − 0.4)/(1.96 + 0.04) = 1.2.
    x = torch.tensor([[[[1, 1], [1, -1]]]], dtype=torch.float64)
    b = exact_b(x, one.a_start, one)
    assert b.flatten().tolist() == pytest.approx([1.2, 0])
    # Residuals 1.68 − 2 = −0.32 and −0.24 − 2 = −2.24; gradient (2/2)·1.2·(−0.32·(1, 1) − 2.24·(1, −1)).
    assert gradient_a(x, one.a_start, b[:, 0], one).flatten().tolist() == pytest.approx([-3.072, 2.304])
    # Infinitely many samples, η = 0.125: c = η‖b*‖² = 1/2, b̄ = 0.6 b*; along a*: 0.6(1 + 0.64), across: 0.8(1 − 0.36).
    run = rolora(one, 1, 0.125)
    assert float(run.delta[0, 1]) == pytest.approx(0.512 / math.hypot(0.984, 0.512), rel=1e-14)


@pytest.mark.parametrize("samples", [1, 3, 7])
def test_a_round_is_the_literal_algorithm(samples: int) -> None:
    """Line by line with d × d products, ``lstsq`` and automatic differentiation."""
    problem = heterogeneous([4], clients=3, dimension=5, delta0=0.7, norm=1.3, gamma=0.6)
    trace = rolora(problem, 2, 0.3, samples, "round")
    a, b_star = problem.a_start[0], problem.b_star[0]
    for t in range(3):
        x = normal([4], "rolora-inputs", 3, samples, 5, ids=(t, 0))[0]
        y = [x[i] @ torch.outer(problem.a_star[0], b_star[i]) for i in range(3)]
        b = sum(torch.linalg.lstsq((x[i] @ a)[:, None], y[i]).solution[0] for i in range(3)) / 3
        a = a.clone().requires_grad_()
        losses = [(y[i] - x[i] @ torch.outer(a, b)).square().sum() / samples for i in range(3)]
        (gradient,) = torch.autograd.grad(torch.stack(losses).mean(), a)
        a = a.detach()
        product = torch.outer(a, b) - torch.outer(problem.a_star[0], problem.mean_b_star[0])
        assert float(trace.delta[0, t]) == pytest.approx(float(angle_distance(a, problem.a_star[0])), rel=1e-10)
        assert float(trace.error[0, t]) == pytest.approx(float(product.norm()), rel=1e-10)
        if t < 2:
            a = (a - 0.3 * gradient) / torch.linalg.vector_norm(a - 0.3 * gradient)
    assert torch.allclose(trace.a[0], a, rtol=1e-10)
    assert torch.allclose(trace.b[0], b, rtol=1e-10)


def test_generators_meet_their_numbers() -> None:
    problem = heterogeneous(SEEDS, 6, 7, delta0=0.35, norm=2.5, gamma=1.7)
    assert torch.allclose(angle_distance(problem.a_start, problem.a_star), torch.tensor(0.35, dtype=torch.float64))
    assert torch.allclose(problem.signal, torch.tensor(6.25, dtype=torch.float64), rtol=1e-12)
    assert torch.allclose(problem.client_variance, torch.tensor(2.89, dtype=torch.float64), rtol=1e-12)
    alike = homogeneous(SEEDS, 6, 7, norm=2.5)
    assert alike.client_variance.max() < 1e-28
    assert torch.equal(homogeneous([9], 6, 7).a_start[0], homogeneous([3, 9], 6, 7).a_start[1])
    many = homogeneous(range(2000), 1, 5)  # a random start: E[1 − δ²] = 1/d
    assert float(1 - angle_distance(many.a_start, many.a_star).square().mean()) == pytest.approx(0.2, abs=0.02)


@pytest.mark.parametrize("delta0", [0.05, 0.6, 0.99])
@pytest.mark.parametrize("c", [0.1, 0.5, 0.93, 1.0, 1.7])
def test_infinitely_many_samples_follow_the_exact_map(delta0: float, c: float) -> None:
    problem = heterogeneous(range(3), 4, 6, delta0, norm=1.4, gamma=0.8)
    delta = rolora(problem, 30, c / 1.4**2).delta
    assert torch.allclose(delta, angles(delta0, c, 30).expand(3, -1), rtol=1e-9, atol=1e-14)


def test_the_map_is_that_of_tangents() -> None:
    assert float(next_angle(angles(0.7, 0.9, 5)[4], 0.9)) == pytest.approx(float(angles(0.7, 0.9, 5)[5]), rel=1e-14)
    delta = torch.tensor([1e-9, 0.2, 0.7, 0.999], dtype=torch.float64)
    for c in (0.2, 0.5, 1.0, 3.0):
        angle = delta.asin()
        tangent = angle.tan() * (1 - 2 * c * angle.cos() ** 2).abs() / (1 + 2 * c * angle.sin() ** 2)
        assert torch.allclose(next_angle(delta, c), tangent.atan().sin(), rtol=1e-12)


def test_many_samples_come_close_to_infinitely_many() -> None:
    deviation = []
    for samples in (200, 3200):
        run = rolora(homogeneous(SEEDS, 2, 4, 0.8), 3, 0.3, samples)
        deviation.append(float((run.delta - angles(0.8, 0.3, 3)).square().mean().sqrt()))
    assert deviation[1] < 0.015
    assert deviation[0] / deviation[1] == pytest.approx(4, rel=0.5)  # 1/√m


@pytest.mark.parametrize("draw", ["step", "round", "fixed"])
def test_alike_clients_are_recovered_to_machine_precision(draw: str) -> None:
    trace = rolora(homogeneous(range(5), 10, 8, 0.8), 40, 0.5, 40, draw)  # type: ignore[arg-type]
    assert trace.delta[:, -1].max() < 1e-14
    assert trace.error[:, -1].max() < 1e-14


def test_step_sizes_side_by_side_are_the_runs_alone() -> None:
    problem = heterogeneous(range(3), 4, 5, 0.5, gamma=0.3)
    both = rolora_steps(problem, 6, [0.2, 1.4], 9)
    for which, step in enumerate((0.2, 1.4)):
        alone = rolora(problem, 6, step, 9)
        assert torch.allclose(both.delta[:, which], alone.delta, rtol=1e-9)
        assert torch.allclose(both.error[:, which], alone.error, rtol=1e-9)


@pytest.mark.parametrize("delta0", [0.1, 0.5, 0.8, 0.95])
def test_the_lemmas_hold_exactly_up_to_their_true_limits(delta0: float) -> None:
    def every_round(c: float, factor: float) -> bool:
        holds, judged = contracts(angles(delta0, c, 3000), factor)
        return bool(holds[judged].all())

    true = lemma_step_limit(delta0)
    for c in (0.01, 0.3, 0.5, 0.7, true * 0.9999):
        assert every_round(c, lemma_factor(delta0, c))
    for c in (true * 1.0005, 1.0):  # and Lemma 5.3 allows up to c = 1
        assert not every_round(c, lemma_factor(delta0, c))
    true = heterogeneous_step_limit(delta0)
    assert true > 0.5  # Lemma A.16 allows up to c = 1/2: safe
    for c in (0.01, 0.3, 0.5, true * 0.9999):
        assert every_round(c, heterogeneous_factor(delta0, c))
    assert not every_round(true * 1.001, heterogeneous_factor(delta0, true * 1.001))


def test_at_the_limit_the_angle_falls_like_a_root_and_beyond_it_swings() -> None:
    assert float(angles(0.6, 1.0, 20000)[-1]) * math.sqrt(8 * 20000) == pytest.approx(1, abs=1e-3)
    for c in (1.05, 2.0, 9.0):
        last = angles(0.6, c, 4000)[-2:]
        assert last.tolist() == pytest.approx([two_cycle(c)] * 2, rel=1e-9)
        cycle = torch.tensor(two_cycle(c), dtype=torch.float64)
        slope = (next_angle(cycle + 1e-6, c) - next_angle(cycle - 1e-6, c)) / 2e-6
        assert float(slope) == pytest.approx(2 / c**2 - 1, abs=1e-6)
    assert two_cycle(1.0) == two_cycle(0.3) == 0


@pytest.mark.parametrize(("delta0", "c"), [(0.3, 0.2), (0.8, 0.5), (0.9, 0.8)])
def test_the_theorems_rounds_suffice(delta0: float, c: float) -> None:
    assert float(angles(delta0, c, theorem_rounds(delta0, 1e-6, c))[-1]) <= 1e-6
    assert float(angles(delta0, c / 2, heterogeneous_rounds(delta0, 1e-6, c))[-1]) <= 1e-6


def test_rounds_of_the_theorems_by_hand() -> None:
    # δ0² = 1/2, c = 1/2, δ0/ε = e: 2/(1/4)·1 = 8 and 4.
    delta0 = math.sqrt(0.5)
    assert theorem_rounds(delta0, delta0 / math.exp(0.999), 0.5) == 8
    assert heterogeneous_rounds(delta0, delta0 / math.exp(0.999), 0.5) == 4
    assert lemma_factor(delta0, 0.5) == pytest.approx(math.sqrt(0.75))
    assert theorem_rounds(0.1, 0.2, 0.5) == 0


def test_expected_loss_of_ffa_lora_is_the_papers_formula() -> None:
    for n in (1, 2, 5, 40):
        for m in (3, 4, 5, 17, 400):
            by_parts = -2 / (n * m) + 1 / (n**2 * m) + (n - 1) / (n**2 * (m - 2))
            assert ffa_excess(n, m) == pytest.approx(by_parts, rel=1e-12, abs=1e-16)
            assert abs(ffa_excess(n, m)) <= 1 / (n * m) * (1 + 1e-12)
    assert ffa_excess(1, 2) == -0.5  # one client: −1/m, for every m
    assert ffa_excess(2, 2) == ffa_excess(1, 1, on="new") == math.inf
    assert ffa_excess(10**6, 10**6) * 10**12 == pytest.approx(-1, abs=1e-5)


@pytest.mark.parametrize(("n", "m", "gamma"), [(1, 1, 0.0), (1, 6, 0.0), (3, 6, 0.0), (3, 6, 1.5), (8, 12, 0.7)])
def test_expected_loss_of_ffa_lora_by_simulation(n: int, m: int, gamma: float) -> None:
    """Within four standard errors, and these are a few percent of what c̃ changes."""
    problem = heterogeneous(SEEDS, n, 3, 0.6, norm=1.5, gamma=gamma)
    losses = ffa_draws(problem, m, 1500)
    changes = abs(ffa_excess(n, m)) * 0.36 * (2.25 + gamma**2)
    training = expected_ffa_loss(n, m, 0.6, 2.25, gamma**2)
    both = [(losses.sharper, training)]
    if m > 4:
        both.append((losses.new, expected_ffa_loss(n, m, 0.6, 2.25, gamma**2, on="new")))
    for values, expected in both:
        error = float(values.std()) / math.sqrt(values.numel())
        assert error < 0.05 * changes
        assert abs(float(values.mean()) - expected) < 4 * error
    error = float(losses.training.std()) / math.sqrt(losses.training.numel())
    assert abs(float(losses.training.mean()) - training) < 4 * error + 1e-15


def test_losses_of_the_draws_are_literal() -> None:
    problem = heterogeneous([5], 2, 3, 0.6, norm=1.5, gamma=0.8)
    losses = ffa_draws(problem, 4, 3)
    x = normal([5], "ffa-inputs", 3, 2, 4, 3, ids=(0,))[0]
    for k in range(3):
        b = exact_b(x[None, k], problem.a_start, problem).mean(dim=1)
        product = torch.outer(problem.a_start[0], b[0])
        literal = sum(
            (x[k, i] @ (torch.outer(problem.a_star[0], problem.b_star[0, i]) - product)).square().sum() for i in (0, 1)
        )
        assert float(losses.training[0, k]) == pytest.approx(float(literal) / 8, rel=1e-12)
        assert float(losses.new[0, k]) == pytest.approx(float(population_loss(problem, problem.a_start, b)), rel=1e-12)


@pytest.mark.parametrize("gamma", [0.0, 0.4, 3.0])
def test_frozen_a_over_clients_that_differ_to_machine_precision(gamma: float) -> None:
    """Proposition A.17."""
    problem = heterogeneous(SEEDS, 7, 9, 0.65, norm=1.7, gamma=gamma)
    b = rolora(problem, 0, 1.0).b
    overlap = (problem.a_star * problem.a_start).sum(dim=1, keepdim=True)
    assert torch.allclose(b, problem.mean_b_star * overlap, rtol=1e-14, atol=1e-15)
    said = gamma**2 + 1.7**2 * 0.65**2
    assert float((population_loss(problem, problem.a_start, b) / said - 1).abs().max()) < 5e-15
    assert expected_ffa_loss(7, None, 0.65, 1.7**2, gamma**2) == pytest.approx(said, rel=1e-15)


def test_population_loss_is_client_variance_and_squared_error() -> None:
    problem = heterogeneous(range(4), 3, 5, 0.65, gamma=1.1)
    run = rolora(problem, 5, 0.2, 6)
    loss = population_loss(problem, run.a, run.b)
    assert torch.allclose(loss, problem.client_variance + run.error[:, -1].square(), rtol=1e-12)


def test_clients_that_differ_stall_with_few_samples_where_the_formula_says() -> None:
    problem = heterogeneous(SEEDS, 10, 10, 0.5, gamma=1.0)
    late = rolora(problem, 50, 0.2, 100).delta[:, 25:].square().mean().sqrt()
    assert float(late) == pytest.approx(float(angle_floor(problem, 100, 0.2).square().mean().sqrt()), rel=0.05)
    assert angle_floor(homogeneous(SEEDS, 3, 4), 5, 0.2).max() < 1e-15
    with pytest.raises(ConfigError, match="not below 1"):
        angle_floor(problem, 200, 1.0)


def test_refusals() -> None:
    good = {"clients": 2, "dimension": 3, "delta0": 0.5, "norm": 1.0, "gamma": 1.0}
    for other, words in (
        ({"clients": 0}, "clients N is 0"),
        ({"dimension": 1}, "dimension d is 1"),
        ({"delta0": 0.0}, "delta0 is 0"),
        ({"delta0": 1.0}, "delta0 is 1"),
        ({"norm": 0.0}, r"norm of b\* is 0"),
        ({"gamma": -1.0}, "gamma is -1"),
        ({"clients": 1}, "single client"),
    ):
        with pytest.raises(ConfigError, match=words):
            heterogeneous([0], **{**good, **other})  # type: ignore[arg-type]
    problem = homogeneous([0], 2, 3, 0.5)
    for arguments, words in (
        ((5, 0.5, 0), "samples m is 0"),
        ((5, 0.0, 3), "step size eta is 0"),
        ((5, math.nan, 3), "step size eta is nan"),
        ((-1, 0.5, 3), "rounds T is -1"),
        ((5, 0.5, 3, "never"), "'never'"),
    ):
        with pytest.raises(ConfigError, match=words):
            rolora(problem, *arguments)
    with pytest.raises(ConfigError, match="c is 1"):
        theorem_rounds(0.5, 1e-3, 1.0)
    with pytest.raises(ConfigError, match="m is 0"):
        ffa_excess(3, 0)


def test_a_step_beyond_floating_point_is_named() -> None:
    with pytest.raises(DivergenceError, match=r"RoLoRA diverges: in round 1 .*seed 7, step size 1e\+300"):
        rolora(homogeneous([7], 2, 3, 0.5, norm=10), 3, 1e300, 4)


@pytest.mark.parametrize("c", [0.25, 0.5, 0.9])
def test_a_bounded_step_contracts_at_any_rate(c: float) -> None:
    """tan θ' = tan θ · |1 − 2c| / (1 + 2c tan² θ), for steps beyond every limit of a fixed one."""
    problem = homogeneous(range(3), 4, 6, 0.8, 2.0)
    delta = rolora_steps(problem, 6, [0.3, 3.0, 300.0], bound=c).delta
    for before, after in zip(delta.unbind(2)[:-1], delta.unbind(2)[1:], strict=True):
        tan = before / (1 - before.square()).sqrt()
        tan = tan * abs(1 - 2 * c) / (1 + 2 * c * tan.square())
        expected = tan / (1 + tan.square()).sqrt()
        torch.testing.assert_close(after[:, 1:], expected[:, 1:], rtol=1e-6, atol=1e-14)
    unbounded = rolora_steps(problem, 60, [0.3, 3.0]).delta
    assert float(unbounded[:, 1, -1].min()) > 0.5  # a fixed step of 12/‖b*‖² swings
    small = rolora_steps(problem, 6, [1e-3], bound=c).delta
    assert torch.equal(small, rolora_steps(problem, 6, [1e-3]).delta)  # below the bound nothing changes


def test_a_bound_is_positive() -> None:
    with pytest.raises(ConfigError, match="the bound of the step"):
        rolora_steps(homogeneous(range(1), 2, 3, 0.5, 1.0), 1, [0.1], bound=0.0)

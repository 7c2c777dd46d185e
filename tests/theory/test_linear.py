"""FedRep for linear regression: steps by hand, identities, Theorem 1's constants, refusals."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from commonground.errors import ConfigError, DivergenceError
from commonground.theory.draws import normal, permutations
from commonground.theory.linear import (
    Alternation,
    Problem,
    Samples,
    Start,
    alternate,
    clients_per_round,
    contraction_factor,
    distance_bound,
    draw_problem,
    draw_samples,
    drawn_extremes,
    expected_error,
    fedsgd,
    gaussian_start,
    least_squares,
    local_only,
    make_start,
    method_of_moments,
    new_client_error,
    outside,
    projected_gradient,
    random_start,
    sample_size_unit,
    single_model_error,
    step_limit,
    subset_extremes,
    training_floor,
    value_floor,
)
from commonground.theory.subspace import orthonormal, principal_angle_distance

SEEDS = range(4)


def tensor(values: object) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


# Two clients, d = 2, k = 1, one sample each: B* = e1, w* = (1, -1), x = e1 + e2, so y = (1, -1).
# From B = (3/5, 4/5): features 7/5, exact heads ±5/7, residuals 0 (m = k). A second sample e2 - with y = 0 - moves B.
BY_HAND = Problem((0,), tensor([[[1.0], [0.0]]]), tensor([[[1.0], [-1.0]]]), 0.0)
DATA = Samples(tensor([[[[1.0, 1.0], [0.0, 1.0]]] * 2]), tensor([[[1.0, 0.0], [-1.0, 0.0]]]))
FROM = Start(tensor([[[0.6], [0.8]]]), tensor([[[0.5], [0.0]]]))


def test_one_round_of_fedrep_by_hand() -> None:
    # Features of a client: (1.4, 0.8); exact head w = 1.4/(1.96 + 0.64) = 7/13 and -7/13.
    # Residuals of the first: (1.4·7/13 − 1, 0.8·7/13) = (−3.2/13, 5.6/13); of the second the negative.
    # Xᵀresidual = (−3.2/13, 2.4/13); times w, averaged over m = 2 and both clients: (7/13)(−1.6, 1.2)/13.
    run = alternate(BY_HAND, Alternation(None, 0.5), FROM, 1, data=DATA)
    moved = tensor([0.6, 0.8]) - 0.5 * 7 / 169 * tensor([-1.6, 1.2])
    assert run.B[0, :, 0] == pytest.approx((moved / moved.norm()).tolist(), abs=1e-15)
    assert float(run.distance[0, 0]) == pytest.approx(0.8, abs=1e-15)
    assert float(run.distance[0, 1]) == pytest.approx(float(moved[1] / moved.norm()), abs=1e-15)
    # (3.2² + 5.6²)/13² over 2m; ½‖0.6·7/13 − 1, 0.8·7/13‖²
    assert float(run.training[0, 0]) == pytest.approx((3.2**2 + 5.6**2) / 169 / 4, abs=1e-15)
    assert float(run.value[0, 0]) == pytest.approx(((4.2 / 13 - 1) ** 2 + (5.6 / 13) ** 2) / 2, abs=1e-15)


def test_one_round_of_gd_gd_by_hand() -> None:
    # Gradient of the first client's head at 0.5: (1/2)(2.6·0.5 − 1.4) = −0.05; of the second at 0: (1/2)·1.4 = 0.7.
    w = tensor([0.5 + 0.1 * 0.05, -0.1 * 0.7])
    run = alternate(BY_HAND, Alternation(1, 0.5, 0.1), FROM, 1, data=DATA)
    residual = tensor([[1.4, 0.8]]) * w[:, None] - tensor([[1.0, 0.0], [-1.0, 0.0]])
    gradient = ((residual @ tensor([[1.0, 1.0], [0.0, 1.0]])) * w[:, None]).sum(0) / 4
    moved = tensor([0.6, 0.8]) - 0.5 * gradient
    assert run.B[0, :, 0] == pytest.approx((moved / moved.norm()).tolist(), abs=1e-15)
    # The next round's step starts from the heads kept.
    again = alternate(BY_HAND, Alternation(1, 0.5, 0.1), Start(run.B, w[None, :, None]), 0, data=DATA)
    assert torch.allclose(again.W, run.W, atol=1e-15)


def test_heads_of_clients_left_out_stay() -> None:
    problem = draw_problem(SEEDS, 5, 2, 10)
    data = draw_samples(problem, 4)
    start = random_start(problem)
    run = alternate(problem, Alternation(3, 0.1), start, 0, data=data, r=0.3)
    assert ((run.W != start.W).any(-1).sum(1) == 3).all()


def test_many_head_steps_are_the_exact_head() -> None:
    problem = draw_problem(SEEDS, 6, 2, 15)
    data = draw_samples(problem, 12)
    start = make_start("projected-gradient", problem, data)
    exact, many = (
        alternate(problem, Alternation(steps, 0.1, size), start, 5, data=data, r=0.4)
        for steps, size in ((None, None), (500, 0.4))
    )
    assert torch.allclose(exact.B.abs(), many.B.abs(), atol=1e-10)
    assert torch.allclose(exact.value, many.value, atol=1e-10)


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize(("d", "k", "n", "m", "r"), [(10, 2, 50, 8, 1.0), (7, 3, 40, 12, 0.5)])
def test_without_noise_fedrep_converges_linearly_to_rounding(
    d: int, k: int, n: int, m: int, r: float, fresh: bool
) -> None:
    problem = draw_problem(SEEDS, d, k, n, noise=0.0)
    data = draw_samples(problem, m)
    start = method_of_moments(problem, draw_samples(problem, 40, "start"))
    run = alternate(
        problem, Alternation(None, 0.3), start, 400, data=None if fresh else data, m=m if fresh else None, r=r
    )
    assert float(run.distance[:, -1].max()) < 1e-14
    assert float(run.value[:, -1].max()) < 1e-27
    tenths = run.distance[:, 0:51:10]
    assert bool((tenths[:, 1:] < 0.75 * tenths[:, :-1]).all())  # every ten rounds, by at least this


def test_fedrep_stands_still_where_heads_fit_everything() -> None:
    problem = draw_problem(SEEDS, 8, 3, 20)
    start = random_start(problem)
    run = alternate(problem, Alternation(None, 0.3), start, 5, m=3)
    assert torch.allclose(run.distance, run.distance[:, :1].expand(-1, 6), atol=1e-8)


@pytest.mark.parametrize(("k", "m"), [(2, 8), (3, 12), (1, 7)])
def test_the_floor_of_the_function_value(k: int, m: int) -> None:
    """With the true representation the function value is σ²k/(2(m − k − 1)) on noise-free test data."""
    problem = draw_problem(range(4), 6, k, 20_000, noise=0.3)
    data = draw_samples(problem, m)
    run = alternate(problem, Alternation(None, 0.1), Start(problem.B_star, problem.W_star), 0, data=data)
    assert float(run.value.mean()) == pytest.approx(value_floor(k, m, 0.3), rel=0.015)
    assert value_floor(k, m, 0.3) == pytest.approx(0.3 * k / (2 * (m - k - 1)))
    assert float(run.training.mean()) == pytest.approx(training_floor(k, m, 0.3), rel=0.01)
    assert math.isinf(value_floor(k, k + 1, 0.3))


def test_fedrep_ends_at_the_floor() -> None:
    """At full participation, on fixed samples of many clients: the floor and the representation's small part."""
    problem = draw_problem(SEEDS, 6, 2, 2000, noise=1e-2)
    data = draw_samples(problem, 12)
    run = alternate(problem, Alternation(None, 0.25), projected_gradient(problem, data), 40, data=data)
    assert float(run.value[:, -1].mean()) == pytest.approx(value_floor(2, 12, 1e-2), rel=0.03)


@pytest.mark.parametrize(("d", "m"), [(12, 3), (12, 9), (30, 10)])
def test_local_only_without_enough_samples(d: int, m: int) -> None:
    problem = draw_problem(range(4), d, 2, 4000, noise=0.0)
    data = draw_samples(problem, m)
    error = (local_only(data.x, data.y) - problem.theta).square().sum(-1).mean()
    assert float(error) == pytest.approx(2 * (1 - m / d), rel=0.01)  # ‖θ‖² = k = 2
    assert expected_error(d, m, 0.0, 2.0) == pytest.approx(2 * (1 - m / d))


@pytest.mark.parametrize("m", [4, 14, 30])
def test_local_only_with_noise(m: int) -> None:
    problem = draw_problem(range(4), 9, 2, 4000, noise=0.2)
    data = draw_samples(problem, m)
    error = (local_only(data.x, data.y) - problem.theta).square().sum(-1).mean()
    assert float(error) == pytest.approx(expected_error(9, m, 0.2, 2.0), rel=0.03)


@pytest.mark.parametrize("m", [2, 7, 20])
def test_a_new_client_pays_for_head_and_representation(m: int) -> None:
    """e + (σ² + e) k/(m − k − 1), exactly, where e lies outside the representation; and below m = k."""
    k = 4 if m == 2 else 2
    problem = draw_problem(range(3), 12, k, 50, noise=0.05)
    tilted = orthonormal(problem.B_star + 0.05 * random_start(problem).B)
    errors, beyond = new_client_error(problem, tilted, m, 20_000)
    e = float(beyond.mean())
    if m > k + 1:
        assert expected_error(k, m, 0.05, k - e, e) == pytest.approx(e + (0.05 + e) * k / (m - k - 1))
    assert float(errors.mean()) == pytest.approx(expected_error(k, m, 0.05, k - e, e), rel=0.03)
    mixed, _ = new_client_error(problem, tilted @ (torch.eye(k, dtype=torch.float64) + 0.3), m, 50)
    assert torch.allclose(mixed, new_client_error(problem, tilted, m, 50)[0], atol=1e-8)  # any basis


def test_where_the_mean_is_infinite() -> None:
    assert all(math.isinf(expected_error(5, m, 0.1)) for m in (4, 5, 6))
    assert expected_error(5, 5, 0.0, 3.0) == 0.0


def test_least_squares_is_the_minimum_norm_solution() -> None:
    generator = torch.Generator().manual_seed(0)
    for m, p in ((7, 3), (3, 3), (2, 5), (1, 1)):
        A = torch.randn(11, m, p, generator=generator, dtype=torch.float64)
        A[3] = 0
        if min(m, p) > 1:
            A[4, :, 1] = 2 * A[4, :, 0]
            A[5, 1] = A[5, 0]
        y = torch.randn(11, m, generator=generator, dtype=torch.float64)
        expected = (torch.linalg.pinv(A) @ y[..., None])[..., 0]
        assert torch.allclose(least_squares(A, y), expected, atol=1e-9)


def test_starts_find_the_representation() -> None:
    problem = draw_problem(SEEDS, 8, 2, 200, noise=0.0)
    data = draw_samples(problem, 400)
    for name in ("moments", "moments-fresh"):
        assert float(principal_angle_distance(make_start(name, problem, data).B, problem.B_star).max()) < 0.05
    start = make_start("projected-gradient", problem, data)
    assert float(principal_angle_distance(start.B, problem.B_star).max()) < 1e-7
    assert torch.allclose(start.W @ start.B.mT, problem.theta, atol=1e-7)
    again = projected_gradient(problem, data, rounds=1)
    # One round from zero: the k largest singular directions of step · X_iᵀy_i/m.
    pulls = (data.x.mT @ data.y[..., None])[..., 0] / 400
    assert float(principal_angle_distance(again.B, torch.linalg.svd(pulls)[2].mT[..., :2]).max()) < 1e-7


def test_a_start_that_blows_up_is_begun_again_with_half_the_step() -> None:
    """With d = 4 and m = 5 some client's samples stretch a direction by more than 2/step in every fourth seed."""
    seeds = list(range(12))
    problem = draw_problem(seeds, 4, 2, 100, noise=0.0)
    data = draw_samples(problem, 5)
    usual = projected_gradient(problem, data, step=0.5)  # m/(m + d + 1)
    start = projected_gradient(problem, data)

    def objective(of: Start) -> torch.Tensor:
        return ((data.x @ (of.W @ of.B.mT)[..., None])[..., 0] - data.y).square().sum((1, 2))

    nothing = data.y.square().sum((1, 2))
    blown = objective(usual) > nothing
    assert 0 < int(blown.sum()) < len(seeds)
    assert torch.equal(start.W[~blown], usual.W[~blown])
    assert torch.equal(start.B[~blown], usual.B[~blown])
    assert bool((objective(start) <= nothing).all())
    half = projected_gradient(problem, data, step=0.25)
    once = blown & (objective(half) <= nothing)
    assert bool(once.any())
    assert torch.equal(start.W[once], half.W[once])
    one = int(blown.int().argmax())  # the same seed alone
    alone = draw_problem([seeds[one]], 4, 2, 100, noise=0.0)
    assert torch.allclose(projected_gradient(alone, draw_samples(alone, 5)).W[0], start.W[one], atol=1e-12)
    assert torch.allclose(start.B.mT @ start.B, torch.eye(2, dtype=torch.float64).expand(12, 2, 2), atol=1e-12)


def test_a_start_that_leaves_every_range_does_not_end_the_other_seeds() -> None:
    problem = draw_problem(SEEDS, 4, 2, 100)
    data = draw_samples(problem, 5)
    data.x[0, 0] *= 1e4  # one client of one seed
    start = projected_gradient(problem, data, rounds=60)
    assert bool(start.W.isfinite().all())
    assert float(start.W[1:].abs().max()) < 5
    with pytest.raises(DivergenceError, match=r"projected-gradient start diverges.*seed 0, .* start_step=0.25"):
        projected_gradient(problem, data, rounds=60, step=0.5)


def test_fedsgd_finds_the_mean_regressor_and_no_representation() -> None:
    problem = draw_problem(SEEDS, 6, 2, 60, noise=0.0)
    data = draw_samples(problem, 500)
    start = projected_gradient(problem, data)
    model = fedsgd(problem, start, 400, 0.2, data)
    mean = problem.theta.mean(1)
    assert float((model.theta - mean).norm(dim=1).max()) < 0.2
    error = (model.theta[:, None] - problem.theta).square().sum(-1).mean(1)
    assert torch.allclose(error, single_model_error(problem), rtol=0.02)
    assert float(single_model_error(problem).mean()) == pytest.approx(2 - float(mean.square().sum(1).mean()))
    assert not bool(model.went_up.any())


def test_scalings_of_the_heads() -> None:
    rows = draw_problem(SEEDS, 7, 3, 90)
    assert torch.allclose(rows.W_star.norm(dim=-1), torch.full((4, 90), 3**0.5, dtype=torch.float64))
    literal = draw_problem(SEEDS, 7, 3, 90, scaling="appendix")
    assert torch.allclose(literal.W_star.mT @ literal.W_star, 3 * torch.eye(3, dtype=torch.float64).expand(4, 3, 3))
    # the signal vanishes with n: k²/n on average
    assert float(literal.theta.square().sum(-1).mean()) == pytest.approx(9 / 90)
    for problem in (rows, literal):
        assert torch.allclose(problem.B_star.mT @ problem.B_star, torch.eye(3, dtype=torch.float64).expand(4, 3, 3))


def test_extremes_over_subsets() -> None:
    problem = draw_problem(SEEDS, 6, 2, 8)
    subsets = [list(c) for c in itertools.combinations(range(8), 4)]
    values = torch.stack([torch.linalg.svdvals(problem.W_star[:, c] / 2) for c in subsets], 1)
    exact = subset_extremes(problem, 4)
    assert exact.over == "all"
    assert torch.allclose(exact.smallest, values[..., 1].amin(1), atol=1e-7)
    assert torch.allclose(exact.largest, values[..., 0].amax(1), atol=1e-12)
    drawn = drawn_extremes(problem, 4, 9)
    assert bool((drawn.smallest >= exact.smallest - 1e-12).all())
    assert bool((drawn.largest <= exact.largest + 1e-12).all())
    whole = subset_extremes(problem, 8)
    assert torch.allclose(whole.largest, torch.linalg.svdvals(problem.W_star / 8**0.5)[:, 0])
    assert torch.allclose(
        subset_extremes(draw_problem(SEEDS, 4, 1, 30), 10).smallest, torch.ones(4, dtype=torch.float64)
    )


def test_the_search_finds_what_enumeration_does(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = draw_problem(SEEDS, 6, 3, 12)
    exact = subset_extremes(problem, 5)
    monkeypatch.setattr("commonground.theory.linear.theorem.MOST_SUBSETS", 1)
    search = subset_extremes(problem, 5)
    assert (exact.over, search.over) == ("all", "search")
    assert torch.allclose(search.smallest, exact.smallest, rtol=1e-6, atol=1e-9)
    assert torch.allclose(search.largest, exact.largest, rtol=1e-9)


def test_theorem_1_in_numbers_and_measured() -> None:
    one = tensor([1.0])
    assert float(step_limit(2 * one)) == 1 / 16
    assert float(contraction_factor(0.5 * one, 0.6 * one, 0.8 * one)) == pytest.approx(
        math.sqrt(1 - 0.5 * 0.6 * 0.64 / 2)
    )
    assert float(contraction_factor(9 * one, one, one)) == 0  # so large a step is none of the theorem's
    assert distance_bound(0.5 * one, 0.4 * one, 3)[0].tolist() == pytest.approx([0.4, 0.2, 0.1, 0.05])
    assert float(sample_size_unit(10, 2, 5, one, 0.5 * one)) == pytest.approx((4 * 10 / 5 + 8 * math.log(5)) / 0.25)
    problem = draw_problem(SEEDS, 10, 2, 60, noise=0.0)
    extremes = subset_extremes(problem, 60)
    step = float(step_limit(extremes.largest).min())
    run = alternate(problem, Alternation(None, step), method_of_moments(problem, draw_samples(problem, 40)), 30, m=40)
    E0 = 1 - run.distance[:, 0].square()
    factor = contraction_factor(tensor([step]), E0, extremes.smallest)
    assert bool((run.distance[:, 1:] <= factor[:, None] * run.distance[:, :-1]).all())
    assert bool((run.distance <= distance_bound(factor, run.distance[:, 0], 30) * (1 + 1e-12)).all())


def test_seeds_do_not_see_each_other() -> None:
    runs = []
    for seeds in ([5, 9], [9]):
        problem = draw_problem(seeds, 6, 2, 20)
        data = draw_samples(problem, 5)
        start = make_start("moments-fresh", problem, data)
        runs.append(alternate(problem, Alternation(2, 0.2), start, 6, m=5, r=0.25).distance[-1])
    assert torch.allclose(runs[0], runs[1], atol=1e-12)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: draw_problem([0], 4, 5, 9), r"k is 5; it must not exceed min\(d, n\) = min\(4, 9\)"),
        (lambda: draw_problem([0], 9, 5, 4), r"k is 5; it must not exceed min\(d, n\)"),
        (lambda: draw_problem([0], 4, 0, 9), "k is 0"),
        (lambda: draw_problem([0], 4, 2, 9, noise=-1e-3), "noise is -0.001"),
        (lambda: draw_problem([0], 4, 2, 9, scaling="x"), "scaling"),  # type: ignore[arg-type]
        (lambda: draw_samples(draw_problem([0], 4, 2, 9), 0), "m is 0; it must be at least 1"),
        (lambda: clients_per_round(9, 0.1), r"r·n is 0.1·9 = 0.9; at least 1"),
        (lambda: clients_per_round(9, 1.1), r"r is 1.1"),
        (lambda: Alternation(None, 0.0), "step is 0; it must be positive"),
        (lambda: Alternation(0, 0.1), "head_steps is 0"),
        (lambda: make_start("zero", BY_HAND, DATA), "start is 'zero'"),  # type: ignore[arg-type]
        (lambda: alternate(BY_HAND, Alternation(None, 0.1), FROM, 1), "either data"),
        (lambda: alternate(BY_HAND, Alternation(None, 0.1), FROM, -1, m=1), "rounds is -1"),
        (lambda: expected_error(3, 0, 0.1), "m is 0"),
    ],
)
def test_refusals(call, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        call()


def test_rn_is_rounded_to_the_nearest_client() -> None:
    assert [clients_per_round(n, 0.1) for n in (10, 14, 15, 26)] == [1, 1, 2, 3]
    assert clients_per_round(3, 1 / 3) == 1


def test_divergence_by_name() -> None:
    problem = draw_problem(SEEDS, 6, 2, 20)
    data = draw_samples(problem, 6)
    start = projected_gradient(problem, data)
    with pytest.raises(DivergenceError, match=r"10GD-GD \(representation; head step 5\) diverges.*seed 0"):
        alternate(problem, Alternation(10, 0.1, 5.0), start, 100, data=data)
    with pytest.raises(DivergenceError, match="FedSGD diverges"):
        fedsgd(problem, start, 300, 50.0, data)
    with pytest.raises(DivergenceError, match="projected-gradient start diverges"):
        projected_gradient(problem, data, rounds=200, step=30.0)
    # FedRep cannot overflow, since B is orthonormal: it wanders, and says so.
    assert bool(alternate(problem, Alternation(None, 50.0), start, 40, data=data).went_away.all())
    assert not bool(alternate(problem, Alternation(None, 0.2), start, 40, data=data).went_away.any())
    assert float(outside(problem.B_star, problem.theta).max()) < 1e-25


def test_one_round_without_qr_by_hand() -> None:
    w = tensor([0.5 + 0.1 * 0.05, -0.1 * 0.7])  # as with QR: the heads come before it
    method = Alternation(1, 0.5, 0.1, orthonormalise=False)
    run = alternate(BY_HAND, method, FROM, 1, data=DATA)
    residual = tensor([[1.4, 0.8]]) * w[:, None] - tensor([[1.0, 0.0], [-1.0, 0.0]])
    gradient = ((residual @ tensor([[1.0, 1.0], [0.0, 1.0]])) * w[:, None]).sum(0) / 4
    moved = tensor([0.6, 0.8]) - 0.5 * gradient
    assert run.B[0, :, 0] == pytest.approx(moved.tolist(), abs=1e-15)
    assert float(run.distance[0, 1]) == pytest.approx(abs(float(moved[1] / moved.norm())), abs=1e-15)
    assert [method.name, Alternation(10, 0.5, orthonormalise=False).name] == ["GD-GD without QR", "10GD-GD without QR"]


def test_without_qr_gd_gd_descends_on_the_training_loss() -> None:
    # With QR it need not: heads stay where they are when the basis changes.
    problem = draw_problem(SEEDS, 6, 2, 20)
    data = draw_samples(problem, 8)
    start = random_start(problem)
    plain = alternate(problem, Alternation(1, 0.05, 0.05, orthonormalise=False), start, 60, data=data)
    assert bool((plain.training[:, 1:] <= plain.training[:, :-1]).all())


def test_a_gaussian_start_is_left_as_drawn() -> None:
    problem = draw_problem(range(300), 10, 2, 7)
    start = make_start("gaussian", problem, draw_samples(problem, 4))
    assert start.B.shape == (300, 10, 2)
    assert start.W.shape == (300, 7, 2)
    assert torch.equal(start.B, normal(problem.seeds, "linear start B", 10, 2))
    squares = start.B.square().sum(1)  # chi-squared with d = 10 degrees of freedom: mean 10, variance 20
    assert float(squares.mean()) == pytest.approx(10, abs=4 * (20 / 600) ** 0.5)
    assert float(squares.var()) == pytest.approx(20, rel=0.3)
    ours = make_start("random", problem, draw_samples(problem, 4))
    assert torch.equal(ours.W, start.W)
    assert float((ours.B.square().sum(1) - 1).abs().max()) < 1e-12
    assert float(principal_angle_distance(ours.B, start.B).max()) < 1e-12  # the same space
    with pytest.raises(ConfigError, match=r"start is 'zero'; known are .*, random and gaussian"):
        make_start("zero", problem, draw_samples(problem, 4))  # type: ignore[arg-type]


def test_from_a_gaussian_start_fedrep_arrives_and_gd_gd_without_qr_diverges() -> None:
    problem = draw_problem(SEEDS, 10, 2, 100)
    data = draw_samples(problem, 10)
    start, upright = gaussian_start(problem), random_start(problem)
    fedrep, other = (alternate(problem, Alternation(None, 1.0), each, 100, data=data) for each in (start, upright))
    assert torch.equal(fedrep.distance[:, 0], other.distance[:, 0])
    assert torch.allclose(fedrep.value[:, -1], other.value[:, -1], rtol=1e-3)
    first = alternate(problem, Alternation(None, 1.0), start, 1, data=data).B
    assert torch.allclose(first.mT @ first, torch.eye(2, dtype=first.dtype).expand(len(SEEDS), 2, 2), atol=1e-12)
    # By what a head sees: |1 − 0.25 λ| with λ up to (√d + √k)² and more of a Gaussian B, about 1 of an orthonormal one.
    plain = Alternation(1, 1.0, 0.25, orthonormalise=False)
    assert not (alternate(problem, plain, upright, 100, data=data).diverged >= 0).any()
    gone = alternate(problem, plain, start, 100, data=data, on_divergence="record")
    assert (gone.diverged >= 0).all()
    assert (gone.value[:, -1] == 1e12).all()
    with pytest.raises(DivergenceError, match="GD-GD without QR"):
        alternate(problem, plain, start, 100, data=data, on_divergence="most")


def test_a_seed_that_diverges_leaves_the_others_as_they_are() -> None:
    problem = draw_problem(SEEDS, 6, 2, 20)
    data = draw_samples(problem, 6)
    start = projected_gradient(problem, data)
    data.x[1] *= 100  # one seed's curvature, and no other's, is far beyond the step
    for method in (Alternation(10, 0.1, 0.1), Alternation(1, 0.1, 0.1, orthonormalise=False)):
        run = alternate(problem, method, start, 40, data=data, on_divergence="most")
        assert (run.diverged >= 0).tolist() == [False, True, False, False]
        assert run.went_away.tolist()[1]
        at = int(run.diverged[1])
        assert run.distance[1, at:].tolist() == [1.0] * (41 - at)
        assert run.value[1, at:].tolist() == [1e12] * (41 - at)
        assert bool(run.B.isfinite().all())
        alone = draw_problem([2], 6, 2, 20)
        same = alternate(alone, method, Start(start.B[2:3], start.W[2:3]), 40, data=Samples(data.x[2:3], data.y[2:3]))
        assert torch.allclose(run.value[2], same.value[0], rtol=1e-9)
        with pytest.raises(DivergenceError, match=r"\(seed 1, .*such as head_step=2.48e-05"):
            alternate(problem, method, start, 40, data=data)
    single = fedsgd(problem, start, 40, 0.1, data, on_divergence="most")
    assert single.went_up.tolist() == [False, True, False, False]
    assert bool(single.theta.isfinite().all())
    with pytest.raises(DivergenceError, match="FedSGD diverges"):
        fedsgd(problem, start, 300, 50.0, data, on_divergence="most")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"seeds": []}, "there is no seed, and so nothing to draw"),
        ({"d": 2.5}, r"d is 2.5; it must be a whole number \(dimension of the inputs\)"),
        ({"k": "2"}, "k is '2'; it must be a whole number"),
        ({"n": 0}, "n is 0; it must be at least 1"),
    ],
)
def test_problems_that_cannot_be_drawn(given: dict[str, object], said: str) -> None:
    settings: dict[str, object] = {"seeds": [0], "d": 4, "k": 2, "n": 3}
    with pytest.raises(ConfigError, match=said):
        draw_problem(**(settings | given))  # type: ignore[arg-type]


def test_orders_need_a_seed() -> None:
    with pytest.raises(ConfigError, match="there is no seed"):
        permutations([], "clients", 3)


def test_samples_are_counted_in_whole_numbers() -> None:
    with pytest.raises(ConfigError, match=r"m is 1.5; it must be a whole number \(samples per client\)"):
        draw_samples(BY_HAND, 1.5)  # type: ignore[arg-type]


def test_samples_of_another_problem_and_a_single_seed_are_refused() -> None:
    problem = draw_problem([0, 1], d=6, k=2, n=4)
    start = make_start("random", problem, draw_samples(problem, 5))
    with pytest.raises(ConfigError, match=r"seeds is 5; it is a sequence of seeds, such as \[0, 1, 2\]"):
        draw_problem(5, d=6, k=2, n=4)  # type: ignore[arg-type]
    says = "the samples are of 1 seeds, n = 3 clients and d = 5, and the problem has 2 seeds, n = 4 and d = 6"
    other = draw_samples(draw_problem([0], d=5, k=2, n=3), 5)
    with pytest.raises(ConfigError, match=says):
        alternate(problem, Alternation(None, step=0.2), start, 3, data=other)
    with pytest.raises(ConfigError, match=says):
        fedsgd(problem, start, 3, 0.2, other)

"""FLUTE's linear theory: a round by hand, the identities of the population case, stationary points, refusals."""

from __future__ import annotations

import math

import pytest
import torch

from commonground.errors import ConfigError, DivergenceError
from commonground.theory.flute import (
    APPENDIX,
    BODY,
    Convention,
    LinearProblem,
    Trajectory,
    asymptotic_rate,
    balanced,
    best_rank_k,
    entering_time,
    exact_heads,
    fedrep,
    flute,
    flute_round,
    gap,
    gaussian_models,
    harmonic_singular_values,
    in_region,
    local_least_squares,
    mean_client_error,
    models,
    models_with_singular_values,
    moment_start,
    objective,
    population_problem,
    random_start,
    rank_k_floor,
    sample_problem,
    stacked,
    step_size_limit,
    theorem_bound,
    theorem_constant,
)
from commonground.theory.subspace import orthonormal
from commonground.theory.threads import one_thread

SEEDS = [3, 11, 42]


def _tensor(values: object) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _sampled(d: int = 6, clients: int = 7, samples: int = 9, seeds: list[int] | None = None) -> LinearProblem:
    seeds = SEEDS if seeds is None else seeds
    return sample_problem(seeds, gaussian_models(seeds, d, clients), samples)


def test_a_round_by_hand() -> None:
    # d = M = 2, k = 1, Φ = diag(2, 1), B = (1, 1)ᵀ, W = (1, 2), η = 0.1; worked out on paper from eqs. (5), (6):
    # BW − Φ = [[−1, 2], [1, 1]]; G Wᵀ = (3, 3), BᵀG = (0, 3); BᵀB = 2, WWᵀ = 5.
    problem = population_problem([0], _tensor([[[2.0, 0.0], [0.0, 1.0]]]))
    start = _tensor([[[1.0], [1.0]]]), _tensor([[[1.0, 2.0]]])
    B, W = flute_round(problem, *start, 0.1, 0.1, 0.25, 0.125)
    # B: 1 − 0.2·3 − 0.05·1·(2 − 5) = 0.55; W: (1 − 0 + 0.05·(2 − 5)·1, 2 − 0.2·3 + 0.05·(−3)·2) = (0.85, 1.1)
    torch.testing.assert_close(B, _tensor([[[0.55], [0.55]]]))
    torch.testing.assert_close(W, _tensor([[[0.85, 1.1]]]))
    B, W = flute_round(problem, *start, 0.1, 0.1, 0.25, 0.125, APPENDIX)  # half the data's gradient
    torch.testing.assert_close(B, _tensor([[[0.85], [0.85]]]))
    torch.testing.assert_close(W, _tensor([[[0.85, 1.4]]]))
    B, W = flute_round(problem, *start, 0.1, 0.1, 0.25, 0.125, Convention("mean-B"))
    torch.testing.assert_close(B, _tensor([[[0.85], [0.85]]]))  # M = 2 divides by two
    torch.testing.assert_close(W, _tensor([[[0.85, 1.1]]]))


@pytest.mark.parametrize("convention", [BODY, APPENDIX, Convention("mean"), Convention("mean", "half-square")])
def test_a_round_is_a_gradient_step_on_objective_4(convention: Convention) -> None:
    problem = _sampled()
    B, W = (t.requires_grad_() for t in random_start(problem, 3, 0.7))
    value = objective(problem, B, W, 0.3, 0.2, convention)
    to_B, to_W = torch.autograd.grad(value.sum(), (B, W))
    new_B, new_W = flute_round(problem, B, W, 0.01, 0.01, 0.3, 0.2, convention)
    torch.testing.assert_close(new_B, B - 0.01 * to_B, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(new_W, W - 0.01 * to_W, rtol=1e-12, atol=1e-13)


def test_gradients_are_those_of_the_samples() -> None:
    seed, d, clients, samples = 5, 3, 2, 4
    phi = gaussian_models([seed], d, clients)
    problem = sample_problem([seed], phi, samples, noise_variance=0.0)
    theta = _tensor([[[0.3, -1.0], [0.5, 0.2], [1.0, 0.0]]])
    # without noise L_i(θ) = (θ − φ)ᵀS(θ − φ)
    assert problem.covariance is not None
    difference = (theta - phi).mT
    by_hand = torch.einsum("smi,smij,smj->s", difference, problem.covariance, difference) / clients
    torch.testing.assert_close(problem.loss(theta), by_hand)
    torch.testing.assert_close(local_least_squares(_sampled(2, 2, 50)), _sampled(2, 2, 50).phi, rtol=0, atol=0.6)
    exact = sample_problem([seed], phi, 8, noise_variance=0.0)
    torch.testing.assert_close(local_least_squares(exact), phi, rtol=1e-9, atol=1e-9)


def test_local_least_squares_with_too_few_samples_is_the_shortest_fit() -> None:
    phi = gaussian_models(SEEDS, 6, 4)
    problem = sample_problem(SEEDS, phi, 2, noise_variance=0.0)
    local = local_least_squares(problem)
    torch.testing.assert_close(problem.residual(local), torch.zeros_like(local), rtol=0, atol=1e-9)
    lengths = [torch.linalg.vector_norm(m, dim=1) for m in (local, phi)]
    assert bool((lengths[0] < lengths[1]).all())


def test_samples_have_the_moments_of_the_population() -> None:
    phi = gaussian_models([7], 3, 2)
    many, limit = sample_problem([7], phi, 200_000, 0.0), population_problem([7], phi)
    torch.testing.assert_close(many.cross, limit.cross, rtol=0, atol=0.03)
    torch.testing.assert_close(many.moment, limit.moment, rtol=0, atol=0.2)
    torch.testing.assert_close(many.power, limit.power, rtol=0.03, atol=0)


def test_generators() -> None:
    phi = models("spectrum", SEEDS, 4, 9)
    torch.testing.assert_close(torch.linalg.svdvals(phi), _tensor([[4.0, 8 / 3, 2.0, 1.6]] * 3))
    assert harmonic_singular_values(4, 3) == [4.0, 8 / 3, 2.0]
    assert torch.linalg.svdvals(models("spectrum", SEEDS, 9, 4)).shape == (3, 4)  # M < d
    assert torch.equal(gaussian_models(SEEDS, 4, 3), gaussian_models(SEEDS, 4, 8)[..., :3])
    assert float(gaussian_models([1], 40, 60).var()) == pytest.approx(1, abs=0.06)


def test_the_floor_is_the_tail_of_the_spectrum() -> None:
    phi = models_with_singular_values(SEEDS, 5, 8, [5, 4, 3, 2, 1])
    left = torch.linalg.matrix_norm(best_rank_k(phi, 3) - phi)
    torch.testing.assert_close(left, torch.full((3,), math.sqrt(5), dtype=torch.float64))
    assert float(rank_k_floor(phi, 5).max()) < 1e-13
    identity = torch.eye(4, dtype=torch.float64).unsqueeze(0) * _tensor([4.0, 3.0, 2.0, 1.0])
    torch.testing.assert_close(rank_k_floor(identity, 2), _tensor([(2 + 1) / 4]))
    torch.testing.assert_close(mean_client_error(torch.zeros_like(identity), identity), _tensor([2.5]))


@pytest.mark.parametrize(("d", "clients"), [(5, 8), (8, 5)])
def test_the_appendix_stacks_the_round_as_equation_13_says(d: int, clients: int) -> None:
    k, step = 2, 0.02
    phi = models("spectrum", SEEDS, d, clients)
    problem = population_problem(SEEDS, phi)
    B, W = random_start(problem, k, 0.5)
    theta = stacked(phi, B, W)
    values = torch.zeros(max(d, clients), dtype=torch.float64)
    values[: min(d, clients)] = torch.linalg.svdvals(phi)[0]
    spectrum = torch.diag(torch.cat([2 * values, -2 * values]))
    expected = theta + step / 2 * (spectrum @ theta - theta @ theta.mT @ theta)
    after = stacked(phi, *flute_round(problem, B, W, step, step, 0.25, 0.125, APPENDIX))
    torch.testing.assert_close(after, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("convention", [BODY, APPENDIX, Convention("mean"), Convention("mean-B")])
def test_with_known_models_the_error_falls_to_machine_precision(convention: Convention) -> None:
    phi = models_with_singular_values(SEEDS, 5, 6, [3, 2.5, 0.5, 0.2, 0.1])
    problem = population_problem(SEEDS, phi)
    slow = 3 if convention.clients != "sum" else 1
    path = flute(problem, 2, 1500 * slow, 0.04, random_start(problem, 2, 0.02), convention=convention, every=100)
    assert float(path.to_best[:, -1].max()) < 1e-13 * 5
    assert path.rounds[0] == 0
    assert path.rounds[-1] == 1500 * slow


@pytest.mark.parametrize(("convention", "factor"), [(BODY, 2), (APPENDIX, 1), (Convention("mean"), 2 / 7)])
@pytest.mark.parametrize("k", [2, 3])
def test_the_rate_near_the_end(convention: Convention, factor: float, k: int) -> None:
    values, step = [3.0, 2.4, 1.5, 0.4, 0.1], 0.03
    phi = models_with_singular_values(SEEDS, 5, 7, values)
    predicted = asymptotic_rate(torch.linalg.svdvals(phi), k, step, 7, convention, dimension=5)
    expected = 1 - factor * step * (values[k - 1] - values[k])
    torch.testing.assert_close(predicted, torch.full((3,), expected, dtype=torch.float64))
    # move from a balanced optimum along the slow direction: u_{k+1} into column k of B, v_{k+1} into row k of W
    u, _, vh = torch.linalg.svd(phi, full_matrices=False)
    B, W = balanced(best_rank_k(phi, k), k)
    sign = torch.sign((B[:, :, k - 1] * u[:, :, k - 1]).sum(dim=1))[:, None]
    B[:, :, k - 1] += 1e-7 * sign * u[:, :, k]
    W[:, k - 1] += 1e-7 * sign * vh[:, k]
    path = flute(population_problem(SEEDS, phi), k, 20, step, (B, W), convention=convention)
    measured = path.to_best[:, 1:] / path.to_best[:, :-1]
    torch.testing.assert_close(1 - measured, (1 - predicted)[:, None].expand(3, 20), rtol=1e-5, atol=0)


def test_the_rate_of_an_overshooting_step_is_that_of_the_fastest_mode() -> None:
    values = _tensor([[2.0, 1.0, 0.1]])
    assert float(asymptotic_rate(values, 1, 0.24, 3, dimension=3)) == pytest.approx(abs(1 - 4 * 0.24 * 2))
    with pytest.raises(ConfigError, match="no closed form"):
        asymptotic_rate(values, 1, 0.1, 3, Convention("mean-B"), dimension=3)


@pytest.mark.parametrize(("d", "clients"), [(3, 3), (4, 3), (3, 4)])
def test_the_rate_where_all_directions_are_kept(d: int, clients: int) -> None:
    """With k = d = M nothing lies beside the first k directions: 1 − 2ηgλ_k, g = 2; else 1 − ηgλ_k."""
    values, step = [3.0, 2.0, 1.0], 0.02
    phi = models_with_singular_values(SEEDS, d, clients, values)
    predicted = asymptotic_rate(torch.linalg.svdvals(phi), 3, step, clients, dimension=d)
    expected = 1 - (4 if d == clients else 2) * step * values[2]
    torch.testing.assert_close(predicted, torch.full((3,), expected, dtype=torch.float64))
    path = flute(population_problem(SEEDS, phi), 3, 400, step, random_start(population_problem(SEEDS, phi), 3, 0.1))
    late = path.to_best[:, 300:301] / path.to_best[:, 299:300]
    if d == clients:  # by 1e-14 there is nothing left to measure: earlier
        late = path.to_best[:, 200:201] / path.to_best[:, 199:200]
    torch.testing.assert_close(late, predicted[:, None], rtol=2e-3, atol=0)


@pytest.mark.parametrize("convention", [BODY, APPENDIX])
def test_the_bound_holds_after_the_entering_time(convention: Convention) -> None:
    phi = models_with_singular_values(SEEDS, 6, 8, [1.5, 1.3, 0.2, 0.1, 0.05])
    values = torch.linalg.svdvals(phi)
    problem, k = population_problem(SEEDS, phi), 2
    step = float(step_size_limit(values, k).min())
    assert step == pytest.approx((2 * 1.1) ** 2 / (228 * 1.5**3))
    start = random_start(problem, k, 1 / 60)
    entering = entering_time(phi, k, *start, step)
    rounds = int(entering.max()) + 200
    path = flute(problem, k, rounds, step, start, convention=convention)
    constant = theorem_constant(values, k, step, entering)
    bound = theorem_bound(values, k, step, 8, torch.arange(rounds + 1, dtype=torch.float64), constant)
    assert bool((path.mean_to_best <= bound)[torch.arange(rounds + 1)[None, :] > entering[:, None]].all())
    assert not bool(in_region(phi, k, *start).any())
    inside = flute(problem, k, math.ceil(float(entering.max())), step, start, convention=convention, every=10**6)
    assert bool(in_region(phi, k, inside.B, inside.W).all())
    # (8) at T_R is 1600 λ_1² √k / (√M η Δ²)
    at = theorem_bound(values, k, step, 8, _tensor([float(entering[0])]), constant)[0, 0]
    assert float(at) == pytest.approx(1600 * 1.5**2 * 2**0.5 / (8**0.5 * step * 2.2**2))


def test_shrinking_penalties_leave_a_scaled_optimum() -> None:
    phi = models_with_singular_values(SEEDS, 4, 6, [2, 1.5, 0.3])
    problem = population_problem(SEEDS, phi)
    path = flute(problem, 2, 1000, 0.04, random_start(problem, 2, 0.05), gamma1=0.25, gamma2=0.375, every=1000)
    torch.testing.assert_close(path.B @ path.W, best_rank_k(phi, 2) / 1.5, rtol=0, atol=1e-12)  # 1 + 2γ2 − γ1


def test_flute_rests_where_fedrep_rests() -> None:
    problem = _sampled(samples=12)
    settled = fedrep(problem, 2, 2000, 0.1, moment_start(problem, 2), every=2000)
    B, W = balanced(settled.B @ settled.W, 2)
    torch.testing.assert_close(B @ W, settled.B @ settled.W)
    torch.testing.assert_close(B.mT @ B, W @ W.mT)
    new_B, new_W = flute_round(problem, B, W, 1.0, 1.0, 0.25, 0.125)
    assert float((new_B - B).abs().max()) < 1e-9
    assert float((new_W - W).abs().max()) < 1e-9
    new_B, _ = flute_round(problem, B, W, 1.0, 1.0, 0.25, 0.25)  # not so with another ratio
    assert float((new_B - B).abs().max()) > 0.1
    # and the other way round: FedRep does not move from where FLUTE has settled
    path = flute(problem, 2, 2500, 0.03, random_start(problem, 2, 0.01), every=2500)
    stays = fedrep(problem, 2, 5, 0.1, path.B, every=5)
    torch.testing.assert_close(stays.B @ stays.W, path.B @ path.W, rtol=0, atol=1e-8)


def test_fedrep_heads_are_exact() -> None:
    problem = _sampled()
    B = moment_start(problem, 3)
    torch.testing.assert_close(B.mT @ B, torch.eye(3, dtype=torch.float64).expand(3, 3, 3))
    W = exact_heads(problem, B)
    left = B.mT @ problem.residual(B @ W)
    assert float(left.abs().max()) < 1e-11
    few = _sampled(samples=2)  # fewer samples than k: least norm, still a fit
    W = exact_heads(few, B)
    assert float((B.mT @ few.residual(B @ W)).abs().max()) < 1e-9
    known = population_problem(SEEDS, problem.phi)
    torch.testing.assert_close(exact_heads(known, B), B.mT @ problem.phi)
    path = fedrep(known, 3, 3000, 0.05, random_start(known, 3, 0.01)[0], every=3000)
    torch.testing.assert_close(path.B @ path.W, best_rank_k(problem.phi, 3), rtol=0, atol=1e-6)


def test_error_falls_like_one_over_the_root_of_the_samples() -> None:
    seeds = list(range(40))
    phi = models_with_singular_values(seeds, 5, 8, [2, 1.7, 0.3, 0.2, 0.1])
    errors = []
    for samples in (200, 3200):
        problem = sample_problem(seeds, phi, samples)
        path = flute(problem, 2, 200, 0.08, random_start(problem, 2, 0.02), every=200)
        errors.append(float(path.mean_to_best[:, -1].mean()))
    assert math.log(errors[1] / errors[0]) / math.log(16) == pytest.approx(-0.5, abs=0.06)


def test_a_seed_does_not_depend_on_those_beside_it() -> None:
    alone, beside = _sampled(seeds=[11]), _sampled()
    one, three = (flute(p, 2, 50, 0.03, random_start(p, 2, 0.01), every=10) for p in (alone, beside))
    torch.testing.assert_close(one.error[0], three.error[1], rtol=1e-12, atol=1e-12)


def test_divergence_by_name() -> None:
    problem = _sampled(seeds=[11])
    start = random_start(problem, 2, 0.5)
    with pytest.raises(DivergenceError, match=r"FLUTE diverges: .* in round \d+ \(seed 11, step size 5"):
        flute(problem, 2, 500, 5.0, start)
    path = flute(problem, 2, 500, 5.0, start, on_divergence="record", every=500)
    assert int(path.diverged[0]) > 0
    assert not bool(path.finished.any())
    assert bool(torch.isfinite(path.error).all())  # the path stays where it last was within range
    flat = flute(problem, 2, 500, 0.03, start, gamma1=0.5, gamma2=0.01, on_divergence="record")  # γ1 > 2γ2
    assert int(flat.diverged[0]) > 0


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda p: random_start(p, 7, 0.1), r"k is 7; it must be at most min\(d, M\) = 6"),
        (lambda p: random_start(p, 0, 0.1), "k is 0; it must be at least 1"),
        (lambda p: random_start(p, 2, 0.0), "alpha is 0; it must be positive"),
        (lambda p: sample_problem(SEEDS, p.phi, 0), "N is 0"),
        (lambda p: sample_problem(SEEDS, p.phi, 3, -0.1), "noise_variance is -0.1"),
        (lambda p: flute(p, 2, 5, 0.0, random_start(p, 2, 0.1)), "step is 0"),
        (lambda p: flute(p, 2, 5, 0.1, random_start(p, 2, 0.1), gamma2=-1), "gamma2 is -1"),
        (lambda p: fedrep(p, 2, 5, -1.0, moment_start(p, 2)), "step is -1"),
        (lambda p: moment_start(p, 9), "k is 9"),
        (lambda p: gaussian_models(SEEDS, 0, 3), "d is 0"),
        (lambda p: models_with_singular_values(SEEDS, 2, 3, [3, 2, 1]), "3 singular values given"),
        (lambda p: models_with_singular_values(SEEDS, 2, 3, [3, -2]), "a singular value is -2"),
        (lambda p: gap(_tensor([[1.0, 1.0]]), 1), "assume a gap"),
        (lambda p: gap(_tensor([[1.0, 1.0]]), 3), "k is 3"),
    ],
)
def test_refusals(call, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        call(_sampled())


def test_one_thread_gives_the_threads_back() -> None:
    before = torch.get_num_threads()
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


def test_a_seed_that_diverges_is_noted_and_the_others_go_on() -> None:
    # FLUTE: one seed's start is far too large. FedRep, orthonormal, leaves every range where one seed's data are.
    problem = _sampled()
    B, W = random_start(problem, 2, 0.01)
    B[1] *= 1e5
    path = flute(problem, 2, 60, 0.03, (B, W), on_divergence="most")
    assert (path.diverged >= 0).tolist() == [False, True, False]
    alone = flute(_sampled(seeds=[SEEDS[2]]), 2, 60, 0.03, (B[2:], W[2:]))
    torch.testing.assert_close(path.error[2], alone.error[0], rtol=1e-12, atol=1e-12)
    assert bool(path.error.isfinite().all())
    with pytest.raises(DivergenceError, match="FLUTE diverges"):
        flute(problem, 2, 60, 0.03, (torch.cat([B[1:2]] * 2 + [B[2:]]), W), on_divergence="most")

    problem.cross[1] *= 1e9
    start = torch.stack([orthonormal(torch.eye(6, 2, dtype=torch.float64))] * 3)
    run = fedrep(problem, 2, 20, 0.03, start, on_divergence="most")
    assert (run.diverged >= 0).tolist() == [False, True, False]
    with pytest.raises(DivergenceError, match=r"FedRep diverges.*seed 11.*step=0.015"):
        fedrep(problem, 2, 20, 0.03, start)


def test_paths_of_several_lists_of_seeds_are_joined() -> None:
    whole, parts = _sampled(), [_sampled(seeds=SEEDS[:2]), _sampled(seeds=SEEDS[2:])]
    one, *several = (flute(p, 2, 20, 0.03, random_start(p, 2, 0.01), every=10) for p in (whole, *parts))
    joined = Trajectory.joined(several)
    assert joined.rounds == one.rounds
    for name in ("error", "loss", "B", "W", "diverged"):
        torch.testing.assert_close(getattr(joined, name), getattr(one, name), rtol=1e-12, atol=1e-12)

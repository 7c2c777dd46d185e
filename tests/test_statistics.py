"""The statistics, against numbers worked out by hand."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.stats import rankdata, wilcoxon

from commonground.statistics import (
    as_array,
    bootstrap_interval,
    detectable_difference,
    holm,
    median_interval,
    paired_difference,
    proportion_interval,
    smallest_p,
    spread,
    student_interval,
    wilcoxon_p,
)


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_spread_is_the_sample_deviation_over_seeds():
    assert spread([0.7, 0.8, 0.9]) == pytest.approx({"mean": 0.8, "std": 0.1})
    assert spread([0.7]) == {"mean": 0.7, "std": None}


def test_holm_by_hand():
    # Sorted 0.01, 0.03, 0.04: 3 · 0.01, then 2 · 0.03, then max(0.06, 0.04).
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([None, 0.02, None, 0.5]) == [None, 0.04, None, 0.5]  # what was not tested does not count
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_never_lowers_and_keeps_the_order(p):
    adjusted = np.array(holm(p), dtype=float)
    assert (adjusted >= np.array(p)).all()
    assert (adjusted <= 1).all()
    assert (np.diff(adjusted[np.argsort(p, kind="stable")]) >= 0).all()


@pytest.mark.parametrize("seeds", range(2, 9))
def test_the_smallest_p_over_seeds_is_reached_and_never_passed(seeds):
    assert wilcoxon_p(np.linspace(0.1, 0.2, seeds)) == pytest.approx(smallest_p(seeds)) == pytest.approx(2 / 2**seeds)


def test_the_signed_rank_test_by_enumeration():
    d = np.array([0.1, -0.2, 0.3, 0.4, -0.05, 0.6])
    ranks = np.abs(d).argsort().argsort() + 1
    centre = ranks.sum() / 2
    found = abs(ranks[d > 0].sum() - centre)
    all_signs = itertools.product([0, 1], repeat=len(d))
    far = [abs(float(np.dot(signs, ranks)) - centre) >= found for signs in all_signs]
    assert wilcoxon_p(d) == pytest.approx(np.mean(far))


def test_ties_and_zeros():
    assert wilcoxon_p([0.0] * 10) == 1.0
    assert wilcoxon_p([0.3]) is None
    # Equal but for rounding: 0.3 - 0.2 and 0.2 - 0.1 tie, 0.1 + 0.2 - 0.3 is zero.
    assert wilcoxon_p([0.3 - 0.2, -(0.2 - 0.1), 0.1 + 0.2 - 0.3, 0.0]) == pytest.approx(1.0)
    few, many = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6], [0.0] * 30
    without, with_zeros = wilcoxon_p(few), wilcoxon_p(few + many)
    assert without is not None
    assert with_zeros is not None
    assert without < 0.05
    assert with_zeros < 1.0


def test_bootstrap_interval():
    d = rng().normal(0.05, 0.02, 200)
    low, high = bootstrap_interval(d, rng()) or (0.0, 0.0)
    half = 1.96 * d.std(ddof=1) / np.sqrt(len(d))
    assert low == pytest.approx(d.mean() - half, abs=5e-4)
    assert high == pytest.approx(d.mean() + half, abs=5e-4)
    assert bootstrap_interval(d, rng()) == (low, high)  # the same draws, the same interval
    assert bootstrap_interval([0.1, 0.1, 0.1], rng()) == pytest.approx((0.1, 0.1))
    assert bootstrap_interval([0.1], rng()) is None
    assert bootstrap_interval([0.0, 0.0, 0.0, 1.0], rng()) is not None
    assert bootstrap_interval(np.tile([0.0, 1.0], 5_000), rng()) == pytest.approx((0.49, 0.51), abs=3e-3)


def test_the_interval_covers():
    draw = np.random.default_rng(1)
    inside = 0
    for _ in range(150):
        low, high = bootstrap_interval(draw.exponential(1.0, 40), draw) or (0, 0)
        inside += low <= 1.0 <= high
    assert 0.87 <= inside / 150 <= 1.0


def test_a_paired_difference():
    reference = [np.array([0.5, 0.6, 0.7]), np.array([0.4, 0.5, 0.6])]
    method = [reference[0] + [0.1, 0.2, 0.3], reference[1] + [0.0, 0.1, 0.2]]
    d = paired_difference(method, reference, same_clients=False, rng=rng())
    assert d.pairs == 6  # every seed has other clients
    assert d.mean == pytest.approx(0.15)
    assert d.std == pytest.approx(np.std([0.2, 0.1], ddof=1))
    assert d.p_clients == wilcoxon_p([0.1, 0.2, 0.3, 0.0, 0.1, 0.2])
    assert d.p_seeds == pytest.approx(0.5)
    assert d.low is not None
    assert d.high is not None
    assert d.low < d.mean < d.high


@pytest.mark.parametrize("same_clients", [False, True])
def test_the_mean_of_a_paired_difference_is_that_of_the_pairs_that_its_interval_is_of(same_clients):
    """Figures that some clients lack, of unequal number from seed to seed."""
    nan = float("nan")
    method = [np.array([0.0, 0.0, 0.0, 0.1, 0.0]), np.array([1.0, nan, nan, nan, nan])]
    d = paired_difference(method, [np.zeros(5), np.zeros(5)], same_clients=same_clients, rng=rng())
    assert d.mean == pytest.approx(0.12 if same_clients else 1.1 / 6)
    assert d.low is not None
    assert d.high is not None
    assert d.low <= d.mean <= d.high


def test_a_client_seen_twice_counts_once():
    reference = [np.zeros(3), np.zeros(3)]
    method = [np.array([0.1, 0.2, 0.3]), np.array([0.0, 0.1, 0.2])]
    d = paired_difference(method, reference, same_clients=True, rng=rng())
    assert d.pairs == 3
    assert d.mean == pytest.approx(0.15)
    assert d.p_clients == wilcoxon_p([0.05, 0.15, 0.25])


def test_one_seed_has_no_test_over_seeds():
    d = paired_difference([np.array([0.5, 0.9])], [np.array([0.4, 0.6])], same_clients=False, rng=rng())
    assert (d.std, d.p_seeds) == (None, None)


def test_clients_are_paired_not_just_counted():
    # Client by client always 0.01 better, though clients differ far more from one another.
    reference = [np.linspace(0.1, 0.9, 30)]
    d = paired_difference([reference[0] + 0.01], reference, same_clients=False, rng=rng())
    assert d.p_clients is not None
    assert d.p_clients < 1e-6
    assert (d.low, d.high) == pytest.approx((0.01, 0.01))


def test_interval_over_seeds_is_students() -> None:
    # mean 2, sample standard deviation 1, t(0.975, 2) = 4.302653: half width 4.302653 / √3
    mean, low, high = student_interval([1.0, 2.0, 3.0])
    assert mean == 2.0
    assert high - mean == pytest.approx(4.302653 / np.sqrt(3), rel=1e-5)
    assert mean - low == pytest.approx(high - mean)


def test_interval_of_the_median_covers_it() -> None:
    rng = np.random.default_rng(0)
    covered = [low < 0 < high for _, low, high in (median_interval(rng.standard_cauchy(20)) for _ in range(2000))]
    assert 0.94 < np.mean(covered) < 0.985


def test_an_interval_of_students_is_that_of_its_single_mean():
    values = np.array([[1.0, 4.0], [2.0, 4.0], [3.0, 4.0]])
    mean, low, high = student_interval(values)
    assert mean.tolist() == [2.0, 4.0]
    for column in range(2):
        expected = student_interval(values[:, column])
        assert (mean[column], low[column], high[column]) == pytest.approx(expected)
    assert [v.tolist() for v in student_interval(values[:1])] == [[1.0, 4.0]] * 3  # one seed has no width


def test_the_median_of_few_values_has_their_range():
    assert [float(v) for v in median_interval([3.0, 1.0, 2.0])] == [2.0, 1.0, 3.0]


def test_a_proportion_by_hand():
    # 0 of n: the upper end of Clopper and Pearson's interval is 1 - 0.025^(1/n).
    share, low, high = proportion_interval([False] * 5)
    assert (share, low, high) == pytest.approx((0.0, 0.0, 1 - 0.025**0.2))
    assert proportion_interval(torch.tensor([[True, False], [True, True]]))[0] == 0.75
    with pytest.raises(ValueError, match="NaN"):
        proportion_interval([1.0, math.nan])


def test_the_difference_that_can_be_shown():
    # Many normal samples of three seeds, standard deviation 1, whose mean is so large: four of five find it.
    values = np.array([1.0, 2.0, 3.0])  # whose standard deviation is 1 as well
    shift = detectable_difference(values)
    draws = np.random.default_rng(0).normal(shift, 1.0, (200_000, 3))
    _, low, _ = student_interval(draws, 1)
    assert float((low > 0).mean()) == pytest.approx(0.8, abs=0.005)
    # With many seeds the quantiles add up: 1.96 + 0.84.
    many = np.tile([-1.0, 1.0], 5000)
    assert detectable_difference(many) * 100 == pytest.approx(1.95996 + 0.84162, rel=1e-3)


def test_a_tensor_is_an_array():
    tensor = torch.tensor([1, 2], dtype=torch.int32, requires_grad=False)
    assert as_array(tensor).dtype == np.float64
    assert as_array(torch.ones(2, requires_grad=True)).tolist() == [1.0, 1.0]


def test_cases_of_one_seed_count_for_less_the_more_they_are_alike():
    alone = proportion_interval([True, False, True, False])
    # Both cases of a seed alike: two cases say no more than one.
    assert proportion_interval([[1, 1], [0, 0], [1, 1], [0, 0]]) == pytest.approx(alone)
    # All cases of all seeds alike: nothing shows how much they depend on each other, and seeds count.
    assert proportion_interval(np.ones((5, 8))) == pytest.approx((1.0, 0.025**0.2, 1.0))
    # Independent cases: nearly as narrow as that of all of them on their own.
    cases = np.random.default_rng(1).random((400, 5)) < 0.7
    _, low, high = proportion_interval(cases)
    _, apart_low, apart_high = proportion_interval(cases.ravel())
    assert high - low == pytest.approx(apart_high - apart_low, rel=0.1)
    # A share that spreads less over seeds than independent cases do counts as all cases, not as more; less what 20
    # seeds leave unknown of that.
    count = 80 * (stats.t.ppf(0.975, 79) / stats.t.ppf(0.975, 19)) ** 2
    by_hand = [
        stats.beta.ppf(0.025, 0.75 * count, 0.25 * count + 1),
        stats.beta.ppf(0.975, 0.75 * count + 1, 0.25 * count),
    ]
    of_twenty = [[1, 1, 1, 0], [1, 1, 0, 1], [1, 0, 1, 1], [1, 1, 1, 1], [1, 1, 0, 0]] * 4
    assert proportion_interval(of_twenty) == pytest.approx((0.75, *by_hand))


@pytest.mark.parametrize(("seeds", "cases"), [(3, 20), (3, 50), (5, 20), (20, 20)])
def test_few_seeds_of_many_cases_do_not_tell_more_than_they_know(seeds: int, cases: int):
    """Of a share of one half, at most one interval in twenty leaves it out, also where cases of a seed are alike."""
    rng = np.random.default_rng(seeds * cases)
    runs = 600
    beside = 0
    for _ in range(runs):
        shares = rng.beta(2.0, 2.0, size=(seeds, 1))  # cases of a seed correlate by 0.2
        _, low, high = proportion_interval(rng.random((seeds, cases)) < shares)
        beside += not low <= 0.5 <= high
    assert beside / runs <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / runs)


@pytest.mark.parametrize("equal", [0, 5, 12, 40])
@pytest.mark.parametrize("ties", [True, False])
def test_few_pairs_that_differ_among_many_equal_ones_by_enumeration(equal: int, ties: bool):
    rng = np.random.default_rng(equal)
    for size in (1, 3, 4, 7, 11):
        differing = rng.choice([-0.2, -0.1, 0.1, 0.2, 0.3], size) if ties else rng.normal(size=size)
        d = np.concatenate([np.zeros(equal), differing])
        if len(d) < 2:
            continue
        ranks = rankdata(np.abs(d))[d != 0]
        found = abs(ranks @ np.sign(d[d != 0]))
        far = [abs(ranks @ np.array(signs)) >= found - 1e-9 for signs in itertools.product([-1, 1], repeat=len(ranks))]
        assert wilcoxon_p(d) == pytest.approx(np.mean(far))
        assert float(wilcoxon_p(d) or 0) >= 2.0 ** (1 - size)  # one more equal pair never makes them more telling


def test_many_pairs_are_told_as_scipy_tells_them():
    rng = np.random.default_rng(3)
    for size in (14, 50):
        d = rng.normal(size=size) + 0.3
        assert wilcoxon_p(d) == pytest.approx(wilcoxon(d, method="exact").pvalue)
    d = np.round(rng.normal(size=80) + 0.2, 1)
    assert wilcoxon_p(d) == pytest.approx(wilcoxon(d, zero_method="pratt").pvalue)
    # Where the exact distribution gives way to the normal one they hardly differ.
    d = np.concatenate([np.zeros(30), rng.normal(size=50) + 0.3])
    assert wilcoxon_p(d) == pytest.approx(wilcoxon(d, zero_method="pratt", method="approx").pvalue, abs=0.01)


def test_very_many_equal_pairs_cost_nothing():
    d = np.concatenate([np.zeros(1_000_000), np.random.default_rng(0).normal(size=50) + 0.5])
    assert wilcoxon_p(d) == pytest.approx(wilcoxon(d, zero_method="pratt").pvalue, abs=0.01)


def test_figures_of_any_size_are_compared_alike() -> None:
    """A difference is one beside its figures, in whatever unit they are: 12 decimals of a small unit are no digits."""
    rng = np.random.default_rng(0)
    one = [rng.random(30) + 1 for _ in range(2)]
    other = [values - 0.05 * rng.random(30) for values in one]
    plain = paired_difference(one, other, same_clients=True, rng=np.random.default_rng(1))
    assert plain.low is not None
    for unit in (1e-12, 1e-3, 1e9):
        scaled = paired_difference(
            [unit * v for v in one], [unit * v for v in other], same_clients=True, rng=np.random.default_rng(1)
        )
        assert scaled.low is not None
        assert scaled.low == pytest.approx(unit * plain.low, rel=1e-6)
        assert scaled.low <= scaled.mean <= (scaled.high or 0)
        assert (scaled.p_clients, scaled.p_seeds) == pytest.approx((plain.p_clients, plain.p_seeds))


@pytest.mark.parametrize("unit", [1e-9, 1.0, 1e6])
def test_rounding_is_no_difference_in_any_unit(unit: float) -> None:
    one = [unit * np.array([0.1 + 0.2, 0.7, 0.9])]
    other = [unit * np.array([0.3, 0.6 + 0.1, 0.9])]
    assert (one[0] != other[0]).any()
    found = paired_difference(one, other, same_clients=True, rng=np.random.default_rng(0))
    assert (found.p_clients, found.low, found.high) == (1.0, 0.0, 0.0)

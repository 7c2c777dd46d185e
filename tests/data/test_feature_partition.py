"""Heterogeneous features: who gets which images, and the labels they get."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from commonground.compare import validation_split
from commonground.config import RunConfig
from commonground.data import (
    Features,
    FederatedDataset,
    Source,
    deal,
    limit_samples,
    load_data,
    load_source,
    parse_partition,
)
from commonground.data.partitions import Partition
from commonground.errors import ConfigError, DataError
from commonground.tasks import AnswerTokens
from tests.helpers import labelled

quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])

sizes = st.lists(st.integers(8, 40), min_size=4, max_size=11)
levels = st.floats(0, 1) | st.sampled_from([0.0, 0.25, 0.5, 1.0])


def dealt(source: Source, h: float, clients: int, seed: int) -> FederatedDataset:
    return deal(source, Features(h), clients, seed)


def original(source: Source, data: FederatedDataset, split: str, client: int) -> Any:
    """The original labels of a client's samples."""
    return source.y_train[data.train_indices(client)] if split == "train" else source.y_test[data.test_indices(client)]


@quick
@given(train=sizes, test=st.integers(4, 20), clients=st.integers(1, 8), h=levels, seed=st.integers(0, 2**40))
def test_every_sample_once_and_equal_parts_of_each_parity(
    train: list[int], test: int, clients: int, h: float, seed: int
) -> None:
    source = labelled(train, [test] * len(train), seed % 7)
    data = dealt(source, h, clients, seed)
    for index, y, split in (
        (data.train_index, source.y_train, "train"),
        (data.test_index, source.y_test, "test"),
    ):
        assert sorted(index) == list(range(len(y)))
        counts = data.class_counts("train" if split == "train" else "test")
        assert counts.shape == (clients, 2)
        for parity in (0, 1):
            total = int((y % 2 == parity).sum())
            assert counts[:, parity].tolist() == [
                total // clients + (client < total % clients) for client in range(clients)
            ]


@quick
@given(train=sizes, clients=st.integers(1, 8), h=levels, seed=st.integers(0, 99))
def test_the_sorted_fraction_is_dealt_in_even_contiguous_blocks(
    train: list[int], clients: int, h: float, seed: int
) -> None:
    y = labelled(train, train, seed).y_train
    rows = np.random.default_rng(seed).permutation(np.flatnonzero(y % 2 == 0))
    owner = np.full(len(y), -1)
    Features(h)._deal(owner, rows, y, clients)
    assert (owner[y % 2 == 1] == -1).all()
    cut = round(h * len(rows))
    chosen, rest = rows[:cut], rows[cut:]
    by_owner = chosen[np.lexsort((y[chosen], owner[chosen]))]
    assert (np.diff(y[by_owner]) >= 0).all()  # client after client, the labels never fall
    blocks = np.bincount(owner[chosen], minlength=clients)
    assert blocks.tolist() == [cut // clients + (client < cut % clients) for client in range(clients)]
    rest_sizes = np.bincount(owner[rest], minlength=clients)
    assert np.ptp(rest_sizes) <= 1
    assert np.ptp(rest_sizes + blocks) <= 1
    for label in np.unique(y[chosen]):  # ties stay in their (random) order
        assert (np.diff(owner[chosen[y[chosen] == label]]) >= 0).all()


@quick
@given(train=sizes, test=sizes, clients=st.integers(1, 6), seed=st.integers(0, 99))
def test_full_heterogeneity_gives_neighbouring_classes(
    train: list[int], test: list[int], clients: int, seed: int
) -> None:
    both = min(len(train), len(test))
    source = labelled(train[:both], test[:both])
    data = dealt(source, 1.0, clients, seed)
    for split in ("train", "test"):
        for parity in (0, 1):
            labels = [original(source, data, split, client) for client in range(clients)]
            row = np.concatenate([np.sort(own[own % 2 == parity]) for own in labels])
            assert (np.diff(row) >= 0).all()


def test_a_client_is_tested_on_the_kinds_it_trains_on() -> None:
    source = labelled([80] * 10, [20] * 10)
    data = dealt(source, 1.0, 5, 3)
    for client in range(5):
        held = [set(original(source, data, split, client).tolist()) for split in ("train", "test")]
        assert held == [{2 * client, 2 * client + 1}] * 2
    mixed = dealt(source, 0.75, 5, 3)
    for client in range(5):
        for split in ("train", "test"):
            most = np.bincount(original(source, mixed, split, client), minlength=10).argsort()[-2:]
            assert set(most.tolist()) == {2 * client, 2 * client + 1}


def test_the_fraction_is_of_each_parity() -> None:
    source = labelled([500] * 10, [100] * 10)
    data = dealt(source, 0.5, 5, 0)
    counts = np.stack([np.bincount(original(source, data, "train", client), minlength=10) for client in range(5)])
    own = np.array([[counts[c, 2 * c], counts[c, 2 * c + 1]] for c in range(5)])
    assert abs(own - 300).max() < 50  # half of a class in its own block, and a fifth of the rest
    others = counts[~np.repeat(np.eye(5, dtype=bool), 2, axis=1)]
    assert abs(others.mean() - 50) < 5


def test_without_heterogeneity_each_parity_is_iid() -> None:
    """Pearson's statistic of classes against clients has the mean and the spread that random dealing gives it."""
    source = labelled([60, 45, 50, 70, 40, 55, 60, 30], [40] * 8)
    clients, statistics = 6, []
    for seed in range(60):
        data = dealt(source, 0.0, clients, seed)
        for split, y in (("train", source.y_train), ("test", source.y_test)):
            table = np.stack([np.bincount(original(source, data, split, c), minlength=8) for c in range(clients)])
            for parity in (0, 1):
                part = table[:, parity::2]
                expected = np.outer(part.sum(1), part.sum(0)) / part.sum()
                degrees = (clients - 1) * (part.shape[1] - 1)
                statistics.append(((part - expected) ** 2 / expected).sum() / degrees)
                assert part.sum() == (y % 2 == parity).sum()
    # 240 values of mean 1 and variance 2 / degrees = 2 / 15.
    assert abs(np.mean(statistics) - 1) < 4 * math.sqrt(2 / 15 / len(statistics))
    assert 0.5 < np.var(statistics) / (2 / 15) < 2


def test_which_images_a_client_gets_is_keyed_by_the_seed() -> None:
    source = labelled([30] * 6, [12] * 6)
    for h in (0.0, 0.5, 1.0):
        prints = [dealt(source, h, 4, seed).fingerprint() for seed in (0, 0, 1)]
        assert prints[0] == prints[1] != prints[2]
    assert dealt(source, 0.5, 4, 0).fingerprint() != dealt(source, 0.25, 4, 0).fingerprint()
    # With h = 1 the classes are fixed, and the samples of a class that two clients share are still drawn at random.
    one, two = (dealt(source, 1.0, 4, seed) for seed in (0, 1))
    assert sorted(original(source, one, "train", 0)) == sorted(original(source, two, "train", 0))
    assert set(one.train_indices(0).tolist()) != set(two.train_indices(0).tolist())


# -- labels -----------------------------------------------------------------------------------------------------------


def test_labels_become_parities() -> None:
    source = load_source("digits")
    data = load_data("digits", 8, partition="features:0.5")
    assert (data.classes, data.class_names) == (2, ("even", "odd"))
    assert np.array_equal(data.y_train, source.y_train % 2)
    assert np.array_equal(data.y_test, source.y_test % 2)
    assert data.x_train is not None
    assert np.array_equal(data.x_train, source.x_train)
    assert "2 classes (2 per client)" in repr(data)
    assert data.fingerprint() != load_data("digits", 8, partition="iid").fingerprint()


def test_other_partitions_leave_labels_alone() -> None:
    assert load_data("digits", 8, partition="iid").classes == 10


def test_validation_and_limits_keep_the_parities_balanced() -> None:
    data = load_data("digits", 8, partition="features:1")
    inner = validation_split(data, 0.25)
    assert (inner.classes, inner.class_names) == (2, ("even", "odd"))
    assert (inner.class_counts("train") + inner.class_counts("test") == data.class_counts("train")).all()
    assert np.ptp(inner.class_counts("test")) <= 2
    limited = limit_samples(data, "train", 20, 0)
    assert (limited.class_counts("train") == 10).all()


def test_any_source_with_a_relabelling_partition() -> None:
    class Swapped(Features):
        def relabelled(self, source: Source) -> Source:
            return replace(source, y_train=1 - source.y_train % 2, y_test=1 - source.y_test % 2, classes=2,
                           class_names=("odd", "even"))  # fmt: skip

    source = labelled([20] * 4, [8] * 4)
    data = deal(source, Swapped(0.5), 3, 0)
    assert data.class_names == ("odd", "even")
    assert np.array_equal(data.y_train, 1 - source.y_train % 2)
    assert np.array_equal(data.train_index, dealt(source, 0.5, 3, 0).train_index)


# -- text -------------------------------------------------------------------------------------------------------------


@given(h=st.floats(0, 1))
def test_text_reads_back(h: float) -> None:
    assert parse_partition(str(Features(h))) == Features(h)


def test_forms_of_the_text() -> None:
    assert str(Features(0.5)) == "features:0.5"
    assert parse_partition("features:0.25") == parse_partition(" features:h=0.25 ") == Features(0.25)
    assert parse_partition("features:1") == Features(1.0)
    assert isinstance(Features(0.5), Partition)
    assert "features:H" in (RunConfig.model_fields["partition"].description or "")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("features", r"needs its h, as in features:0\.5"),
        ("features:", r"needs its h, as in features:0\.5"),
        ("features:much", r"h must be a number, not 'much'"),
        ("features:h=0.5,x=1", r"'x=1' is not understood; the forms are: .*features:H"),
        ("features:1.5", r"h of the features partition must be a number from 0 to 1, not 1\.5"),
        ("features:-0.1", r"from 0 to 1, not -0\.1"),
        ("features:nan", r"from 0 to 1, not nan"),
        ("features:inf", r"from 0 to 1, not inf"),
        ("feature:0.5", r"unknown partition 'feature:0\.5' \(did you mean 'features'\?\); it is one of: .*features:H"),
    ],
)
def test_texts_that_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_partition(text)


def test_values_that_are_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"classes per client \(2\) have no meaning for the partition 'features:0\.5'"
    ):
        parse_partition("features:0.5", 2)
    bad: list[Any] = ["0.5", None, True, math.nan, -math.inf, 2]
    for h in bad:
        with pytest.raises(ConfigError, match="must be a number from 0 to 1"):
            Features(h)


# -- data it cannot deal ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("train", "test", "clients", "message"),
    [
        ([9, 2, 9, 3], [9] * 4, 6, "'labelled' has 5 training samples of odd labels for 6 clients; each needs at leas"),
        ([9] * 4, [2, 9, 2, 9], 5, "'labelled' has 4 test samples of even labels for 5 clients; each needs at least 1"),
        ([9, 0, 9], [9] * 3, 2, "'labelled' has 0 training samples of odd labels for 2 clients; each needs at least 1"),
        ([9], [9], 3, "the 9 training samples of even labels of 'labelled' are all of one class; dealing them to 3 cl"),
        ([9] * 3, [9] * 3, 2, "the 9 training samples of odd labels of 'labelled' are all of one class"),
        ([9, 9, 0, 9], [9] * 4, 2, "the 9 training samples of even labels of 'labelled' are all of one class"),
    ],
)
def test_data_that_are_refused(train: list[int], test: list[int], clients: int, message: str) -> None:
    with pytest.raises(DataError, match=message):
        dealt(labelled(train, test), 0.5, clients, 0)


def test_clients_and_answers() -> None:
    source = labelled([9] * 4, [9] * 4)
    with pytest.raises(ConfigError, match="the number of clients is missing"):
        deal(source, Features(0.5), None, 0)
    with pytest.raises(
        DataError, match="the features partition needs samples with classes, and 'labelled' has answers"
    ):
        dealt(replace(source, task=AnswerTokens()), 0.5, 2, 0)

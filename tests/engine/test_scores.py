"""What a test says of very many clients: gathered in little memory, in half of the bytes, with the same sums."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from commonground.engine.backends.checks import check_scores
from commonground.engine.fine_scores import AddedCounts, FineScores
from commonground.engine.narrow import Room, narrow
from commonground.engine.results import GlobalTest
from commonground.engine.scores import Scores, spread_of
from commonground.engine.training import prepared
from commonground.errors import UpdateError
from commonground.tasks import CLASSIFICATION
from commonground.tasks.regression import Regression
from tests.engine.test_scale import tiny_clients

BINS = 20_000


def block(start: int, clients: int) -> Scores:
    """Of clients from a number on; each is right in its number's last digit of 10 samples."""
    numbers = np.arange(start, start + clients)
    fine = FineScores((), {"auc": numbers / 7}, [{"bins": np.ones(BINS), "loss": np.array(start / 3)}])
    sums = {"accuracy": (numbers % 10).astype(float)}
    return Scores(numbers, np.full(clients, 10), numbers / 3, sums, CLASSIFICATION, fine)


def blocks(clients: int, size: int = 500) -> Iterator[Scores]:
    for start in range(0, clients, size):
        yield block(start, min(size, clients - start))


def test_few_clients_keep_all_digits() -> None:
    whole = Scores.gathered(blocks(70_000), 70_000)
    assert whole.clients.tolist() == list(range(70_000))
    assert {each.values.dtype for each in whole._columns} == {np.dtype(np.int64), np.dtype(np.float64)}
    np.testing.assert_array_equal(whole.loss, np.arange(70_000) / 3)


def test_many_clients_keep_seven_digits_and_the_sums_all(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = Scores.gathered(blocks(70_000), 70_000)
    monkeypatch.setattr("commonground.engine.narrow.MANY", 69_999)
    whole = Scores.gathered(blocks(70_000), 70_000)
    assert whole.loss.dtype == whole.headline.dtype == whole.metrics["auc"].dtype == np.float32
    assert whole.clients.dtype == whole.count.dtype == np.int32
    assert whole.sums["accuracy"].dtype == np.float64
    assert replace(whole, fine=None).over_rows == replace(exact, fine=None).over_rows
    for mine, theirs in zip(whole._columns, exact._columns, strict=True):
        np.testing.assert_allclose(mine.values, theirs.values, rtol=1e-7)
    told, known = spread_of(whole.metrics["auc"]), spread_of(exact.metrics["auc"])
    assert told == pytest.approx(known, rel=1e-7)
    assert told["mean"] == pytest.approx(float(np.float64(whole.metrics["auc"]).mean()), rel=1e-15)


def test_gathering_holds_little_beside_the_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts of rows, here 160 kB a block, are not kept; the five columns of figures take 4 or 8 bytes a client."""
    monkeypatch.setattr("commonground.engine.narrow.MANY", 100)
    peaks = []
    for clients in (100_000, 400_000):
        tracemalloc.start()
        Scores.gathered(blocks(clients), clients)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] - peaks[0] < 300_000 * (4 * 4 + 8) + 100_000


def test_sums_of_parts_are_those_of_all_at_once() -> None:
    """To the last bit, for any number of parts."""
    rng = np.random.default_rng(0)
    for parts in (1, 2, 9, 300):
        counts = [
            {"bins": rng.normal(size=(2, 15)), "one": rng.normal(size=1), "loss": rng.normal(size=())}
            for _ in range(parts)
        ]
        kept = [{name: value.copy() for name, value in one.items()} for one in map(dict, counts)]
        added = AddedCounts()
        for one in counts:
            added.add([{name: np.asarray(value) for name, value in one.items()}])
        (sums,) = added.sums()
        for name in ("bins", "one", "loss"):
            np.testing.assert_array_equal(sums[name], np.sum([one[name] for one in kept], axis=0))
            assert all(np.array_equal(one[name], before[name]) for one, before in zip(counts, kept, strict=True))


def test_a_group_of_blocks_is_added_up_as_all_its_blocks_at_once() -> None:
    whole, joined = Scores.gathered(blocks(20_000), 20_000), Scores.join(list(blocks(20_000)))
    assert whole.fine is not None
    assert joined.fine is not None
    np.testing.assert_array_equal(whole.fine.counts[0]["loss"], joined.fine.counts[0]["loss"])
    assert whole.fine.counts[0]["bins"].tolist() == [40.0] * BINS
    assert whole.loss.tolist() == joined.loss.tolist()


@pytest.mark.parametrize("large", [1e40, -1e40, 1e100, np.inf, np.nan])
def test_a_figure_that_float32_cannot_tell_is_kept_whole(large: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """In whatever block it comes; the others' are not lost."""
    monkeypatch.setattr("commonground.engine.narrow.MANY", 100)
    for where in (0, 35_000, 69_999):
        parts = list(blocks(70_000))
        fine = parts[where // 500].fine
        assert fine is not None
        fine.figures["auc"][where % 500] = parts[where // 500].loss[where % 500] = large
        whole = Scores.gathered(parts, 70_000)
        for values, exact in ((whole.loss, np.arange(70_000) / 3), (whole.metrics["auc"], np.arange(70_000) / 7)):
            assert values.dtype == (np.float64 if np.isfinite(large) else np.float32)
            assert np.array_equal(values[where], large, equal_nan=True)
            np.testing.assert_allclose(np.delete(values, where), np.delete(exact, where), rtol=1e-7)
        assert whole.narrowed().loss.dtype == whole.loss.dtype
        np.testing.assert_allclose(Scores.join(parts).narrowed().loss, whole.loss, rtol=1e-7)


def test_a_metric_that_float32_cannot_tell_is_kept_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("commonground.engine.narrow.MANY", 100)
    sums = {"mse": np.full(200, 1e41), "mae": np.full(200, 3.0), "total": np.zeros(200), "squares": np.ones(200)}
    task = Regression()
    bare = Scores(np.arange(200), np.full(200, 10), np.zeros(200), sums, task)
    values = narrow(bare.sums["mse"] / bare.count)
    assert values.dtype == np.float64
    assert spread_of(values)["mean"] == pytest.approx(1e40)


def test_scores_that_were_not_gathered_are_narrowed_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of clients that answer one by one, or of a sample of very many."""
    monkeypatch.setattr("commonground.engine.narrow.MANY", 1_000)
    parts = list(blocks(70_000))
    gathered, joined = Scores.gathered(parts, 70_000), Scores.join(parts).narrowed()
    for mine, theirs in zip(gathered._columns, joined._columns, strict=True):
        assert mine.values.dtype == theirs.values.dtype
        np.testing.assert_array_equal(mine.values, theirs.values)
    sample = block(0, 500).among(range(70_000)).narrowed()
    assert sample.loss.dtype == sample.headline.dtype == sample.metrics["auc"].dtype == np.float32
    assert sample.count.sum() == 5_000


def test_a_loss_that_cannot_be_is_refused_of_many_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("commonground.engine.narrow.MANY", 100)
    setup = prepared("fedavg", tiny_clients(70_000, names=False), model="linear")
    parts = [replace(one, count=np.ones_like(one.count), sums={}, fine=None) for one in blocks(70_000)]
    parts[-1].loss[-1] = 1e100
    check_scores(setup, Scores.gathered(parts, 70_000), 1)
    parts[-1].loss[-1] = 1e200
    with pytest.raises(UpdateError, match=r"69999.* says 'loss'=1e\+200"):
        check_scores(setup, Scores.gathered(parts, 70_000), 1)


def test_the_spread_of_very_many_is_that_of_all_at_once() -> None:
    values = np.random.default_rng(0).normal(3.0, 2.0, 250_001).astype(np.float32)
    values[7] = np.nan
    known = values[~np.isnan(values)].astype(np.float64)
    told = spread_of(values)
    assert told["std"] == pytest.approx(known.std(), rel=1e-12)
    assert told["mean"] == pytest.approx(known.mean(), rel=1e-12)
    assert told["p10"] == pytest.approx(np.quantile(known, 0.1), rel=1e-6)


@pytest.mark.parametrize(("kind", "many"), [("f8", "f4"), ("i8", "i4"), ("?", "?"), ("u1", "u1")])
def test_half_of_the_bytes_beyond_so_many(kind: str, many: str) -> None:
    assert narrow(np.zeros(100_000, kind)).dtype == np.dtype(kind)
    assert narrow(np.zeros(100_001, kind)).dtype == np.dtype(many)
    few = np.zeros(3, kind)
    assert narrow(few) is few


def test_room_that_becomes_wider_never_reads_what_nobody_wrote(monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies in new memory may be a signalling NaN, at whose conversion NumPy warns."""
    empty = np.empty

    def dirty(shape: tuple[int, ...], kind: np.dtype[Any]) -> np.ndarray[Any, Any]:
        values = empty(shape, kind)
        if kind == np.float32:
            values.view(np.uint32)[...] = 0x7FA00000
        return values

    monkeypatch.setattr("commonground.engine.narrow.MANY", 3)
    monkeypatch.setattr(np, "empty", dirty)
    room = Room(4, np.zeros(1), exact=False)
    for piece in ([1.5, np.nan], [1e300], [2.5]):
        room.add(np.array(piece))
    assert room.values().tolist() == pytest.approx([1.5, np.nan, 1e300, 2.5], nan_ok=True)


def test_the_worst_of_a_global_test_have_so_many_rows() -> None:
    scores = replace(block(0, 10), count=np.array([10] * 9 + [5]))
    told = GlobalTest.of(replace(scores, sums={"accuracy": np.array([5.0] * 9 + [0.0])}, fine=None), 10)
    assert told.metrics["accuracy"]["min"] == 0.5
    assert told.mean == pytest.approx(0.45)
    assert told.headline.tolist() == [0.5] * 9 + [0.0]

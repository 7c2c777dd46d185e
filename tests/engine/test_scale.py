"""What a run costs in the number of its clients: counted in calls and comparisons, at two sizes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commonground import FederatedDataset, load_run, train
from commonground.engine.backends import checks
from commonground.engine.backends.serial import SerialEngine
from commonground.engine.client_rows import ClientRows
from commonground.engine.results import client_rows
from commonground.engine.scores import Scores
from commonground.engine.state.folder import RunFolder
from commonground.engine.training import prepared
from commonground.quoting import escaped, quoted
from commonground.report import write_run_report
from commonground.report.charts import spread_places, through

SAMPLED = 5  # clients a round, however many there are


def tiny_clients(clients: int, names: bool = True) -> FederatedDataset:
    """One training and one test sample for each client."""
    rng = np.random.default_rng(0)
    x, offsets = rng.normal(size=(2 * clients, 3)).astype(np.float32), np.arange(clients + 1)
    y = np.arange(2 * clients) % 2
    return FederatedDataset(
        name="tiny", x_train=x[:clients], y_train=y[:clients], x_test=x[clients:], y_test=y[clients:], classes=2,
        class_names=("0", "1"), train_index=np.arange(clients), train_offsets=offsets,
        test_index=np.arange(clients), test_offsets=offsets,
        client_names=tuple(f"client {c}" for c in range(clients)) if names else None,
    )  # fmt: skip


def counted(work: Callable[[], Any]) -> int:
    """Calls of Python functions, of built-in ones, and iterations of generators, while something is done."""
    count = 0

    def seen(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


def _work(clients: int, folder: Path) -> dict[str, int]:
    data = tiny_clients(clients)
    flags: dict[str, Any] = {"model": "linear", "rounds": 2, "participation": SAMPLED / clients, "engine": "batched"}
    return {
        "train": counted(lambda: train("fedrep", data, out=folder, **flags)),
        "report": counted(lambda: write_run_report(folder)),
        "load": counted(lambda: load_run(folder)),
        "read": counted(lambda: RunFolder(folder).clients()),
    }


def test_calls_grow_no_faster_than_clients(tmp_path: Path) -> None:
    _work(40, tmp_path / "first")  # what is loaded once is loaded
    few, many = _work(200, tmp_path / "few"), _work(1000, tmp_path / "many")
    for what, calls in many.items():
        assert calls <= 5 * few[what] + 1000, what


class Figures:
    """Scores that count how often whole arrays of clients are asked for."""

    def __init__(self, clients: int) -> None:
        self.asked = 0
        self._values = np.arange(clients) / clients
        self.count, self.loss = np.ones(clients, dtype=np.int64), self._values

    @property
    def metrics(self) -> dict[str, Any]:
        self.asked += 1
        return {"accuracy": self._values}

    @property
    def headline(self) -> Any:
        self.asked += 1
        return self._values


def test_rows_of_clients_take_each_array_once() -> None:
    """Not once for every client, which at 100,000 clients took most of a run's time."""
    scores: Any = Figures(500)
    rows = client_rows(tiny_clients(500), [1] * 500, scores, scores.headline)
    assert scores.asked == 2
    assert [row["personal_accuracy"] for row in rows] == scores.headline.tolist()


class Name(str):
    """A name that counts how often it is compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Name.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def _comparisons(find: Callable[[str], int], names: list[Name]) -> int:
    assert find(str(names[0])) == 0  # what is made once is made
    Name.compared = 0
    assert [find(str(name)) for name in names] == list(range(len(names)))
    return Name.compared


def test_a_client_is_found_by_its_name_at_once(tmp_path: Path) -> None:
    names = [Name(f"client {c}") for c in range(300)]
    data = tiny_clients(300)
    object.__setattr__(data, "client_names", tuple(names))
    assert _comparisons(data.client_id, names) <= 2 * len(names)
    run = train("fedavg", tiny_clients(300), model="linear", rounds=1, participation=0.02, out=tmp_path / "run")
    assert _comparisons(replace(run.trained.known, called=names).number, names) <= 2 * len(names)


@pytest.mark.parametrize("engine", ["serial", "batched", "processes", "messages"])
def test_an_update_is_looked_at_once(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """For values that are not finite, however many clients there are that do not take part."""
    looked: list[tuple[str, int | None, str]] = []
    measure = checks.measure

    def seen(*given: Any, **named: Any) -> Any:
        measured = measure(*given, **named)
        looked.extend((place.what, place.client, place.name) for place in measured.sizes if place.what == "update")
        return measured

    modules = [m for m in list(sys.modules.values()) if getattr(m, "measure", None) is measure]
    for module in modules:
        monkeypatch.setattr(module, "measure", seen)
    data = tiny_clients(60, names=False)
    train("fedavg", data, model="linear", rounds=1, participation=SAMPLED / 60, engine=engine, workers=2)
    assert len(looked) == len(set(looked)) == 2 * SAMPLED  # weight and bias of each


def test_texts_that_need_no_escape_are_taken_as_they_are() -> None:
    """The short way gives what the long one does."""
    for text in ("plain", "x" * 200, "x" * 201, "über", "a b", "", "it's", "back\\slash", "tab\t", "\u202e"):
        longhand = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
        assert escaped(text) == (longhand if len(longhand) <= 200 else longhand[:200] + "…")
        marked = "".join(f"\\{c}" if c in "\\'" else c for c in longhand) if text.isprintable() else longhand
        if len(text) <= 200:
            assert quoted(text) == f"'{marked}'"


def test_a_participant_costs_the_same_however_many_clients_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sizes of all clients are worked out once, not for each participant's update."""
    made: list[int] = []
    diff = np.diff

    def counting(values: Any, *rest: Any, **named: Any) -> Any:
        made.append(len(values))
        return diff(values, *rest, **named)

    monkeypatch.setattr(np, "diff", counting)
    counts = []
    for rounds in (1, 4):
        made.clear()
        data = tiny_clients(2500, names=False)
        train("ditto", data, model="linear", rounds=rounds, participation=SAMPLED / 2500, engine="batched")
        counts.append(sum(size > 2000 for size in made))
    assert counts[0] == counts[1]


def test_rows_of_clients_are_made_when_they_are_asked_for() -> None:
    scores: Any = Figures(500)
    scores._values[3] = np.nan
    rows = client_rows(tiny_clients(500), np.ones(500, np.int64), scores, None)
    assert rows[3]["personal_accuracy"] == ""
    assert rows[-1] == rows[499] == list(rows)[499]
    assert [row["client"] for row in rows[10:13]] == [10, 11, 12]
    assert rows == list(rows)
    assert rows != list(rows)[:-1]
    np.testing.assert_array_equal(rows.numbers("personal_accuracy"), scores._values)
    assert rows.numbers("rounds").tolist() == [1.0] * 500
    assert rows.numbers("client").tolist() == list(range(500))  # made one by one
    for name in ("name", "global_accuracy", "nothing"):  # words, empty, and not there
        assert np.isnan(rows.numbers(name)).all()
    with pytest.raises(IndexError):
        rows[500]


def test_figures_of_very_many_clients_have_six_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("commonground.engine.client_rows.MANY", 2)
    rows = ClientRows(
        3, {"loss": np.array([0.6620769070609471, 1.0, 1234567.89]), "rounds": np.array([12345678, 0, 1])}
    )
    assert [row["loss"] for row in rows] == [0.662077, 1.0, 1234570.0]
    assert rows[0]["rounds"] == 12345678


def test_parts_of_a_test_are_joined_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the same order, with the same figures."""
    setup = prepared("fedavg", tiny_clients(40), model="linear", engine="serial")
    engine = SerialEngine(setup)
    whole = engine.evaluate(range(40), setup.initial_shared, "global", detailed=True)
    held: list[int] = []
    join = vars(Scores)["join"].__func__

    def joined(cls: type[Scores], parts: list[Scores]) -> Scores:
        held.append(len(parts))
        return join(cls, parts)

    monkeypatch.setattr(Scores, "join", classmethod(joined))
    monkeypatch.setattr("commonground.engine.evaluation.BLOCK_SAMPLES", 1)
    monkeypatch.setattr("commonground.engine.scores.TOGETHER", 9)
    parts = engine.evaluate(range(40), setup.initial_shared, "global", detailed=True)
    assert parts.clients.tolist() == list(range(40))
    assert parts.headline.tolist() == whole.headline.tolist()
    assert parts.over_rows == pytest.approx(whole.over_rows)
    assert max(held) <= 9


def test_a_picture_of_many_clients_has_few_points() -> None:
    assert spread_places(4) == [0, 1, 2, 3]
    places = spread_places(1_000_000)
    assert (places[0], places[-1], len(set(places))) == (0, 999_999, 5_000)
    assert through(4, 4) == "all clients"
    assert "5,000 of 1,000,000" in through(len(places), 1_000_000)

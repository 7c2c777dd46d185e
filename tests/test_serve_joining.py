"""Requests of one client that arrive together: one pass, the answers each would get alone, errors of one's own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import commonground as cg
from commonground.errors import CommonGroundError, DataError

pytest.importorskip("fastapi")

from commonground.serve import RunModels
from commonground.serve.joining import Joining
from commonground.serve.models import _form


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> RunModels:
    folder, rng = tmp_path_factory.mktemp("joining"), np.random.default_rng(0)
    frame = pd.DataFrame({"shop": rng.choice(["north", "south"], 120), "a": rng.normal(size=120).round(3)})
    frame["zip"] = rng.choice([10.0, 20.0, 2.5], 120)
    frame["day"] = pd.to_datetime("2024-01-01") + pd.to_timedelta(rng.integers(0, 99, 120), "D")
    frame["plan"] = rng.choice(["x", "y"], 120)
    frame.loc[frame.index[::11], ["plan", "a"]] = None
    frame["label"] = np.where(frame.a.fillna(0) > 0, "yes", "no")
    data = cg.load_data(frame, client_column="shop", kinds="zip=category", drop="")
    cg.train("fedrep", data, rounds=2, out=folder / "run")
    return RunModels(cg.load_run(Path(folder / "run")))


def asked(seed: int, count: int = 3) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    return [
        {"a": float(rng.normal()), "zip": 10, "day": f"2024-02-{1 + int(rng.integers(28)):02d}", "plan": "x"}
        for _ in range(count)
    ]


class Passes:
    """Notes the rows of every request of each pass; the first pass waits until it may go on."""

    def __init__(self, models: RunModels, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[list[int]] = []
        self.go = threading.Event()
        whole = models._pass

        def passed(client: str, requests: Sequence[Sequence[Any]]) -> Any:
            self.seen.append([len(rows) for rows in requests])
            assert self.go.wait(10)
            return whole(client, requests)

        monkeypatch.setattr(models, "_pass", passed)

    def asked(self, models: RunModels, client: str, requests: Sequence[Any]) -> list[Any]:
        """What all get that ask while the first is being answered: answers, or the sentence of a refusal."""

        async def all_of_them() -> list[Any]:
            first = asyncio.create_task(models.asked(client, requests[0], 1))
            async with asyncio.timeout(10):
                while not self.seen:
                    await asyncio.sleep(0.001)
            rest = [asyncio.create_task(models.asked(client, rows, 1)) for rows in requests[1:]]
            await asyncio.sleep(0)
            self.go.set()
            return list(await asyncio.gather(first, *rest, return_exceptions=True))

        return [str(one) if isinstance(one, CommonGroundError) else one for one in asyncio.run(all_of_them())]


def said(models: RunModels, client: str, rows: Any) -> Any:
    try:
        return models.predict(client, rows)
    except CommonGroundError as error:
        return str(error)


def test_what_waits_is_one_pass(models: RunModels, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [asked(i, 1 + i % 4) for i in range(9)]
    alone = [models.predict("north", rows) for rows in requests]
    passes = Passes(models, monkeypatch)
    together = passes.asked(models, "north", requests)
    assert passes.seen == [[len(requests[0])], [len(rows) for rows in requests[1:]]]
    for own, wanted in zip(together, alone, strict=True):
        assert [a.answer for a in own] == [a.answer for a in wanted]
        for one, other in zip(own, wanted, strict=True):
            assert one.values == pytest.approx(other.values, abs=1e-6)
    assert not models._joining._lines


def test_a_bad_row_fails_its_own_request(models: RunModels, monkeypatch: pytest.MonkeyPatch) -> None:
    good = [asked(i) for i in range(4)]
    bad = [
        [{**asked(7)[0], "day": "someday"}],  # of the good ones' form
        [{**asked(7)[0], "a": "much"}],
        [{"a": 1.0}],
        [["no", "object"]],
    ]
    wanted = [said(models, "south", rows) for rows in (*good, *bad)]
    assert [isinstance(answer, str) for answer in wanted] == [False] * 4 + [True] * 4
    passes = Passes(models, monkeypatch)
    got = passes.asked(models, "south", [*good, *bad])
    assert [g if isinstance(g, str) else [a.answer for a in g] for g in got] == [
        w if isinstance(w, str) else [a.answer for a in w] for w in wanted
    ]
    assert max(map(len, passes.seen)) >= 4


def test_clients_are_never_joined(models: RunModels) -> None:
    rows = asked(0)
    alone = {client: models.predict(client, rows) for client in ("north", "south")}
    assert alone["north"] != alone["south"]

    async def all_of_them() -> list[Any]:
        return await asyncio.gather(*(models.asked(("north", "south")[i % 2], rows, 1) for i in range(40)))

    for i, own in enumerate(asyncio.run(all_of_them())):
        for one, other in zip(own, alone[("north", "south")[i % 2]], strict=True):
            assert one.values == pytest.approx(other.values, abs=1e-6)


POOLS: dict[str, list[list[Any]]] = {
    "zip": [[1, 20], [10.0, 2.5], [10.0], [2.5, 0.25], ["10", "2.5", "x"], [None, 10, 2.5], [True], [None],
            [1e300, 1e16]],
    "a": [[1, 20], [0.5, 1.0], ["1", "1e3", "2.5"], ["1", " 2", "1,5"], [None, "1"], [None, 1], [False, True],
          ["", "3"]],
    "day": [["2024-03-01"], ["2024-03-01", "9999-01-01"], ["2024-03-01T10:00:00.123456789", "2025-01-01"], [None]],
    "plan": [["x", "y"], ["z", "x"], [None, "x"], ["", "x"], [1, 2], [1.0, 2.5]],
}  # fmt: skip


@st.composite
def two_requests(draw: st.DrawFn) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows of two requests whose columns hold values of the same pools."""
    pools = {name: draw(st.sampled_from(choices)) for name, choices in POOLS.items()}
    row = st.fixed_dictionaries({name: st.sampled_from(pool) for name, pool in pools.items()})
    return draw(st.lists(row, min_size=1, max_size=3)), draw(st.lists(row, min_size=1, max_size=3))


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(requests=two_requests())
def test_rows_are_read_together_as_each_alone(models: RunModels, requests: Any) -> None:
    def read(rows: list[dict[str, Any]]) -> Any:
        return models.rows.read(models.run.trained, rows, "north", 0)[0]

    rows = [row for request in requests for row in request]
    try:
        apart = np.concatenate([read([row]) for row in rows])
    except DataError:
        with pytest.raises(DataError):
            read(rows)
    else:
        np.testing.assert_array_equal(read(rows), apart)


def test_forms_tell_apart_what_is_read_differently() -> None:
    row = {"a": 1.0, "day": "2024-03-01", "plan": "x"}
    forms = [
        _form(rows)
        for rows in (
            [row],
            [{**row, "zip": 10.0}],
            [{**row, "zip": 2.5}],
            [{**row, "zip": 10}],
            [{**row, "zip": "10"}],
            [{**row, "zip": None}],
            [{**row, "zip": True}],
            [{**row, "zip": 10.0}, row],
            [{"zip": 10.0, **row}],
            [[1.0, 2.0]],
            [[1.0, 2.0, 3.0]],
            [[[1.0, 2.0]]],
        )
    ]
    assert len(set(forms)) == len(forms)
    assert _form([row, row]) == _form([{**row, "a": 3.0}])


class Slow:
    """Doubles numbers, but not 13, and writes down every pass; each waits until it may go on."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, list[int]]] = []
        self.go = threading.Event()

    def __call__(self, client: str, numbers: list[int]) -> list[int | Exception]:
        self.seen.append((client, numbers))
        assert self.go.wait(10)
        return [ValueError("unlucky") if number == 13 else number * 2 for number in numbers]

    async def begun(self, passes: int) -> None:
        async with asyncio.timeout(10):
            while len(self.seen) < passes:
                await asyncio.sleep(0.001)


def test_a_pass_has_a_bound_and_clients_take_turns() -> None:
    slow = Slow()

    async def asking() -> list[Any]:
        joining: Joining[int, int] = Joining(slow, small=10)
        first = asyncio.create_task(joining.ask("a", 1, 10))
        await slow.begun(1)
        rest = [asyncio.create_task(joining.ask(client, number, 4)) for client, number in
                (("a", 2), ("b", 13), ("a", 4), ("a", 5), ("b", 6), ("a", 7))]  # fmt: skip
        await asyncio.sleep(0.05)
        assert len(slow.seen) == 1  # one pass at a time
        rest.pop().cancel()  # it is not computed
        await asyncio.sleep(0)
        slow.go.set()
        found = await asyncio.wait_for(asyncio.gather(first, *rest, return_exceptions=True), 10)
        assert not joining._lines
        assert joining._passes is None
        return found

    *numbers, last = asyncio.run(asking())
    assert [n for n in numbers if isinstance(n, int)] == [2, 4, 8, 10]
    assert last == 12
    assert isinstance(numbers[2], ValueError)  # 13 alone
    assert slow.seen == [("a", [1]), ("a", [2, 4]), ("b", [13, 6]), ("a", [5])]


def test_a_long_request_waits_for_nobody_and_nobody_for_it() -> None:
    slow = Slow()

    async def asking() -> list[int]:
        joining: Joining[int, int] = Joining(slow, small=10)
        tasks = [asyncio.create_task(joining.ask("a", number, rows)) for number, rows in ((1, 11), (2, 1), (3, 50))]
        await slow.begun(3)
        slow.go.set()
        return await asyncio.gather(*tasks)

    assert asyncio.run(asking()) == [2, 4, 6]
    assert sorted(slow.seen) == [("a", [1]), ("a", [2]), ("a", [3])]


def test_so_many_long_requests_run_at_once_as_there_are_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    slow = Slow()

    async def asking() -> list[int]:
        joining: Joining[int, int] = Joining(slow, small=10)
        tasks = [asyncio.create_task(joining.ask("a", number, 11)) for number in range(5)]
        await slow.begun(2)
        await asyncio.sleep(0.05)
        assert len(slow.seen) == 2
        slow.go.set()
        return await asyncio.wait_for(asyncio.gather(*tasks), 10)

    assert asyncio.run(asking()) == [0, 2, 4, 6, 8]


def test_too_few_answers_are_an_error_of_all() -> None:
    async def asking() -> list[Any]:
        joining: Joining[int, int] = Joining(lambda client, numbers: numbers[1:], small=10)
        asked = asyncio.gather(*(joining.ask("a", n, 1) for n in range(3)), return_exceptions=True)
        return list(await asyncio.wait_for(asked, 10))

    assert [str(one) for one in asyncio.run(asking())] == ["2 answers to 3 requests"] * 3


def test_an_error_of_a_pass_reaches_all_who_asked_and_who_has_gone_is_left_out() -> None:
    slow = Slow()

    def fails(client: str, numbers: list[int]) -> list[int | Exception]:
        slow(client, numbers)
        raise RuntimeError("no model")

    async def asking() -> None:
        joining: Joining[int, int] = Joining(fails, small=10)
        tasks = [asyncio.create_task(joining.ask("a", number, 1)) for number in range(3)]
        await slow.begun(1)
        tasks[1].cancel()
        slow.go.set()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(one) for one in found] == [RuntimeError, asyncio.CancelledError, RuntimeError]

    asyncio.run(asking())

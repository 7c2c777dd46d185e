"""Requests of one client that arrive together: one pass, the answers each would get alone, errors of one's own."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
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
from commonground.serve.models import _form, _frame


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


class Held:
    """Holds the first pass until all others wait, and counts passes and their rows."""

    def __init__(self, models: RunModels, monkeypatch: pytest.MonkeyPatch, others: int) -> None:
        self.passes: list[list[int]] = []
        whole, line = models._pass, models._joining

        def passed(client: str, requests: Sequence[Sequence[Any]]) -> Any:
            self.passes.append([len(rows) for rows in requests])
            if len(self.passes) == 1:
                while line._lines[client].users < others + 1:
                    threading.Event().wait(0.001)
            return whole(client, requests)

        monkeypatch.setattr(models, "_pass", passed)


def said(models: RunModels, client: str, rows: Any) -> Any:
    try:
        return models.predict(client, rows)
    except CommonGroundError as error:
        return str(error)


def test_what_waits_is_one_pass(models: RunModels, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [asked(i, 1 + i % 4) for i in range(9)]
    alone = [models.predict("north", rows) for rows in requests]
    held = Held(models, monkeypatch, 8)
    with ThreadPoolExecutor(9) as pool:
        together = list(pool.map(lambda rows: models.predict("north", rows), requests))
    assert len(held.passes) == 2
    assert len(held.passes[0]) == 1
    assert sorted(held.passes[0] + held.passes[1]) == sorted(map(len, requests))
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
    held = Held(models, monkeypatch, 7)
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda rows: said(models, "south", rows), (*good, *bad)))
    assert [g if isinstance(g, str) else [a.answer for a in g] for g in got] == [
        w if isinstance(w, str) else [a.answer for a in w] for w in wanted
    ]
    assert max(map(len, held.passes)) >= 4


def test_clients_are_never_joined(models: RunModels, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = asked(0)
    alone = {client: models.predict(client, rows) for client in ("north", "south")}
    assert alone["north"] != alone["south"]
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda i: models.predict(("north", "south")[i % 2], rows), range(40)))
    for i, own in enumerate(got):
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
def test_rows_of_one_form_are_read_together_as_apart(models: RunModels, requests: Any) -> None:
    trained, (one, other) = models.run.trained, requests
    if _form(one) != _form(other):
        return  # then they are not joined
    try:
        together = trained.rows_of(_frame([*one, *other]), 0)
    except DataError:
        return  # then each is read alone
    apart = np.concatenate([trained.rows_of(_frame(rows), 0) for rows in (one, other)])
    np.testing.assert_array_equal(together, apart)


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


def test_a_pass_has_a_bound_and_errors_reach_who_asked() -> None:
    seen: list[list[int]] = []
    begun, go = threading.Event(), threading.Event()

    def answer(client: str, numbers: list[int]) -> list[int | Exception]:
        seen.append(numbers)
        begun.set()
        go.wait(5)
        if 13 in numbers:
            raise ValueError("unlucky")
        return [number * 2 for number in numbers]

    joining: Joining[int, int] = Joining(answer, most=10)
    with ThreadPoolExecutor(12) as pool:
        first = pool.submit(joining.ask, "a", 1, 50)  # more than fit, alone
        begun.wait(5)
        rest = [pool.submit(joining.ask, "a", number, 4) for number in (2, 3, 4, 5)]
        other = pool.submit(joining.ask, "b", 6, 1)  # another client does not wait for this one's pass
        while len(seen) < 2 or joining._lines["a"].users < 5:
            threading.Event().wait(0.001)
        go.set()
        assert [future.result(5) for future in (first, *rest, other)] == [2, 4, 6, 8, 10, 12]
        with pytest.raises(ValueError, match="unlucky"):
            joining.ask("a", 13, 1)
    assert seen[:2] == [[1], [6]]
    assert max(map(len, seen)) == 2
    assert not joining._lines

"""The store of personal state: a dictionary whose rows are on disk, and which any kill leaves whole."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from commonground.algorithms import Tensors
from commonground.engine.state import changed
from commonground.engine.state.checkpoint import Checkpoint, CheckpointFolder
from commonground.engine.state.digests import digest, digest_rows
from commonground.engine.state.segment import Segment
from commonground.engine.state.store import MOST_SEGMENTS, PersonalStore
from commonground.errors import RunError

CLIENTS = 12
INITIAL: Tensors = {
    "w": torch.tensor([[1.0, 2.0], [3.0, 4.0]]),
    "b": torch.tensor(0.5, dtype=torch.float64),
    "steps": torch.zeros(3, dtype=torch.int64),
    "nothing": torch.zeros(0, 4),
}


def filled(value: float) -> Tensors:
    return {
        "w": torch.full((2, 2), float(value)),
        "b": torch.tensor(-value, dtype=torch.float64),
        "steps": torch.full((3,), int(value)),
        "nothing": torch.zeros(0, 4),
    }


def values(tensors: Tensors) -> dict[str, Any]:
    return {name: tensor.tolist() for name, tensor in tensors.items()}


def assert_same(store: PersonalStore, model: dict[int, Tensors]) -> None:
    """The store and a plain dictionary agree, client by client and together."""
    for client, wanted in model.items():
        assert values(store.get(client)) == values(wanted)
        assert values(store.read(client)) == values(wanted)
        assert store.digest(client) == digest(wanted)
    asked = [7, 3, 3, 11, 0]
    for name, stacked in store.gather(asked).items():
        assert stacked.tolist() == [model[client][name].tolist() for client in asked]


# -- a dictionary -----------------------------------------------------------------------------------------------------

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, CLIENTS - 1), st.integers(-9, 9)),
        st.tuples(st.just("save"), st.none(), st.none()),
        st.tuples(st.just("load"), st.none(), st.none()),
        st.tuples(st.just("reopen"), st.none(), st.none()),
    ),
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(STEPS, st.sampled_from([0, 200, 1 << 29]))
def test_it_is_a_dictionary(steps: list[tuple[str, int, int]], memory: int) -> None:
    """Any sequence of puts, saves and returns to what was saved, with rows in memory and in a temporary file."""
    with TemporaryDirectory() as place, patch.object(changed, "MEMORY_BYTES", memory):
        store, model = PersonalStore(CLIENTS, INITIAL), dict.fromkeys(range(CLIENTS), INITIAL)
        saved: list[Segment] = []
        saved_model = dict(model)
        for round, (step, client, value) in enumerate(steps, 1):
            if step == "put":
                store.put(client, filled(value))
                model[client] = filled(value)
            elif step == "save":
                saved, saved_model = store.save(Path(place), round), dict(model)
            else:
                if step == "reopen":
                    store = PersonalStore(CLIENTS, INITIAL)
                store.load([Segment.open(segment.path) for segment in saved])
                model = dict(saved_model)
            assert_same(store, model)


def test_what_was_given_and_what_is_gathered_are_copies(tmp_path: Path) -> None:
    store, given_tensors = PersonalStore(3, INITIAL), filled(7.0)
    store.put(1, given_tensors)
    given_tensors["w"].zero_()
    for _ in range(2):
        gathered = store.gather([0, 1])
        gathered["w"].zero_()
        assert values(store.get(1)) == values(filled(7.0))
        assert values(store.get(0)) == values(INITIAL)
        store.save(tmp_path, 1)
    assert values(PersonalStore(3, INITIAL).gather([2, 0]))["b"] == [0.5, 0.5]


def test_without_personal_tensors(tmp_path: Path) -> None:
    store = PersonalStore(5, {})
    store.put(2, {})
    assert store.gather([0, 2]) == {}
    assert store.get(2) == store.read(2) == {}
    assert store.save(tmp_path, 1) == []
    assert store.digest(2) == store.digest(0)
    assert not list(tmp_path.iterdir())


def test_a_missing_tensor_is_not_passed_over() -> None:
    with pytest.raises(KeyError):
        PersonalStore(2, INITIAL).put(0, {"w": torch.zeros(2, 2)})


# -- segments ---------------------------------------------------------------------------------------------------------


def test_a_segment_is_an_ordinary_safetensors_file(tmp_path: Path) -> None:
    store = PersonalStore(CLIENTS, INITIAL)
    for client in (9, 2):
        store.put(client, filled(client))
    store.save(tmp_path, 20)
    file = load_file(tmp_path / "round-000020.safetensors")
    assert sorted(file) == ["clients", "digests", "rows/b", "rows/nothing", "rows/steps", "rows/w"]
    assert file["clients"].dtype == torch.int64
    assert file["clients"].tolist() == [2, 9]
    assert file["rows/b"].tolist() == [-2.0, -9.0]
    assert file["rows/nothing"].shape == (2, 0, 4)
    assert bytes(file["digests"][1].tolist()).hex() == digest(filled(9))


def test_a_save_costs_what_changed(tmp_path: Path) -> None:
    initial = {"w": torch.zeros(1000)}
    store = PersonalStore(1000, initial)
    for client in range(1000):
        store.put(client, {"w": torch.ones(1000)})
    store.save(tmp_path, 1)
    for round in range(2, 7):
        store.put(round, {"w": torch.ones(1000) * round})
        (*_, newest) = store.save(tmp_path, round)
        assert newest.path.name == f"round-{round:06d}.safetensors"
        assert newest.size < 5_000
    assert store.save(tmp_path, 9)[-1].round == 6, "nothing has changed, nothing is written"


def test_half_stale_is_compacted(tmp_path: Path) -> None:
    store = PersonalStore(CLIENTS, INITIAL)
    for client in range(CLIENTS):
        store.put(client, filled(client))
    sizes = [1]
    store.save(tmp_path, 1)
    for round in range(2, 40):
        for client in (round % 5, (3 * round) % 11):
            store.put(client, filled(round))
        segments = store.save(tmp_path, round)
        sizes.append(len(segments))
        assert sum(len(s.clients) for s in segments) <= 2 * CLIENTS
    assert 1 in sizes[1:]
    assert values(store.get(11)) == values(filled(11))
    # What an earlier checkpoint may need is left in place; whoever knows the checkpoints removes it.
    assert len(list(tmp_path.iterdir())) == 39


def test_segments_of_which_every_row_is_stale_are_left_out(tmp_path: Path) -> None:
    store = PersonalStore(4, INITIAL)
    for round in range(1, 9):
        for client in range(4):
            store.put(client, filled(round))
        assert [s.round for s in store.save(tmp_path, round)] == [round]


def test_many_segments_are_merged(tmp_path: Path) -> None:
    clients = 8 * MOST_SEGMENTS
    store = PersonalStore(clients, INITIAL)
    written = 0
    for client in range(clients):
        store.put(client, filled(client))
        segments = store.save(tmp_path, client + 1)
        written += len(segments[-1].clients)
        assert len(segments) <= MOST_SEGMENTS
    assert written < 6 * clients
    again = PersonalStore(clients, INITIAL)
    again.load(segments)
    assert all(values(again.get(client)) == values(filled(client)) for client in range(clients))


def test_one_client_is_read_without_the_others(tmp_path: Path) -> None:
    """All rows but one are overwritten: that one can be read, and checked, all the same."""
    initial = {"w": torch.zeros(50_000)}
    store = PersonalStore(200, initial)
    for client in range(200):
        store.put(client, {"w": torch.full((50_000,), float(client))})
    (segment,) = store.save(tmp_path, 1)
    content = bytearray(segment.path.read_bytes())
    start = content.index(np.full(50_000, 1, np.float32).tobytes())
    content[start : start + 200_000 * 99] = bytes(200_000 * 99)
    content[start + 200_000 * 100 :] = bytes(len(content) - start - 200_000 * 100)
    # The index lies after the rows of wide numbers; it is written back.
    whole = segment.path.read_bytes()
    content[start + 200_000 * 199 :] = whole[start + 200_000 * 199 :]
    segment.path.write_bytes(content)
    again = PersonalStore(200, initial)
    again.load([Segment.open(segment.path)])
    assert again.read(100)["w"].unique().tolist() == [100.0]
    for client in (1, 99, 101, 199):
        with pytest.raises(RunError, match=rf"round-000001.* is damaged: the state of client {client} is not"):
            again.read(client)
    with pytest.raises(RunError, match="the state of client 1 is not"):
        Segment.open(segment.path).check()


def test_state_of_another_run_is_refused(tmp_path: Path) -> None:
    store = PersonalStore(9, INITIAL)
    store.put(8, filled(1))
    segments = store.save(tmp_path, 1)
    for other in (PersonalStore(8, INITIAL), PersonalStore(9, {"w": INITIAL["w"]})):
        with pytest.raises(RunError, match="holds the state of another run's clients or of another model"):
            other.load(segments)


# -- digests ----------------------------------------------------------------------------------------------------------


def test_digest() -> None:
    """Depends on names, types, shapes and values, and on nothing else."""
    one = {"a": torch.arange(6.0).view(2, 3), "b": torch.zeros(2)}
    assert digest(one) == digest({"b": torch.zeros(2), "a": torch.arange(6.0).view(3, 2).t().t().reshape(2, 3)})
    assert digest({"a": one["a"].t().contiguous().t(), "b": one["b"]}) == digest(one)
    others: list[Tensors] = [
        {"a": one["a"].view(3, 2), "b": one["b"]},
        {"a": one["a"].double(), "b": one["b"]},
        {"a": one["a"], "c": one["b"]},
        {"a": one["a"] + 1e-6, "b": one["b"]},
        {"a": one["a"]},
    ]
    assert len({digest(t) for t in [one, *others]}) == 6


def test_digests_of_rows_are_those_of_each() -> None:
    rows = [filled(value) for value in range(5)]
    stacked = {name: torch.stack([row[name] for row in rows]) for name in INITIAL}
    assert [bytes(d).hex() for d in digest_rows(stacked)] == [digest(row) for row in rows]


# -- kills ------------------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """The process is no more: nothing it does after this has an effect."""


@contextmanager
def killed_at(step: int) -> Iterator[None]:
    """Inside, the ``step``-th operation on a file fails, and all that come after it.

    What was written and not synced by then is cut in half, as after a power cut; renames reach the disk at once.
    """
    real = {name: getattr(os, name) for name in ("open", "write", "replace", "unlink")}
    dirty: dict[str, None] = {}
    names: dict[int, str] = {}
    done = 0

    def step_taken() -> None:
        nonlocal done
        done += 1
        if done == step:
            for path in dirty:
                if os.path.isfile(path):
                    os.truncate(path, os.path.getsize(path) // 2)
        if done >= step:
            raise Killed

    def opened(path: Any, *args: Any, **kwargs: Any) -> int:
        step_taken()
        descriptor: int = real["open"](path, *args, **kwargs)
        names[descriptor] = str(path)
        return descriptor

    def written(descriptor: int, content: Any) -> int:
        step_taken()
        dirty[names[descriptor]] = None
        count: int = real["write"](descriptor, content)
        return count

    def synced(descriptor: int) -> None:
        step_taken()
        dirty.pop(names[descriptor], None)

    def renamed(source: Any, target: Any) -> None:
        step_taken()
        if dirty.pop(str(source), True) is None:
            dirty[str(target)] = None
        real["replace"](source, target)

    def removed(path: Any, **kwargs: Any) -> None:
        step_taken()
        real["unlink"](path, **kwargs)

    with patch.multiple(os, open=opened, write=written, fsync=synced, replace=renamed, unlink=removed):
        yield


def save(folder: CheckpointFolder, store: PersonalStore, round: int) -> None:
    personal = store.save(folder.personal(), round)
    folder.save(Checkpoint(round, {}, {"v": torch.full((3,), float(round))}, personal=personal))


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, CLIENTS - 1), min_size=0, max_size=CLIENTS), min_size=1, max_size=9),
    st.lists(st.integers(1, 120), min_size=1, max_size=4),
)
def test_killed_at_any_file_operation(rounds: list[list[int]], kills: list[int]) -> None:
    """Saves that are killed anywhere, then whatever is there is loaded: it is one round's state as a whole, and never
    an older one than the last that was saved."""
    with TemporaryDirectory() as place:
        states: dict[int, dict[int, Tensors]] = {0: dict.fromkeys(range(CLIENTS), INITIAL)}
        for round, changed_clients in enumerate(rounds, 1):
            states[round] = {**states[round - 1], **{c: filled(100 * round + c) for c in changed_clients}}
        at_least = 0
        for kill in [*kills, 1 << 30]:
            folder, store = CheckpointFolder(Path(place)), PersonalStore(CLIENTS, INITIAL)
            folder.remove_parts()
            notes: list[str] = []
            checkpoint = folder.load(note=notes.append, rows=True)
            assert notes == []
            done = 0
            if checkpoint is not None:
                done = checkpoint.round
                store.load(checkpoint.personal)
                assert checkpoint.shared["v"].tolist() == [done] * 3
            assert done >= at_least
            assert_same(store, states[done])
            try:
                with killed_at(kill):
                    for round in range(done + 1, len(rounds) + 1):
                        for client in rounds[round - 1]:
                            store.put(client, states[round][client])
                        save(folder, store, round)
                        at_least = round
            except Killed:
                pass
        assert_same(store, states[len(rounds)])
        store.put(0, filled(1.0))
        with killed_at(1 << 30):
            save(folder, store, len(rounds) + 1)
        assert_same(store, {**states[len(rounds)], 0: filled(1.0)})
        used = {s.path for path in folder.rounds() for s in folder._read(path, rows=True).personal}
        assert len(folder.rounds()) <= 2
        assert set(folder.personal().iterdir()) == used


# -- memory -----------------------------------------------------------------------------------------------------------


def test_a_hundred_thousand_clients_cost_next_to_nothing(tmp_path: Path) -> None:
    """Four bytes per client until it takes part; then its row, with room for at most as many again."""
    tracemalloc.start()
    store = PersonalStore(100_000, INITIAL)
    for client in range(0, 100_000, 1000):
        store.put(client, filled(float(client)))
    objects = sum(stat.count for stat in tracemalloc.take_snapshot().statistics("filename"))
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size < 100_000 * 4 + 200_000
    assert objects < 5_000
    (segment,) = store.save(tmp_path, 1)
    assert segment.size < 100 * (16 + 8 + 24 + 8 + 32) + 1_000
    assert values(store.get(99_000)) == values(filled(99_000.0))
    assert store.get(99_001) is store.get(5)


MEMORY = """
import sys, torch
from pathlib import Path
from commonground.engine.state import changed
from commonground.engine.state.store import PersonalStore

def resident():
    return int(next(l for l in open("/proc/self/status") if l.startswith("VmRSS")).split()[1]) * 1024

saved, folder = sys.argv[1] == "saved", Path(sys.argv[2])
clients, weights = 20_000, 5_000
changed.MEMORY_BYTES = 40 * weights * 50  # ten rounds
store = PersonalStore(clients, {"w": torch.zeros(weights), "v": torch.zeros(weights)})
generator = torch.Generator().manual_seed(0)
for round in range(1, 121):
    sampled = torch.randint(clients, (50,), generator=generator).tolist()
    own = store.gather(sampled)
    for row, client in enumerate(sampled):
        store.put(client, {name: value[row] + 1 for name, value in own.items()})
    if saved:
        store.save(folder, round)
    if round == 20:
        before = resident()
for first in range(0, clients, 100):
    store.gather(range(first, first + 100))
print(resident() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="reads the resident memory from /proc")
@pytest.mark.parametrize("way", ["saved", "temporary"])
def test_memory_does_not_grow_with_the_clients_that_took_part(way: str, tmp_path: Path) -> None:
    """50 of 20,000 clients a round, 40 kB each: 240 MB of state after 120 rounds, nearly all of it on disk."""
    command = [sys.executable, "-c", MEMORY, way, str(tmp_path)]
    grown = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert grown < 50e6
    shutil.rmtree(tmp_path)

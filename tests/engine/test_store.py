"""The personal-state store: rows per client that took part, nothing per client that did not."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from commonground.algorithms import Tensors
from commonground.engine.state.store import PersonalStore, digest

INITIAL: Tensors = {"w": torch.tensor([[1.0, 2.0], [3.0, 4.0]]), "b": torch.tensor([0.5])}


def filled(value: float) -> Tensors:
    return {"w": torch.full((2, 2), value), "b": torch.full((1,), -value)}


def values(tensors: Tensors) -> dict[str, Any]:
    return {name: tensor.tolist() for name, tensor in tensors.items()}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 19), st.integers(-9, 9)), max_size=40), st.integers(0, 40))
def test_it_is_a_dictionary(puts: list[tuple[int, int]], save_after: int) -> None:
    """Any sequence of puts, with a checkpoint somewhere in between, reads as a plain dictionary would."""
    store, model = PersonalStore(20, INITIAL), dict.fromkeys(range(20), INITIAL)
    for i, (client, value) in enumerate(puts):
        store.put(client, filled(float(value)))
        model[client] = filled(float(value))
        if i == save_after:
            state = {name: tensor.clone() for name, tensor in store.state().items()}
            store = PersonalStore(20, INITIAL)
            store.load(state)
    for client, wanted in model.items():
        assert values(store.get(client)) == values(wanted)
        assert store.digest(client) == digest(wanted)
    asked = [7, 3, 3, 19, 0]
    stacked = store.gather(asked)
    for row, client in enumerate(asked):
        assert values({n: t[row] for n, t in stacked.items()}) == values(model[client])


def test_what_was_given_and_what_is_gathered_are_copies() -> None:
    store, given_tensors = PersonalStore(3, INITIAL), filled(7.0)
    store.put(1, given_tensors)
    given_tensors["w"].zero_()
    gathered = store.gather([0, 1])
    gathered["w"].zero_()
    assert values(store.get(1)) == values(filled(7.0))
    assert values(store.get(0)) == values(INITIAL)
    assert values(PersonalStore(3, INITIAL).gather([2, 0]))["b"] == [[0.5], [0.5]]


def test_a_hundred_thousand_clients_cost_next_to_nothing() -> None:
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
    state = store.state()
    assert state["slot"].numel() == 100_000
    assert state["rows/w"].shape == (100, 2, 2)
    assert all(len(slab) <= 256 for slab in store._slabs.values())
    assert values(store.get(99_000)) == values(filled(99_000.0))
    assert store.get(99_001) is store.get(5)


def test_without_personal_tensors() -> None:
    store = PersonalStore(5, {})
    store.put(2, {})
    assert store.gather([0, 2]) == {}
    assert store.get(2) == {}
    again = PersonalStore(5, {})
    again.load(store.state())
    assert again.digest(2) == store.digest(0)


def test_a_missing_tensor_is_not_passed_over() -> None:
    with pytest.raises(KeyError):
        PersonalStore(2, INITIAL).put(0, {"w": torch.zeros(2, 2)})


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

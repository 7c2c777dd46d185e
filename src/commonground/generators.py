"""Random generators that others draw from, PyTorch's, NumPy's and Python's own: keyed for a while, then put back.

What this library draws has generators of its own (:mod:`commonground.keys`). Code of a user, the ``forward`` of a
module above all, draws from the global ones, or from some that it made itself.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.random import mtrand

from commonground.keys import key_of
from commonground.locks import ProcessLock

__all__ = ["GENERATORS", "keyed_generators"]

GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
"""Kinds of generators that can be keyed."""


_one_at_a_time = ProcessLock(threading.RLock)


@contextmanager
def keyed_generators(
    seed: int, purpose: str, *ids: int | str, others: Iterable[Any] = ()
) -> Iterator[Callable[[], bool]]:
    """While open, draws from the global generators follow from a key; afterwards these are as they were before. Other
    threads that open this wait: there is one of each generator.

    Args:
        seed, purpose, *ids: the key, as of :func:`commonground.keys.torch_stream`.
        others: generators that are treated likewise.

    Yields:
        Says whether anything has been drawn since.
    """
    with _one_at_a_time:
        # Devices last: what the others draw hangs neither on how many there are, nor on whether they are in use.
        yield from _keyed([*_global(), *others, *_of_devices()], key_of(seed, purpose, *ids))


def _keyed(every: list[Any], number: int) -> Iterator[Callable[[], bool]]:
    before = [_state(one) for one in every]
    try:
        for place, one in enumerate(every):
            _seed(one, number + place)
        start = [_state(one) for one in every]
        yield lambda: not all(map(_same, start, map(_state, every)))
    finally:
        for one, state in zip(every, before, strict=True):
            _restore(one, state)


def _global() -> list[Any]:
    """The global generators of the host: of PyTorch, of NumPy and of Python."""
    return [torch.default_generator, mtrand, random]


def _of_devices() -> Iterable[Any]:
    """PyTorch's generators on the CUDA devices of a process that uses them."""
    return torch.cuda.default_generators if torch.cuda.is_initialized() else ()


def _state(one: Any) -> Any:
    if isinstance(one, torch.Generator):
        return one.get_state()
    if isinstance(one, np.random.Generator):
        return one.bit_generator.state
    if one is mtrand or isinstance(one, np.random.RandomState):
        return one.get_state(legacy=False)
    return one.getstate()


def _seed(one: Any, number: int) -> None:
    if isinstance(one, torch.Generator):
        one.manual_seed(number & (2**63 - 1))
    elif isinstance(one, np.random.Generator):
        one.bit_generator.state = type(one.bit_generator)(number).state
    elif one is mtrand or isinstance(one, np.random.RandomState):
        one.seed([number >> 32 & 0xFFFFFFFF, number & 0xFFFFFFFF])
    else:
        one.seed(number)


def _restore(one: Any, state: Any) -> None:
    if isinstance(one, torch.Generator):
        one.set_state(state)
    elif isinstance(one, np.random.Generator):
        one.bit_generator.state = state
    elif one is mtrand or isinstance(one, np.random.RandomState):
        one.set_state(state)
    else:
        one.setstate(state)


def _same(one: Any, other: Any) -> bool:
    """Whether two states are equal: tensors, arrays, or mappings of these."""
    if isinstance(one, dict):
        return all(_same(value, other[name]) for name, value in one.items())
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    return bool(np.array_equal(one, other)) if isinstance(one, np.ndarray) else bool(one == other)

"""FLoRA's way down by the paper's protocol: stacked factors of the rounds a client missed, in place of their sum.

The server remembers the stacks of the last rounds, ``stack/ROUND/LAYER.lora_A`` [K, in] and ``….lora_B`` [out, K]; a
client adds their products to the sum it has, in the rounds' order as the server did, so both have the same numbers.
"""

from __future__ import annotations

import re
from collections.abc import Collection

import torch
from torch import Tensor

from commonground.algorithms.base import Server, Tensors
from commonground.algorithms.federated_lora import factor_pairs
from commonground.errors import UpdateError
from commonground.keys import torch_stream
from commonground.models.lora import Start
from commonground.quoting import quoted

__all__ = ["fresh_factor", "spared", "stack_name", "worked_out", "worth_keeping"]

_STACK = re.compile(r"stack/([1-9]\d{0,8})/(.*)", re.DOTALL)


def stack_name(round: int, factor: str) -> str:
    """What a round's stack of a factor is called."""
    return f"stack/{round}/{factor}"


def fresh_factor(like: Tensor, seed: int, round: int, name: str, start: Start) -> Tensor:
    """A new A, drawn as the model's first (:class:`~commonground.models.lora.LoRALinear`), keyed by round and layer.

    Args:
        like: an A [r, in] of this shape, number type and device.
        seed: of the run.
        round: after which it is drawn.
        name: of the A.
        start: ``kaiming``: U(−1/√in, 1/√in); ``gaussian``: N(0, 1/in).
    """
    bound, stream = like.shape[1] ** -0.5, torch_stream(seed, "flora", round, name)
    if start == "gaussian":
        drawn = torch.randn(like.shape, generator=stream, dtype=torch.float64, device="cpu")
    else:
        drawn = 2 * torch.rand(like.shape, generator=stream, dtype=torch.float64, device="cpu") - 1
    fresh: Tensor = (drawn * bound).to(like.device, like.dtype)
    return fresh


def worth_keeping(memory: Tensors, shared: Tensors) -> Tensors:
    """The server's memory without the stacks that nobody will be sent, since the dense sums are smaller."""
    rounds = _rounds(memory)
    kept, size, most = set(), 0, sum(shared[name].numel() for name in _sums(shared))
    for round in sorted(rounds, reverse=True):
        size += sum(memory[name].numel() for name in rounds[round])
        if size >= most:
            break
        kept.add(round)
    dropped = {name for round, names in rounds.items() if round not in kept for name in names}
    return {name: value for name, value in memory.items() if name not in dropped}


def spared(server: Server, heard: int) -> tuple[frozenset[str], Tensors]:
    """What a client need not be sent, and the stacks it is sent for that (:meth:`Algorithm.spared`)."""
    sums, rounds = _sums(server.shared), _rounds(server.memory)
    drawn = [name for pair in factor_pairs(list(server.shared)) for name in pair] if server.round > 1 else []
    missed = range(max(heard, 1), server.round)
    if any(round not in rounds for round in missed):
        return frozenset(drawn), {}
    return frozenset([*drawn, *sums]), {name: server.memory[name] for round in missed for name in rounds[round]}


def worked_out(known: Tensors, sent: Tensors, round: int, seed: int, start: Start) -> Tensors:
    """What a client takes a message for: fresh factors drawn, stacks added to the sums (:meth:`Algorithm.worked_out`).

    Raises:
        UpdateError: a stack is not of this model, or one of its factors is missing.
    """
    rounds = _rounds(sent)
    stacks = {name for names in rounds.values() for name in names}
    made = {name: value for name, value in sent.items() if name not in stacks}
    for a_name, b_name in factor_pairs(list(known)) if round > 1 else ():
        made.setdefault(a_name, fresh_factor(known[a_name], seed, round - 1, a_name, start))
        made.setdefault(b_name, torch.zeros_like(known[b_name]))
    for name in _sums(known):
        if name in sent:
            continue
        value, layer = known[name], name.removesuffix("merged")
        for past in sorted(rounds):
            a, b = (_stack(sent, stacks, stack_name(past, f"{layer}{factor}")) for factor in ("lora_A", "lora_B"))
            fits = a.ndim == b.ndim == 2 and a.dtype == b.dtype == value.dtype and len(a) == b.shape[1]
            if not fits or (len(b), a.shape[1]) != tuple(value.shape):
                raise UpdateError(f"its stack of round {past} for {quoted(name)} does not fit {tuple(value.shape)}")
            value = value + b @ a
        made[name] = value
    if stacks:
        raise UpdateError(f"it holds the tensor {quoted(min(stacks))}, which belongs to no layer")
    return made


def _stack(sent: Tensors, left: set[str], name: str) -> Tensor:
    if name not in left:
        raise UpdateError(f"it lacks the tensor {quoted(name)}")
    left.remove(name)
    return sent[name]


def _sums(names: Collection[str]) -> list[str]:
    return [name for name in names if name.rpartition(".")[2] == "merged"]


def _rounds(names: Collection[str]) -> dict[int, list[str]]:
    """Names of stacks by round."""
    found: dict[int, list[str]] = {}
    for name in names:
        if match := _STACK.fullmatch(name):
            found.setdefault(int(match[1]), []).append(name)
    return found

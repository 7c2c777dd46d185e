"""Testing every client's own model on its own test data, sharing the body's pass.

The unit is a block of neighbouring clients, fixed by the data set alone, so that figures do not depend on the engine
or the number of workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.func import vmap

from commonground.algorithms import Tensors
from commonground.data.inputs import Inputs, chunks, select, to_device
from commonground.engine.clients.folding import fold_call
from commonground.engine.clients.sequential import feature_chunk
from commonground.engine.clients.stacked_layers import stackable_layers
from commonground.engine.fine_scores import FineRows
from commonground.engine.scores import Scores
from commonground.engine.setup import Setup
from commonground.errors import ModelError
from commonground.models import ModelCut, call_with
from commonground.user_code import failing_as

__all__ = ["blocks_of", "evaluate_block", "run_with"]

BLOCK_SAMPLES = 512
OUTPUT_NUMBERS = 1 << 27  # of outputs held at once: half a GB in float32


def blocks_of(clients: Sequence[int], test_sizes: npt.NDArray[np.int64]) -> Iterator[list[int]]:
    """Cut clients, in order, into blocks of at most ``BLOCK_SAMPLES`` test samples (at least one client each)."""
    block: list[int] = []
    room = BLOCK_SAMPLES
    for client in clients:
        size = int(test_sizes[client])
        if block and size > room:
            yield block
            block, room = [], BLOCK_SAMPLES
        block.append(client)
        room -= size
    if block:
        yield block


def evaluate_block(
    setup: Setup,
    clients: Sequence[int],
    shared: Tensors,
    personal: Tensors,
    stack: bool,
    split: str = "test",
    *,
    key: int | None = None,
    detailed: bool = False,
) -> Scores:
    """Test the personal models of a few clients.

    Args:
        setup: data, model and algorithm.
        clients: client numbers.
        shared: shared tensors.
        personal: the tensors in which the clients' models differ, stacked in the order of ``clients``.
        stack: whether models that differ from their first layer on are run stacked (or one after the other).
        split: ``test`` or ``validation``; every client has rows of it.
        key: of a single client: its number in the federation, which keys what its model draws; by default its position.
        detailed: tell the finer figures as well.
    """
    # What is drawn for a client hangs on no other, nor does what its rows look like to each other.
    if (setup.behaviour.draws_tested or setup.behaviour.joins_tested) and len(clients) > 1:
        each = [{name: value[c : c + 1] for name, value in personal.items()} for c in range(len(clients))]
        pairs = zip(clients, each, strict=True)
        return Scores.join(
            [evaluate_block(setup, [client], shared, own, stack, split, detailed=detailed) for client, own in pairs]
        )
    setup.behaviour.reset(setup.model)
    names = ", ".join(setup.data.client_name(c) for c in clients[:3]) + (", …" if len(clients) > 3 else "")
    number = clients[0] if key is None else key
    with failing_as(f"testing client {names} failed"), setup.keyed(split, number) as drawn:
        scores = _evaluate(setup, clients, shared, personal, stack, split, detailed)
        unexpected = drawn() and not setup.behaviour.draws_tested
    if unexpected:
        raise ModelError(
            "the model draws random numbers in some of its tests but not in others, so that they cannot be keyed; let "
            "it draw only where self.training is true"
        )
    return scores


def _evaluate(
    setup: Setup, clients: Sequence[int], shared: Tensors, personal: Tensors, stack: bool, split: str, detailed: bool
) -> Scores:
    data, model = setup.data, setup.model
    sizes = setup.judged(split)[1][list(clients)]
    rows, y = setup.rows_of(split, clients)
    x = setup.inputs.arrange(rows)
    model.eval()
    shared = {name: value for name, value in shared.items() if name in setup.initial and name not in personal}
    setup.keep_hidden(split, clients)
    owner = torch.from_numpy(np.repeat(np.arange(len(clients)), sizes))
    single: list[dict[str, Tensor]] = []
    fine = FineRows(setup.fine if detailed else ())
    with torch.no_grad():
        for part in _outputs(setup, shared, personal, x, sizes, owner, stack):
            output, done = setup.wide(part), sum(len(scores["loss"]) for scores in single)
            target = y[done : done + len(output)]
            single.append({"loss": data.task.loss(output, target), **data.task.scores(output, target)})
            fine.add(output, target)
    # Added up on the host, in the samples' order: the same sums on every device.
    rows_of = {name: torch.cat([scores[name] for scores in single]).cpu() for name in single[0]}
    sums = {name: _sum_by_owner(value, owner, len(clients)) for name, value in rows_of.items()}
    loss = sums.pop("loss") / sizes
    told = fine.scores(owner.numpy(), len(clients)) if detailed else None
    return Scores(np.asarray(clients, dtype=np.int64), sizes, loss, sums, data.task, told)


def _outputs(
    setup: Setup,
    shared: Tensors,
    personal: Tensors,
    x: Inputs,
    sizes: npt.NDArray[np.int64],
    owner: Tensor,
    stack: bool,
) -> Iterator[Tensor]:
    """What the clients' models say of their rows, in order, in one part or several."""
    model = setup.model
    with setup.autocast():
        if setup.folds:
            size = max(1, OUTPUT_NUMBERS // setup.numbers_per_output)
            for part, own in zip(chunks(x, size), owner.split(size), strict=True):
                yield fold_call(model, {**shared, **personal}, part, own)
            return
        if not personal:
            yield _chunked(setup, partial(run_with, model, shared), x)
            return
        # In evaluation nothing is random, so the shared first part ends before the first personal tensor.
        split = setup.split(frozenset(personal))
        if split is not None or stack:
            yield _stacked_logits(setup, split, shared, personal, x, sizes)
            return
        for c, part in enumerate(_parts(x, sizes)):
            own = {**shared, **{name: value[c] for name, value in personal.items()}}
            yield _chunked(setup, partial(run_with, model, own), part)


def _sum_by_owner(values: Tensor, owner: Tensor, owners: int) -> npt.NDArray[np.float64]:
    whole = torch.zeros(owners, *values.shape[1:], dtype=torch.double, device="cpu")
    sums: npt.NDArray[np.float64] = whole.index_add_(0, owner, values.double()).numpy()
    return sums


def run_with(model: nn.Module, tensors: Tensors, x: Inputs) -> Tensor:
    """A module's output for inputs x with these tensors in place of its own."""
    out: Tensor = call_with(model, tensors, x)
    return out


def _chunked(setup: Setup, run: Callable[[Inputs], Tensor], x: Inputs) -> Tensor:
    if setup.behaviour.joins_tested:
        return run(x)  # of a single client
    size = feature_chunk(x, setup.device) if any(value.ndim == 4 for value in x.values()) else 4096
    return torch.cat([run(part) for part in chunks(x, size)])


def _parts(x: Inputs, sizes: npt.NDArray[np.int64]) -> list[Inputs]:
    """A batch cut into parts of these sizes."""
    ends = np.cumsum(sizes)
    return [{n: value[end - size : end] for n, value in x.items()} for end, size in zip(ends, sizes, strict=True)]


def _stacked_logits(
    setup: Setup, split: ModelCut | None, shared: Tensors, personal: Tensors, x: Inputs, sizes: npt.NDArray[np.int64]
) -> Tensor:
    """One pass of the shared first part over all samples, then every client's own rest as one stacked call."""
    names: dict[str, str]
    if split is None:
        module, names = setup.model, {name: name for name in {**shared, **personal}}
    else:
        # A captured first part is the whole model, whose head's values do not matter for the head's input.
        everything = {**setup.moved(setup.initial), **shared}
        own = {n for n, _ in split.first.named_parameters()} | {n for n, _ in split.first.named_buffers()}
        first = {name: value for name, value in everything.items() if name in own}
        run = partial(run_with, split.first, first)
        x = {"x": _chunked(setup, lambda part: split.features(run, part), x)}
        module, names = split.rest, split.rest_names
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    position = np.arange(sizes.max())[None, :] % sizes[:, None] + starts[:, None]
    padded = select(x, to_device(torch.from_numpy(position), setup.device))
    mine = {names[name]: value for name, value in personal.items()}
    common = {names[name]: value for name, value in shared.items() if name in names}
    with stackable_layers(module):
        logits = vmap(lambda own, part: run_with(module, {**common, **own}, part))(mine, padded)
    inside = np.flatnonzero(np.arange(sizes.max())[None, :] < sizes[:, None])
    chosen: Tensor = logits.flatten(0, 1)[to_device(torch.from_numpy(inside), setup.device)]
    return chosen

"""Testing every client's own model on its own test data, sharing the body's pass.

The unit is a block of neighbouring clients, fixed by the data set alone, so that figures do not depend on the engine
or the number of workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.func import vmap

from commonground.algorithms import Tensors
from commonground.data.inputs import Inputs, chunks, select, to_device
from commonground.engine.clients.folding import fold_call
from commonground.engine.clients.sequential import FEATURE_CHUNK
from commonground.engine.clients.stacked_layers import stackable_layers
from commonground.engine.fine_scores import FineRows, FineScores
from commonground.engine.setup import Setup
from commonground.errors import ModelError
from commonground.models import Split, call_with
from commonground.tasks import Task
from commonground.tasks.base import Figures
from commonground.user_code import failing_as

__all__ = ["Scores", "blocks_of", "evaluate_block", "run_with", "spread_of"]

BLOCK_SAMPLES = 512
TOGETHER = 64  # blocks whose figures are added up before those of others
OUTPUT_NUMBERS = 1 << 27  # of outputs held at once: half a GB in float32


@dataclass(frozen=True)
class Scores:
    """Test results of several clients.

    Attributes:
        clients: [C] their numbers.
        count: [C] test samples; 0 for a client that was not asked, or was and did not answer.
        loss: [C] mean loss; NaN without samples.
        sums: by name, [C, …]: what the task scores, added up over each client's samples.
        task: says which metrics follow.
        fine: further figures, if the test was a detailed one.
    """

    clients: npt.NDArray[np.int64]
    count: npt.NDArray[np.int64]
    loss: npt.NDArray[np.float64]
    sums: Figures
    task: Task
    fine: FineScores | None = None

    @cached_property
    def metrics(self) -> Figures:
        """Every metric of every client, by name: [C]; NaN where one is not defined."""
        with np.errstate(invalid="ignore", divide="ignore"):  # of a client that did not answer: of no rows
            means = {n: s / self.count.reshape(-1, *[1] * (s.ndim - 1)) for n, s in self.sums.items()}
            return {**self.task.metrics(means), **({} if self.fine is None else self.fine.figures)}

    @property
    def headline(self) -> npt.NDArray[np.float64]:
        """[C] the task's headline metric."""
        return self.metrics[self.task.metric]

    @property
    def over_rows(self) -> dict[str, float]:
        """Every metric over all clients' samples as one set."""
        whole = {name: s.sum(0, keepdims=True) / max(1, self.count.sum()) for name, s in self.sums.items()}
        plain = {name: float(value[0]) for name, value in self.task.metrics(whole).items()}
        return {**plain, **({} if self.fine is None else self.fine.over_rows)}

    def among(self, clients: Sequence[int]) -> Scores:
        """The same among these clients, in their order: those of them that have no test get one of no rows."""
        if len(self.clients) == len(clients):
            return self
        everyone = np.asarray(clients)
        order = np.argsort(everyone)
        places = order[np.searchsorted(everyone, self.clients, sorter=order)]

        def spread(values: npt.NDArray[Any], untested: float) -> npt.NDArray[Any]:
            whole = np.full((len(everyone), *values.shape[1:]), untested, dtype=values.dtype)
            whole[places] = values
            return whole

        return replace(self._with_each(spread), clients=everyone)

    @classmethod
    def gathered(cls, parts: Iterable[Scores], clients: int) -> Scores:
        """As :meth:`join`, without ever holding all of many blocks beside the whole. Every :data:`TOGETHER` of them are
        added up first, in every engine, so that their sums are the same to the last bit.

        Args:
            parts: in order.
            clients: how many they are of.
        """
        blocks = iter(parts)
        few = list(islice(blocks, TOGETHER))
        first = cls.join(few)
        if len(first.clients) == clients:
            return first
        whole = first._with_each(lambda values, _: np.empty((clients, *values.shape[1:]), values.dtype))
        counts, done = [], 0
        while few:
            part = cls.join(few)
            for room, values in zip(whole._columns, part._columns, strict=True):
                room[done : done + len(values)] = values
            done += len(part.clients)
            counts.append(part.fine)
            few = list(islice(blocks, TOGETHER))
        return replace(whole, fine=whole.fine and whole.fine.with_counts_of([each for each in counts if each]))

    @property
    def _columns(self) -> list[npt.NDArray[Any]]:
        """All arrays [C, …], in one order."""
        fine = [] if self.fine is None else self.fine.figures.values()
        return [self.clients, self.count, self.loss, *self.sums.values(), *fine]

    def _with_each(self, of: Callable[[npt.NDArray[Any], float], npt.NDArray[Any]]) -> Scores:
        """Another array for each one [C, …], made of it and of what stands there for a client without a test."""
        fine = self.fine
        if fine is not None:
            fine = replace(fine, figures={name: of(values, np.nan) for name, values in fine.figures.items()})
        sums = {name: of(values, 0) for name, values in self.sums.items()}
        return Scores(of(self.clients, 0), of(self.count, 0), of(self.loss, np.nan), sums, self.task, fine)

    @classmethod
    def join(cls, parts: Sequence[Scores]) -> Scores:
        """Results of several blocks, one after the other."""
        return cls(
            np.concatenate([p.clients for p in parts]),
            np.concatenate([p.count for p in parts]),
            np.concatenate([p.loss for p in parts]),
            {name: np.concatenate([p.sums[name] for p in parts]) for name in parts[0].sums},
            parts[0].task,
            FineScores.join([p.fine for p in parts if p.fine is not None]) if parts[0].fine is not None else None,
        )


def spread_of(values: npt.NDArray[np.float64], ranked: npt.NDArray[np.bool_] | None = None) -> dict[str, float | None]:
    """mean, std, p10, p90, min and max over the clients for which a metric is defined; None where it is for none.

    Args:
        values: [C].
        ranked: [C] which clients p10, p90, min and max are over; by default all. Mean and std are always over all.
    """
    known = ~np.isnan(values)
    among = values[known if ranked is None else known & ranked]
    values = values[known]
    ends: dict[str, Callable[[npt.NDArray[np.float64]], Any]] = {
        "p10": partial(np.quantile, q=0.1), "p90": partial(np.quantile, q=0.9), "min": np.min, "max": np.max,
    }  # fmt: skip
    return {
        "mean": float(values.mean()) if len(values) else None,
        "std": float(values.std()) if len(values) else None,
        **{name: float(of(among)) if len(among) else None for name, of in ends.items()},
    }


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
    if setup.behaviour.draws_tested and len(clients) > 1:  # what is drawn for a client hangs on no other
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
            route = to_device(owner, setup.device)
            size = max(1, OUTPUT_NUMBERS // setup.numbers_per_output)
            for part, own in zip(chunks(x, size), route.split(size), strict=True):
                yield fold_call(model, {**shared, **personal}, part, own)
            return
        if not personal:
            yield _chunked(partial(run_with, model, shared), x)
            return
        # In evaluation nothing is random, so the shared first part ends before the first personal tensor.
        split = setup.split(frozenset(personal))
        if split is not None or stack:
            yield _stacked_logits(setup, split, shared, personal, x, sizes)
            return
        for c, part in enumerate(_parts(x, sizes)):
            own = {**shared, **{name: value[c] for name, value in personal.items()}}
            yield _chunked(partial(run_with, model, own), part)


def _sum_by_owner(values: Tensor, owner: Tensor, owners: int) -> npt.NDArray[np.float64]:
    whole = torch.zeros(owners, *values.shape[1:], dtype=torch.double, device="cpu")
    sums: npt.NDArray[np.float64] = whole.index_add_(0, owner, values.double()).numpy()
    return sums


def run_with(model: nn.Module, tensors: Tensors, x: Inputs) -> Tensor:
    """A module's output for inputs x with these tensors in place of its own."""
    out: Tensor = call_with(model, tensors, x)
    return out


def _chunked(run: Callable[[Inputs], Tensor], x: Inputs) -> Tensor:
    size = FEATURE_CHUNK if any(value.ndim == 4 for value in x.values()) else 4096
    return torch.cat([run(part) for part in chunks(x, size)])


def _parts(x: Inputs, sizes: npt.NDArray[np.int64]) -> list[Inputs]:
    """A batch cut into parts of these sizes."""
    ends = np.cumsum(sizes)
    return [{n: value[end - size : end] for n, value in x.items()} for end, size in zip(ends, sizes, strict=True)]


def _stacked_logits(
    setup: Setup, split: Split | None, shared: Tensors, personal: Tensors, x: Inputs, sizes: npt.NDArray[np.int64]
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
        x = {"x": _chunked(lambda part: split.features(run, part), x)}
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

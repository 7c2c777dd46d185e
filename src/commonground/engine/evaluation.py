"""Testing every client's own model on its own test data, sharing the body's pass.

The unit is a block of neighbouring clients, fixed by the data set alone, so that figures do not depend on the engine
or the number of workers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap

from commonground.algorithms import Tensors
from commonground.engine.clients.folding import fold_call
from commonground.engine.clients.sequential import FEATURE_CHUNK
from commonground.engine.setup import Setup
from commonground.models import Split

__all__ = ["Scores", "blocks_of", "evaluate_block", "run_with"]

BLOCK_SAMPLES = 512


@dataclass(frozen=True)
class Scores:
    """Test results of several clients.

    Attributes:
        clients: [C] their numbers.
        correct: [C] samples whose largest logit is the label's.
        count: [C] test samples.
        loss: [C] mean cross-entropy.
    """

    clients: npt.NDArray[np.int64]
    correct: npt.NDArray[np.int64]
    count: npt.NDArray[np.int64]
    loss: npt.NDArray[np.float64]

    @property
    def accuracy(self) -> npt.NDArray[np.float64]:
        """[C] share of correct samples."""
        return self.correct / self.count

    @classmethod
    def join(cls, parts: Sequence[Scores]) -> Scores:
        """Results of several blocks, one after the other."""
        return cls(
            np.concatenate([p.clients for p in parts]),
            np.concatenate([p.correct for p in parts]),
            np.concatenate([p.count for p in parts]),
            np.concatenate([p.loss for p in parts]),
        )


def blocks_of(clients: Sequence[int], test_sizes: npt.NDArray[np.int64]) -> list[list[int]]:
    """Cut clients, in order, into blocks of at most ``BLOCK_SAMPLES`` test samples (at least one client each)."""
    blocks: list[list[int]] = []
    room = 0
    for client in clients:
        size = int(test_sizes[client])
        if not blocks or size > room:
            blocks.append([])
            room = BLOCK_SAMPLES
        blocks[-1].append(client)
        room -= size
    return blocks


def evaluate_block(setup: Setup, clients: Sequence[int], shared: Tensors, personal: Tensors, stack: bool) -> Scores:
    """Test the personal models of a few clients.

    Args:
        setup: data, model and algorithm.
        clients: client numbers.
        shared: shared tensors.
        personal: the tensors in which the clients' models differ, stacked in the order of ``clients``.
        stack: whether models that differ from their first layer on are run stacked (or one after the other).
    """
    data, model = setup.data, setup.model
    indices = [data.test_indices(c) for c in clients]
    sizes = np.array([len(i) for i in indices])
    rows, y = setup.samples.rows("test", np.concatenate(indices))
    x = setup.samples.arrange(rows)
    model.eval()
    shared = {name: value for name, value in shared.items() if name in setup.initial and name not in personal}
    setup.keep_hidden("test", clients)
    with torch.no_grad():
        if setup.folds:
            route = torch.from_numpy(np.repeat(np.arange(len(clients)), sizes))
            logits = fold_call(model, {**shared, **personal}, x, route)
        elif not personal:
            logits = _chunked(lambda part: functional_call(model, shared, (part,)), x)
        else:
            # In evaluation nothing is random, so the shared first part ends before the first personal tensor.
            split = setup.split(frozenset(personal))
            if split is None and not stack:
                pieces = []
                for c, part in enumerate(x.split(sizes.tolist())):
                    own = {**shared, **{name: value[c] for name, value in personal.items()}}
                    pieces.append(_chunked(partial(run_with, model, own), part))
                logits = torch.cat(pieces)
            else:
                logits = _stacked_logits(setup, split, shared, personal, x, sizes)
        if setup.language:
            each, right = logits[:, 0].double(), logits[:, 1].long()
        else:
            each = F.cross_entropy(logits, y, reduction="none").double()
            right = (logits.argmax(1) == y).long()
    owner = torch.from_numpy(np.repeat(np.arange(len(clients)), sizes))
    correct = torch.zeros(len(clients), dtype=torch.long).index_add_(0, owner, right)
    loss = torch.zeros(len(clients), dtype=torch.double).index_add_(0, owner, each)
    return Scores(np.asarray(clients, dtype=np.int64), correct.numpy(), sizes, loss.numpy() / sizes)


def run_with(model: nn.Module, tensors: Tensors, x: Tensor) -> Tensor:
    """A module's output for inputs x with these tensors in place of its own."""
    out: Tensor = functional_call(model, tensors, (x,))
    return out


def _chunked(call: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    size = FEATURE_CHUNK if x.ndim == 4 else 4096
    return torch.cat([call(part) for part in x.split(size)])


def _stacked_logits(
    setup: Setup, split: Split | None, shared: Tensors, personal: Tensors, x: Tensor, sizes: npt.NDArray[np.int64]
) -> Tensor:
    """One pass of the shared first part over all samples, then every client's own rest as one stacked call."""
    names: dict[str, str]
    if split is None:
        module, names = setup.model, {name: name for name in {**shared, **personal}}
    else:
        # A captured first part is the whole model, whose head's values do not matter for the head's input.
        everything = {**setup.initial, **shared}
        own = {n for n, _ in split.first.named_parameters()} | {n for n, _ in split.first.named_buffers()}
        first = {name: value for name, value in everything.items() if name in own}
        x = _chunked(lambda part: split.features(lambda p: functional_call(split.first, first, (p,)), part), x)
        module, names = split.rest, split.rest_names
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    position = np.arange(sizes.max())[None, :] % sizes[:, None] + starts[:, None]
    padded = x[torch.from_numpy(position)]
    mine = {names[name]: value for name, value in personal.items()}
    common = {names[name]: value for name, value in shared.items() if name in names}
    logits = vmap(lambda own, part: functional_call(module, {**common, **own}, (part,)))(mine, padded)
    inside = torch.from_numpy(np.arange(sizes.max())[None, :] < sizes[:, None])
    chosen: Tensor = logits[inside]
    return chosen

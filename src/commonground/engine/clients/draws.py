"""Dropout masks and random image changes of training steps, drawn by key on the host and moved ahead of their use."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from commonground.algorithms import Tensors
from commonground.data.augment import Draws
from commonground.data.inputs import to_device
from commonground.engine.setup import Setup
from commonground.keys import torch_stream
from commonground.models import KeyedDropout
from commonground.models.lora import SequenceDropout

__all__ = ["PhaseDraws"]

# Numbers that are drawn and moved together. On the CPU nothing is moved, so a step's are drawn when it comes.
BLOCK_NUMBERS = 1 << 24


class PhaseDraws:
    """What is random in the steps of one call of ``fit`` or ``batches``, for clients side by side.

    Every draw is keyed by round, client, phase and step and made for the client's full batch, so that it does not
    depend on who else is computed beside it.

    Args:
        setup: data, model and algorithm.
        round: 1-based round.
        clients: the clients' numbers in the federation.
        phases: of each client, the number of the call in its round.
        full: samples of each client's full batch.
        steps: how many there will be.
        longest: of texts, the longest row of each step.
    """

    def __init__(
        self,
        setup: Setup,
        round: int,
        clients: Sequence[int],
        phases: Sequence[int],
        full: Sequence[int],
        steps: int,
        longest: Sequence[int] = (),
    ) -> None:
        self._setup, self._round, self._clients, self._phases, self._full = setup, round, clients, list(phases), full
        self._steps, self._width, self._longest = steps, max(full), longest
        rows = len(clients) * self._width
        numbers = sum(rows * math.prod(shape) for _, shape in self._dropouts(range(steps)).values())
        numbers += 3 * rows * self.augments
        here = setup.device.type == "cpu" or numbers == 0
        self._block = 1 if here else max(1, BLOCK_NUMBERS // numbers)
        self._first = -1
        self._masks: list[Tensors] = []
        self._changes: list[Draws | None] = []

    def _dropouts(self, steps: Sequence[int]) -> dict[str, tuple[KeyedDropout, tuple[int, ...]]]:
        """Dropout layers by name, each with the shape of a sample's mask that suffices for these steps."""
        most = max((self._longest[step] for step in steps), default=0) if self._longest else None
        return {
            name: (layer, shape if most is None or not isinstance(layer, SequenceDropout) else (most, *shape[1:]))
            for name, (layer, shape) in self._setup.dropouts.items()
        }

    @property
    def augments(self) -> bool:
        """Whether training images are changed at random."""
        return self._setup.config.augment != "none"

    def masks(self, step: int) -> Tensors:
        """Dropout masks [C, width, …] of a step by buffer name; 1 where a client's batch has ended."""
        if not self._setup.dropouts:
            return {}
        self._reach(step)
        return self._masks[step - self._first]

    def change(self, x: Tensor, step: int) -> Tensor:
        """Images [C, B, height, width, channels] of a step, randomly changed if the run says so."""
        if not self.augments:
            return x
        self._reach(step)
        draws = self._changes[step - self._first]
        assert draws is not None
        rows = Draws(*(drawn[:, : x.shape[1]].flatten() for drawn in draws))
        return rows.apply(x.flatten(0, 1), self._setup.inputs.black).view(x.shape)

    def _reach(self, step: int) -> None:
        if self._first <= step < self._first + len(self._masks):
            return
        self._first = step
        steps = range(step, min(self._steps, step + self._block))
        dropouts = self._dropouts(steps)
        self._masks = self._moved([self._draw_masks(s, dropouts) for s in steps])
        changes = self._moved([self._draw_changes(s)._asdict() for s in steps]) if self.augments else []
        self._changes = [Draws(**drawn) for drawn in changes]

    def _moved(self, drawn: list[Tensors]) -> list[Tensors]:
        """Draws of several steps, moved as one tensor of each kind."""
        device = self._setup.device
        if device.type == "cpu":
            return drawn
        whole = {name: to_device(torch.stack([one[name] for one in drawn]), device) for name in drawn[0]}
        return [{name: value[i] for name, value in whole.items()} for i in range(len(drawn))]

    def _draw_masks(self, step: int, dropouts: Mapping[str, tuple[KeyedDropout, tuple[int, ...]]]) -> Tensors:
        setup, masks = self._setup, Tensors()
        for name, (layer, shape) in dropouts.items():
            drawn = torch.ones((len(self._clients), self._width, *shape), dtype=setup.inputs.dtype, device="cpu")
            for row, client, phase, full in zip(drawn, self._clients, self._phases, self._full, strict=True):
                stream = torch_stream(setup.config.seed, "dropout", self._round, client, phase, step, name)
                row[:full] = layer.draw(full, shape, stream, drawn.dtype)
            masks[f"{name}.mask"] = drawn
        return masks

    def _draw_changes(self, step: int) -> Draws:
        kind, seed = self._setup.config.augment, self._setup.config.seed
        parts = []
        for client, phase, full in zip(self._clients, self._phases, self._full, strict=True):
            stream = torch_stream(seed, "augment", self._round, client, phase, step)
            parts.append(Draws.of(full, kind, stream).padded(self._width))
        return Draws(*(torch.stack(drawn) for drawn in zip(*parts, strict=True)))

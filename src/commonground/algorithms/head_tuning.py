"""Fine-tuning: what the +FT forms of global methods do after their last round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from commonground.algorithms.base import Algorithm, Client, Tensors


@dataclass(frozen=True)
class HeadTuning(Algorithm):
    """Every client trains the head of a finished model on its own data, the body fixed (Collins et al. 2021, §5.2).

    It has no name in the command line: ``--finetune-epochs`` runs it once, after the last round, on all clients.

    Args:
        epochs: passes over the client's training data; 10 in the paper.
        factor: of the learning rate, where the method before it ended (:meth:`Algorithm.last_lr_factor`).
    """

    epochs: int = 10
    factor: float = 1.0

    title = "head fine-tuning"
    source = "Collins, Hassani, Mokhtari, Shakkottai 2021"
    shared: ClassVar[tuple[str, ...]] = ("body",)
    personal: ClassVar[tuple[str, ...]] = ("head",)
    trains: ClassVar[str] = "head"

    def client_update(self, client: Client, round: int) -> Tensors:
        """Epochs on what is trained; nothing is sent."""
        client.fit(self.trains, epochs=self.epochs)
        return client.send({})

    def lr_factor(self, done: float) -> float:
        return self.factor

    def sends(self, round: int) -> tuple[str, ...]:
        """Nothing."""
        return ()


@dataclass(frozen=True)
class ModelTuning(HeadTuning):
    """Every client trains the whole of a finished model on its own data.

    It is what the published code of Collins et al. 2021 and of Liu et al. 2024 does, whose papers fine-tune the head.
    """

    title = "fine-tuning"
    shared = ()
    personal = ("all",)
    trains = "all"


def tuning(what: Literal["head", "all"], epochs: int, factor: float = 1.0) -> HeadTuning:
    """What ``--finetune`` names; other arguments as of :class:`HeadTuning`."""
    return (HeadTuning if what == "head" else ModelTuning)(epochs, factor)

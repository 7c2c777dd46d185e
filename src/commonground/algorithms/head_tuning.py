"""Fine-tuning of the head: what the +FT forms of global methods do after their last round."""

from __future__ import annotations

from dataclasses import dataclass

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
    shared = ("body",)
    personal = ("head",)

    def client_update(self, client: Client, round: int) -> Tensors:
        """Epochs on the head; nothing is sent."""
        client.fit("head", epochs=self.epochs)
        return client.send({})

    def lr_factor(self, done: float) -> float:
        return self.factor

    def sends(self, round: int) -> tuple[str, ...]:
        """Nothing."""
        return ()

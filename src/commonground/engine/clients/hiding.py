"""What a client of a run with ``--dp example`` does not tell its method of its samples, and the noise of its steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from torch import Tensor

from commonground.algorithms import Client, Tensors
from commonground.engine.clients.batches import Length, passes
from commonground.engine.setup import Setup
from commonground.errors import ConfigError
from commonground.privacy import ExamplePrivacy, NoiseSource, noise_for_numbers

__all__ = ["Hiding"]


class Hiding(Client):
    """Single examples are hidden by the noise of ``fit``'s steps, so whatever else tells of them is refused.

    Attributes:
        setup: of the run.
        keys: the clients' numbers in the federation, which key their noise.
        noise: where it comes from; None for where the run's settings say.
    """

    setup: Setup
    keys: list[int]
    noise: NoiseSource | None = None
    _hidden: ExamplePrivacy | None = None
    _spent: list[Length]  # of the round so far
    round: int
    sizes: npt.NDArray[np.int64]
    _phases: list[int]
    _counts: Tensor

    def at_home(self) -> None:
        """From here to the next client, train without noise: nothing of it leaves the client, neither now nor by what
        it keeps.
        """
        self._hidden = None

    def _needs_samples(self, verb: str) -> None:
        """Refuse a verb that tells of the samples what no noise hides.

        Raises:
            ConfigError: single examples are to be hidden.
        """
        if self._hidden is not None:
            raise ConfigError(
                f"--dp example hides examples in the steps of training alone, and {self.setup.algorithm.title} takes "
                f"{verb} of them as well; take another method, such as fedavg or fedrep, or --dp client"
            )

    def _spend(self, length: Length) -> None:
        """Note that examples are about to be used, and refuse what ε does not count.

        Raises:
            ConfigError: the round trains more than was counted before the run.
        """
        self._spent.append(length)
        counted = self.setup.counted[self.round - 1]
        for size in map(int, np.unique(self.sizes)):
            if (asked := passes(self._spent, size)) > (told := passes(counted, size)):
                raise ConfigError(
                    f"{self.setup.algorithm.title} goes over a client's examples up to {asked:,} times in round "
                    f"{self.round}, and the ε of --dp example counts {told:,}; how long fit trains may follow from the "
                    "round, and not from what a client keeps or receives"
                )

    @property
    def class_counts(self) -> Tensor:
        """See :class:`commonground.algorithms.Client`."""
        self._needs_samples("the number in each class")
        return self._counts

    @class_counts.setter
    def class_counts(self, counts: Tensor) -> None:
        self._counts = counts

    def _counted(self) -> Tensors:
        """What losses and penalties may see of the samples."""
        return {} if self._hidden is not None else {"class_counts": self._counts}

    def _step_noise(self, sums: Sequence[Tensors], step: int) -> list[Tensor]:
        """A step's standard Gaussian noise of each client, of all tensors in turn.

        Args:
            sums: each client's, to which it is added.
            step: of the phase.
        """
        source, drawn = self.noise or self.setup.noise, []
        for key, phase, own in zip(self.keys, self._phases, sums, strict=True):
            numbers = sum(self.setup.initial[name].numel() for name in own)
            of_these = noise_for_numbers(source, own)
            drawn.append(of_these.normal((numbers,), "example", self.round, key, phase, step))
        return drawn

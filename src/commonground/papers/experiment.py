"""What an experiment is: its name and source, and what carries it out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from commonground.devices import resolve_device
from commonground.errors import ConfigError
from commonground.papers.outcome import Outcome
from commonground.papers.request import Request

if TYPE_CHECKING:
    from commonground.papers.tables.table import PaperTable

__all__ = ["Experiment", "experiments"]


@dataclass(frozen=True)
class Experiment:
    """One experiment of a paper.

    Attributes:
        name: the name in the command line.
        title: one line.
        source: the paper and its table or figure.
        run: carries it out.
        float64: whether it computes in float64, as the theory lab does; the others train runs.
        table: what it fills cell by cell, if it is a table of accuracies.
    """

    name: str
    title: str
    source: str
    run: Callable[[Request], Outcome]
    float64: bool = False
    table: PaperTable | None = None

    def __post_init__(self) -> None:
        experiments[self.name] = self

    def device(self, text: str) -> torch.device:
        """The device that ``--device`` names, for this experiment.

        Args:
            text: see :func:`~commonground.devices.resolve_device`.

        Raises:
            ConfigError: there is no such device here, or the experiment cannot use it.
        """
        device = resolve_device(text)
        if self.float64 and device.type == "mps":
            raise ConfigError(f"{self.name} computes in float64, which the device 'mps' does not have; use cpu or cuda")
        return device


experiments: dict[str, Experiment] = {}
"""Every experiment by name; it enters by being created."""

"""What a tracker is: the one small interface behind which all of them are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from commonground.errors import ConfigError
from commonground.extras import pip_install
from commonground.suggest import meant

__all__ = ["TRACKERS", "Started", "Tracker", "make_tracker"]

TRACKERS = ("tensorboard", "mlflow", "wandb")
"""Known by name; each is a module of this package, and an extra of the same name installs what it needs."""


@dataclass(frozen=True)
class Started:
    """What a tracker is told of a run that begins or goes on.

    Attributes:
        name: of the run, for people.
        settings: every setting, by name; those of method and model as ``options.NAME`` and ``model_options.NAME``.
        folder: of the run, if it has one.
        done: rounds done before, of which the tracker was told; of others it will be told.
        id: what :meth:`Tracker.begin` returned when the run began, so that the same one is continued.
    """

    name: str
    settings: Mapping[str, Any]
    folder: Path | None
    done: int = 0
    id: str | None = None


class Tracker(ABC):
    """Somewhere a run's figures are sent while it goes on.

    Whatever a method raises is one warning, after which the tracker hears ``end(False)``, so that it can close what it
    has open, and nothing more; the run goes on.

    Attributes:
        name: for messages.
        needs_folder: whether it writes into the run's folder.
        buffers: whether a run that is killed may lose rounds that it was told of: when the run goes on it is told of
            all rounds before once more, and has to take each once. (A tracker that a run is begun without is told of
            all rounds before when the run goes on with it, or was finished.)
    """

    name: ClassVar[str] = "tracker"
    needs_folder: ClassVar[bool] = False
    buffers: ClassVar[bool] = False

    @abstractmethod
    def begin(self, about: Started) -> tuple[str | None, str]:
        """A run begins, or goes on.

        Returns:
            What it is known by, kept in the run's folder; and where it can be seen, for people.
        """

    @abstractmethod
    def round(self, number: int, figures: Mapping[str, float]) -> None:
        """A round's figures, named ``UNIT/NAME``; those that were not measured are left out."""

    def summary(self, summary: Mapping[str, Any]) -> None:
        """What ``summary.json`` holds; ``stopped_after`` is in it if rounds are left."""

    def artefact(self, path: Path) -> None:
        """A file that belongs to the run (its report), for trackers that keep files."""

    def end(self, whole: bool) -> None:
        """The run is over.

        Args:
            whole: whether it ended with results, and not with an error or Ctrl-C.
        """


def make_tracker(tracker: str | Tracker) -> Tracker:
    """A tracker by name, or the object itself.

    Raises:
        ConfigError: there is none of this name, or the package it needs is not installed.
    """
    if isinstance(tracker, Tracker):
        return tracker
    if tracker not in TRACKERS:
        near = meant(str(tracker), TRACKERS)
        raise ConfigError(f"unknown tracker {tracker!r}{near}; known are {', '.join(TRACKERS)} and Tracker objects")
    try:
        made: Tracker = import_module(f"commonground.tracking.{tracker}").make()
    except ImportError:
        raise ConfigError(f"the tracker {tracker} needs the extra: {pip_install(tracker)}") from None
    return made

"""What trackers hear of a run, and what happens when one fails: a warning, and the run goes on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

from commonground.config import RunConfig
from commonground.engine.observer import Observer
from commonground.engine.run import Run
from commonground.engine.setup import Setup
from commonground.engine.state.files import write_atomically
from commonground.engine.state.folder import RunFolder
from commonground.errors import ConfigError, warn
from commonground.tasks import Task
from commonground.tracking import Started, Tracker, make_tracker

__all__ = ["Track", "Tracking", "figures_of"]

Track = str | Tracker | Sequence[str | Tracker] | None
"""Where a run is tracked: names, trackers, several of them, or nowhere."""

IDS = "tracking.json"
"""In a run's folder: what each tracker that was told of the run knows it by, if by anything."""

_UNITS = {
    "train_loss": "loss", "lr": "learning_rate", "bytes_up": "bytes", "bytes_down": "bytes", "seconds": "seconds",
    "eval_seconds": "seconds", "participants": "clients", "evaluated_clients": "clients",
    "body_angle_mean": "radians", "body_angle_max": "radians",
}  # fmt: skip


def _apart(trackers: Sequence[Tracker]) -> dict[int, str]:
    """What each tracker (its ``id``) is called in the run's folder: by its name, further ones with a number."""
    called: dict[int, str] = {}
    for tracker in trackers:
        before = sum(other.name == tracker.name for other in trackers[: len(called)])
        called[id(tracker)] = f"{tracker.name} {before + 1}" if before else tracker.name
    return called


class Tracking:
    """The trackers of one run, as an observer of it.

    Args:
        track: which.
        folder: the run's folder, if it has one that stays.

    Raises:
        ConfigError: one is not known, not installed, or needs a folder and there is none.
    """

    def __init__(self, track: Track, folder: Path | None) -> None:
        alone = isinstance(track, str | Mapping | Tracker) or not isinstance(track, Iterable)
        several: list[Any] = [] if track is None else [track] if alone else [*cast("Iterable[Any]", track)]
        self._trackers = [make_tracker(one) for one in (several if alone else dict.fromkeys(several))]
        self._called = _apart(self._trackers)
        self._folder, self._note, self._whole = folder, warn, False
        for tracker in self._trackers if folder is None else ():
            if tracker.needs_folder:
                raise ConfigError(f"the tracker {tracker.name} writes into the run's folder; name one with out=")
        self._begun: list[Tracker] = []
        self._started = False

    def told_by(self, observer: Observer | None) -> Self:
        """Say what goes wrong to a run's observer; where it hears no notes it is a Python warning."""
        note = getattr(observer, "note", None)
        self._note = note if callable(note) else warn
        return self

    # -- what an observer hears ---------------------------------------------------------------------------------

    def begin(self, setup: Setup, engine: str, done: int) -> None:
        """See :class:`~commonground.engine.Observer`."""
        self._task = setup.data.task
        self._begin_all(self._trackers, setup.algorithm.title, setup.data.name, setup.config, engine, done)

    def round(self, row: Mapping[str, Any]) -> None:
        """See :class:`~commonground.engine.Observer`."""
        figures = figures_of(row, self._task)
        self._each(lambda tracker: tracker.round(int(row["round"]), figures))

    def note(self, text: str) -> None:
        """Nothing: a note is for people."""

    def end(self) -> None:
        """Nothing yet: the summary and the report are still to come."""

    # -- what comes after it ------------------------------------------------------------------------------------

    def result(self, run: Run) -> None:
        """The run has results. One that was finished before is told to trackers that have not heard of it."""
        self._whole = True
        if self._trackers and not self._started and run.folder is not None:
            known, trained = self._known(), run.trained
            self._task = trained.task
            late = [tracker for tracker in self._trackers if self._called[id(tracker)] not in known]
            title, data = trained.algorithm.title, str(run.summary["data"])
            self._begin_all(late, title, data, run.config, str(run.summary["engine"]), len(run.history))
        self._each(lambda tracker: tracker.summary(run.summary))

    def artefact(self, path: Path) -> None:
        """A file of the run's."""
        self._each(lambda tracker: tracker.artefact(path))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        whole, last = self._whole and kind is None, list(self._begun)
        self._begun = []
        for tracker in last:
            self._try(tracker, partial(tracker.end, whole))

    # -- parts --------------------------------------------------------------------------------------------------

    def _begin_all(
        self, trackers: Sequence[Tracker], title: str, data: str, config: RunConfig, engine: str, done: int
    ) -> None:
        self._started = True
        settings = {"engine": engine} | {k: v for k, v in _flat(config.model_dump(exclude_none=True)) if k != "engine"}
        known = self._known()
        ids = dict(known)
        for tracker in trackers:
            # To a tracker that has not heard of it a run that goes on is a new one, of which it is told all.
            called = self._called[id(tracker)]
            new = called not in known and not self._wrote(tracker)
            name = f"{title} on {data}, seed {config.seed}"
            about = Started(name, settings, self._folder, 0 if new else done, known.get(called))
            self._try(tracker, partial(self._begin, tracker, about, ids, done if new or tracker.buffers else 0))

    def _begin(self, tracker: Tracker, about: Started, ids: dict[str, str | None], told_again: int) -> None:
        self._begun.append(tracker)
        begun = tracker.begin(about)
        if not isinstance(begun, tuple) or len(begun) != 2:
            raise TypeError("its begin must return what the run is known by, or None, and where it can be seen")
        known_by, where = begun
        if self._note is not warn:
            self._note(f"{self._called[id(tracker)]}: {where}")
        if told_again and self._folder is not None:
            for row in RunFolder(self._folder).rounds.rows()[:told_again]:
                tracker.round(int(row["round"]), figures_of(row, self._task))
        # Last: who fails on the way has not heard of the run.
        called = self._called[id(tracker)]
        if self._folder is not None and ids.get(called, "") != known_by:
            ids[called] = known_by
            write_atomically(self._folder / IDS, json.dumps(ids) + "\n")

    def _wrote(self, tracker: Tracker) -> bool:
        """Whether one that is known by nothing has written into the run's folder; earlier versions noted no such."""
        return tracker.needs_folder and self._folder is not None and (self._folder / tracker.name).is_dir()

    def _known(self) -> dict[str, str | None]:
        """What the trackers knew the run in the folder by, if it was tracked before."""
        try:
            return dict(json.loads((self._folder / IDS).read_text("utf-8"))) if self._folder is not None else {}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError) as error:
            self._note(f"'{IDS}' in '{self._folder}' cannot be read, so that trackers begin anew: {error}")
            return {}

    def _each(self, action: Callable[[Tracker], None]) -> None:
        for tracker in list(self._begun):
            self._try(tracker, partial(action, tracker))

    def _try(self, tracker: Tracker, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # a disk, a network, somebody's own code: none of it is the run's matter
            if tracker in self._begun:
                self._begun.remove(tracker)
                with suppress(Exception):
                    tracker.end(False)  # or a user's next run of the same tracker would find this one open
            why = " ".join(str(error).split())[:300]
            self._note(f"{tracker.name} tracks no more ({type(error).__name__}: {why}); the run goes on without it")


def figures_of(row: Mapping[str, Any], task: Task) -> dict[str, float]:
    """The numbers in a line of ``rounds.jsonl``, named ``UNIT/NAME``.

    Units: ``share`` (0 to 1), ``loss``, ``bytes``, ``seconds``, ``clients``, ``learning_rate``, ``radians``; a headline
    metric that is no share has its own name; figures without a unit are ``figures``.

    >>> from commonground.tasks import CLASSIFICATION
    >>> figures_of({"round": 3, "personal_accuracy": 0.5, "global_accuracy": None, "bytes_up": 10}, CLASSIFICATION)
    {'share/personal_accuracy': 0.5, 'bytes/bytes_up': 10.0}
    """
    headline = "share" if task.percent else task.metric
    named = {}
    for name, value in row.items():
        if name == "round" or isinstance(value, bool) or not isinstance(value, int | float):
            continue
        judged = name.endswith(f"_{task.metric}") or name == "worst_decile"
        named[f"{_UNITS.get(name, headline if judged else 'figures')}/{name}"] = float(value)
    return named


def _flat(values: Mapping[str, Any], before: str = "") -> list[tuple[str, Any]]:
    """Settings, those of nested tables as ``TABLE.NAME``."""
    pairs: list[tuple[str, Any]] = []
    for name, value in values.items():
        pairs += _flat(value, f"{before}{name}.") if isinstance(value, Mapping) else [(f"{before}{name}", value)]
    return pairs

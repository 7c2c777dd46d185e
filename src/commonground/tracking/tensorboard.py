"""TensorBoard: event files in the run's folder (``tensorboard --logdir RUN/tensorboard``)."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.summary import scalar, text

from commonground.tracking.base import Started, Tracker

__all__ = ["TensorBoard", "make"]


class TensorBoard(Tracker):
    """Scalars by round; settings and summary as texts. It keeps no files, so the report is not in it."""

    name = "tensorboard"
    needs_folder = True

    def begin(self, about: Started) -> tuple[None, str]:
        """See :class:`~commonground.tracking.Tracker`."""
        assert about.folder is not None
        folder = about.folder / "tensorboard"
        folder.mkdir(parents=True, exist_ok=True)
        # Not tensorboardX's SummaryWriter: its thread would die of a full disk unseen, and the next figure wait for it.
        self._events = EventsWriter(str(folder / "events"), f".{about.done}")
        if about.done:  # rounds after the checkpoint are repeated, and what was written of them counts no more
            self._write(about.done + 1, session_log=SessionLog(status=SessionLog.START))
        self._write(about.done, summary=text("settings", _table(about.settings)))
        self._last = about.done
        return None, str(folder)

    def round(self, number: int, figures: Mapping[str, float]) -> None:
        """See :class:`~commonground.tracking.Tracker`."""
        for name, value in figures.items():
            self._write(number, summary=scalar(name, value))
        self._last = number
        self._events.flush()

    def summary(self, summary: Mapping[str, Any]) -> None:
        """See :class:`~commonground.tracking.Tracker`."""
        self._write(self._last, summary=text("summary", _table(summary)))

    def end(self, whole: bool) -> None:
        """See :class:`~commonground.tracking.Tracker`."""
        self._events.close()

    def _write(self, step: int, **what: Any) -> None:
        self._events.write_event(Event(wall_time=time.time(), step=step, **what))


def _table(values: Mapping[str, Any]) -> str:
    """Names and values as Markdown, which TensorBoard shows as a table."""
    rows = (f"| {name} | {_cell(value)} |" for name, value in values.items())
    return "\n".join(["| name | value |", "|---|---|", *rows])


def _cell(value: Any) -> str:
    shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return shown.replace("|", "\\|").replace("\n", " ")


def make() -> Tracker:
    """A tracker for one run."""
    return TensorBoard()

"""Weights & Biases: a run of the project that ``WANDB_PROJECT`` names; offline unless there is a key."""

from __future__ import annotations

import netrc
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import wandb

from commonground.tracking.base import Started, Tracker

__all__ = ["WandB", "make"]


class WandB(Tracker):
    """Settings as the run's configuration, figures by round, the summary, and the report as an artefact.

    Without a key (``WANDB_API_KEY``, or what ``wandb login`` left in netrc) and unless ``WANDB_MODE`` says otherwise
    nothing leaves the machine: the run's folder gets a ``wandb`` folder that ``wandb sync`` can send later.
    """

    name = "wandb"
    buffers = True  # steps that are there already it ignores

    def begin(self, about: Started) -> tuple[str, str]:
        """See :class:`~commonground.tracking.Tracker`."""
        mode = _mode()
        if about.folder is not None:
            about.folder.mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "commonground"),
            name=about.name,
            id=about.id,
            resume="allow" if about.id else None,
            config=dict(about.settings),
            dir=None if about.folder is None else str(about.folder),
            mode=mode,
            reinit="create_new",  # a run of the user's own stays open
            settings=wandb.Settings(console="off", silent=True, init_timeout=30),
        )
        offline = (mode or os.environ.get("WANDB_MODE")) in ("offline", "disabled")
        where = f"{self._run.dir} (offline; wandb sync sends it)" if offline else str(self._run.url)
        return str(self._run.id), where

    def round(self, number: int, figures: Mapping[str, float]) -> None:
        """See :class:`~commonground.tracking.Tracker`."""
        self._run.log(dict(figures), step=number)

    def summary(self, summary: Mapping[str, Any]) -> None:
        """See :class:`~commonground.tracking.Tracker`."""
        self._run.summary.update({"summary": dict(summary)})

    def artefact(self, path: Path) -> None:
        """See :class:`~commonground.tracking.Tracker`."""
        artefact = wandb.Artifact(f"{path.stem}-{self._run.id}", type="report")
        artefact.add_file(str(path))
        self._run.log_artifact(artefact)

    def end(self, whole: bool) -> None:
        """See :class:`~commonground.tracking.Tracker`."""
        self._run.finish(exit_code=0 if whole else 1)


def _mode() -> str | None:
    """``offline`` where there is no key; None leaves it to wandb."""
    if os.environ.get("WANDB_MODE") or os.environ.get("WANDB_API_KEY"):
        return None
    host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    try:
        known = netrc.netrc(os.environ.get("NETRC")).authenticators(host)
    except (OSError, netrc.NetrcParseError):
        known = None
    return None if known else "offline"


def make() -> Tracker:
    """A tracker for one run."""
    return WandB()

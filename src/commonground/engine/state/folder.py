"""A run's folder: written so that a crash at any moment leaves it valid.

Whole files are written under a temporary name, synced and renamed; ``rounds.jsonl`` grows by whole lines. What a run
wrote is known by its sha256 (in the checkpoint, and once it is finished in ``summary.json``), so that a file that was
changed or cut is noticed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from commonground.access import reason
from commonground.algorithms.base import without_class_variables
from commonground.config import RunConfig
from commonground.data import FederatedDataset, TableSchema
from commonground.engine.rows import Rows
from commonground.engine.state.checkpoint import Checkpoint, CheckpointFolder
from commonground.engine.state.clients_file import read_clients, write_clients
from commonground.engine.state.files import remove_parts, write_atomically
from commonground.engine.state.round_lines import RoundLines
from commonground.engine.state.split_file import read_split, split_json
from commonground.errors import ConfigError, DataError, RunError
from commonground.existing import check_folder

__all__ = [
    "ASKED_ROUNDS",
    "FREE",
    "IMPORTANCE",
    "NOISE",
    "RELEASES",
    "SCHEMA",
    "START",
    "RunFolder",
    "plain_settings",
]

# Settings that may differ when a run is continued: they do not touch its numbers. (Of the number of rounds that is true
# of some runs only: see commonground.engine.more_rounds; of engines that are not bit-equal the numerics tell.)
FREE = frozenset({"engine", "workers", "ray_address", "rounds"})

# Settings that touch no more than the last bits of its numbers: they may differ if the user says so.
NUMERIC_SETTINGS = frozenset({"threads", "precision", "device"})

NOISE = "feature_noise.safetensors"
START = "initial_model.safetensors"
SCHEMA = "schema.json"
RELEASES = "releases.jsonl"
ASKED_ROUNDS = "asked.jsonl"
IMPORTANCE = "importance.json"


class RunFolder:
    """The files of one run.

    Args:
        path: the folder, created with the first file.

    Attributes:
        rounds: its ``rounds.jsonl``.
        checkpoints: its checkpoints.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self.rounds = RoundLines(self.path / "rounds.jsonl")
        self.checkpoints = CheckpointFolder(self.path / "checkpoint")
        self._files: dict[str, str] = {}  # sha256 of the files written at the start

    @property
    def exists(self) -> bool:
        """Whether a run has begun here."""
        return (self.path / "config.toml").is_file()

    def check_free(self) -> None:
        """Raise a RunError if another run is here, or the path cannot become a folder."""
        # A run that failed in its first round has left nothing worth keeping, unless it was private and counts.
        left = (self.path / name for name in ("summary.json", "checkpoint", RELEASES))
        begun = any(path.exists() for path in left) or bool(self.rounds.rows())
        if self.exists and begun:
            raise RunError(f"'{self.path}' already holds a run; add --resume to continue it or choose another --out")
        check_folder(self.path)
        for name in ("summary.json", "rounds.jsonl", "checkpoint"):
            if begun and (self.path / name).exists():
                raise RunError(f"'{self.path}' holds '{name}' of a run without its config.toml; choose another --out")

    def begin(self, config: RunConfig, data: FederatedDataset, start: Mapping[str, Tensor] | None = None) -> None:
        """Write what the data looks like (``split.json``), a table's schema, its feature noise if any, what a user's
        own model starts from (:func:`~commonground.models.start_of`), and the configuration.
        """
        files = {"split.json": split_json(data)}
        if data.schema is not None:
            files[SCHEMA] = data.schema.to_json().encode()
        if data.noise is not None:
            files[NOISE] = save({"images": torch.from_numpy(data.noise.images)})
        if start is not None:
            files[START] = save({name: value.cpu() for name, value in start.items()})
        self._files = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
        try:
            for name, content in files.items():
                write_atomically(self.path / name, content)
            write_atomically(self.path / "config.toml", config.to_toml())
        except OSError as error:
            why = reason(error, self.path / "config.toml")
            raise RunError(f"the folder '{self.path}' cannot be written: {why}") from None

    def split(self) -> dict[str, Any]:
        """What :meth:`begin` wrote about the data.

        Raises:
            RunError: it is missing or not readable.
        """
        return read_split(self.path / "split.json")

    def schema(self) -> TableSchema | None:
        """The columns of the table that the run was trained on; None if it was no table.

        Raises:
            RunError: the file is not readable.
        """
        path = self.path / SCHEMA
        try:
            return TableSchema.from_json(path.read_text("utf-8"), str(path)) if path.is_file() else None
        except (OSError, ValueError, DataError) as error:
            raise RunError(f"'{path}' cannot be read: {error}") from None

    def noise(self) -> Tensor:
        """The foreign images [clients, …] of a run with feature noise, as the samples are stored.

        Raises:
            RunError: the file is missing or not readable.
        """
        path = self.path / NOISE
        try:
            return load(path.read_bytes())["images"]
        except (SafetensorError, OSError, KeyError) as error:
            why = reason(error, path)
            raise RunError(f"'{path}', the feature noise of the run's clients, cannot be read: {why}") from None

    def start(self) -> dict[str, Tensor] | None:
        """What a user's own model started from; None for a model that is built by name.

        Raises:
            RunError: the file is not readable.
        """
        path = self.path / START
        try:
            return load(path.read_bytes()) if path.is_file() else None
        except (SafetensorError, OSError) as error:
            raise RunError(f"'{path}', the run's initial model, cannot be read: {reason(error, path)}") from None

    def go_on(self, config: RunConfig) -> None:
        """Note that a stopped or finished run is under way again, perhaps with more rounds or other numerics."""
        # In this order: whenever the process dies, the folder is that of a run that can be resumed.
        for name in ("summary.json", "clients.csv", IMPORTANCE):
            (self.path / name).unlink(missing_ok=True)
        before = self.config()
        if any(getattr(config, name) != getattr(before, name) for name in (*FREE, *NUMERIC_SETTINGS)):
            write_atomically(self.path / "config.toml", config.to_toml())

    def config(self) -> RunConfig:
        """The configuration the run was started with.

        Raises:
            ConfigError: the file is not readable, or holds what no setting can be.
        """
        path = self.path / "config.toml"
        values = RunConfig.read(path)
        try:
            return RunConfig.make(_own_options(values))
        except ConfigError as error:
            raise ConfigError(f"'{path}' was changed: {error}") from None

    def check_config(self, settings: Mapping[str, Any], *, free: Collection[str] = FREE) -> None:
        """Raise a RunError that names the first setting in which ``config.toml`` differs from a checkpoint's."""
        written = plain_settings(self.config())
        for key, value in _own_options(settings).items():
            if key in written and key not in free and written[key] != value:
                raise RunError(
                    f"'{self.path / 'config.toml'}' was changed: it says {key} = {written[key]!r}, but the run was "
                    f"started with {value!r}; put that back or choose another --out"
                )

    def check_same(self, config: RunConfig, *, free: Collection[str] = FREE, other_numerics: bool = False) -> None:
        """Raise a RunError that names the first setting (none of ``free``) that differs from the run in this folder.

        Args:
            config: the settings to compare.
            free: names of settings that may differ.
            other_numerics: threads, precision and device may differ as well.
        """
        numeric = NUMERIC_SETTINGS if other_numerics else frozenset()
        before = self.checkpoints.settings()
        if before is not None:
            self.check_config(before, free=FREE | numeric)
        now = plain_settings(config)
        for key, value in plain_settings(self.config()).items():
            kept_apart = key == "engine" and "messages" in (value, now[key])  # its clients remember what is theirs
            if (kept_apart or key not in free) and key not in numeric and now[key] != value:
                accept = ", accept other numbers with --allow-other-numerics" if key in NUMERIC_SETTINGS else ""
                raise RunError(
                    f"the run in '{self.path}' was started with {key} = {value!r}, not {now[key]!r}; resume it with "
                    f"the same settings{accept} or choose another --out"
                )

    def check_files(self, files: Mapping[str, str]) -> None:
        """Raise a RunError that names the first of these files that is not what the run wrote.

        Args:
            files: sha256 by name.
        """
        for name, wanted in files.items():
            path = self.path / name
            if not path.is_file():
                raise RunError(f"'{path}' is missing; put it back or choose another --out")
            if _sha256(path) != wanted:
                raise RunError(
                    f"'{path}' is not what the run wrote: it was changed or cut; put it back or choose another --out"
                )

    def remove_parts(self) -> None:
        """Remove what a killed process has left half written."""
        remove_parts(self.path)
        self.checkpoints.remove_parts()

    # -- checkpoints --------------------------------------------------------------------------------------------

    @property
    def files(self) -> dict[str, str]:
        """sha256 of the files that belong to a checkpoint taken now, by name."""
        return {**self._files, "rounds.jsonl": self.rounds.sha256}

    def save(self, checkpoint: Checkpoint, *, name: str | None = None) -> Path:
        """Write a checkpoint; see :meth:`~commonground.engine.state.checkpoint.CheckpointFolder.save`.

        Raises:
            OSError: it cannot be written.
        """
        self.rounds.sync()  # a checkpoint must not outlast the lines that belong to it
        return self.checkpoints.save(checkpoint, name)

    def load(
        self, name: str | None = None, *, note: Callable[[str], None] | None = None, rows: bool = False
    ) -> Checkpoint | None:
        """Read a checkpoint; see :meth:`~commonground.engine.state.checkpoint.CheckpointFolder.load`."""
        return self.checkpoints.load(name, note=note, rows=rows)

    def resume(self, checkpoint: Checkpoint) -> list[dict[str, Any]]:
        """Make the folder what it was at a checkpoint.

        Returns:
            The rounds up to it.

        Raises:
            RunError: a file is not what the run wrote.
        """
        self._files = {name: sha for name, sha in checkpoint.files.items() if name != "rounds.jsonl"}
        self.check_files(self._files)
        rows = self.rounds.keep(checkpoint.round, checkpoint.files["rounds.jsonl"])
        (self.path / "summary.json").unlink(missing_ok=True)
        return rows

    # -- results ------------------------------------------------------------------------------------------------

    def write_clients(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write ``clients.csv``."""
        write_clients(self.path / "clients.csv", rows)

    def clients(self) -> Rows:
        """The rows of ``clients.csv``, numbers as numbers and names as in ``split.json``.

        Raises:
            RunError: it cannot be read.
        """
        names = self.split()["client_names"] if (self.path / "split.json").is_file() else None
        return read_clients(self.path / "clients.csv", names)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write ``summary.json``, the last file of a run, with the sha256 of the others and of itself."""
        names = [n for n in ("clients.csv", "rounds.jsonl", SCHEMA, "split.json") if (self.path / n).is_file()]
        files = {name: _sha256(self.path / name) for name in names}
        files["summary.json"] = _summary_sha256(summary, files)
        write_atomically(self.path / "summary.json", json.dumps({**summary, "sha256": files}, indent=2) + "\n")

    @property
    def finished(self) -> bool:
        """Whether all rounds of the run are done, and its results are there."""
        summary = self.summary()
        return summary is not None and "stopped_after" not in summary and self._complete(summary)

    def _complete(self, summary: Mapping[str, Any]) -> bool:
        ended = summary.get("early_stopping", {}).get("ended_early", False)
        return bool(ended or summary["rounds"] == self.config().rounds)

    def summary(self) -> dict[str, Any] | None:
        """The summary, or None if the run has neither finished nor been stopped.

        Raises:
            RunError: it is not readable, or not what the run wrote.
        """
        written = self._summary()
        return None if written is None else written[0]

    def check_results(self) -> None:
        """Raise a RunError if a file of a finished run is not what the run wrote, its settings included."""
        written = self._summary()
        if written is None and (self.path / "clients.csv").is_file():
            raise RunError(
                f"'{self.path / 'summary.json'}' is missing, though the run has written the results of its clients: "
                "--resume writes it again"
            )
        self.check_files({} if written is None else written[1])
        settings = self.checkpoints.settings()
        if settings is not None:
            self.check_config(settings)

    def _summary(self) -> tuple[dict[str, Any], dict[str, str]] | None:
        """The summary, and the sha256 of the other files."""
        path = self.path / "summary.json"
        try:
            summary = dict(json.loads(path.read_text("utf-8"))) if path.is_file() else None
        except (OSError, ValueError, TypeError) as error:
            raise RunError(f"'{path}' cannot be read: {reason(error, path)}") from None
        if summary is None:
            return None
        files = summary.pop("sha256", None)
        if not isinstance(files, dict) or "data_fingerprint" not in summary:
            raise RunError(
                f"'{path}' is not complete: it was changed, or written by an earlier version of CommonGround; choose "
                "another --out"
            )
        own = files.pop("summary.json", None)
        if own != _summary_sha256(summary, files):
            raise RunError(
                f"'{path}' is not what the run wrote: it was changed or cut; remove it, and --resume writes it again"
            )
        return summary, files


def _sha256(path: Path) -> str:
    """Of a file, without holding it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _own_options(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as written, without what earlier versions put among the options of a LoRA given as an object."""
    options = settings.get("options")
    return {**settings, **({"options": without_class_variables(options)} if isinstance(options, Mapping) else {})}


def plain_settings(config: RunConfig) -> dict[str, Any]:
    """A run's settings as they are after they were written to a file."""
    plain: dict[str, Any] = json.loads(json.dumps(config.model_dump(), default=str))
    return plain


def _summary_sha256(summary: Mapping[str, Any], files: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps([summary, files]).encode()).hexdigest()

"""A run's folder: written so that a crash at any moment leaves it valid.

Whole files are written under a temporary name, synced and renamed; ``rounds.jsonl`` grows by whole lines. What a run
wrote is known by its sha256 (in the checkpoint, and once it is finished in ``summary.json``), so that a file that was
changed or cut is noticed.
"""

from __future__ import annotations

import csv
import errno
import hashlib
import io
import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from commonground.access import reason
from commonground.config import RunConfig
from commonground.data import FederatedDataset, TableSchema
from commonground.engine.rows import Rows
from commonground.engine.state.checkpoint import Checkpoint, CheckpointFolder
from commonground.engine.state.csv_rows import CsvRows
from commonground.engine.state.files import remove_parts, sync_file, write_atomically
from commonground.errors import ConfigError, DataError, RunError
from commonground.spreadsheet import cell, without_apostrophe

__all__ = [
    "FREE",
    "NOISE",
    "SCHEMA",
    "START",
    "RunFolder",
    "describe",
    "plain_settings",
    "split_json",
    "write_atomically",
]

# Settings that may differ when a run is continued: they do not touch its numbers. (Of the number of rounds that is true
# of some runs only: see commonground.engine.more_rounds.)
FREE = frozenset({"workers", "ray_address", "rounds"})

# Settings that touch no more than the last bits of its numbers: they may differ if the user says so.
NUMERIC_SETTINGS = frozenset({"threads", "precision", "device"})

NOISE = "feature_noise.safetensors"
START = "initial_model.safetensors"
SCHEMA = "schema.json"

LINES = 10_000  # clients whose lines are made at once

_DESCRIBED = ("fingerprint", "sample_shape", "inputs", "task", "task_settings", "classes")


class RunFolder:
    """The files of one run.

    Args:
        path: the folder, created with the first file.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self.checkpoints = CheckpointFolder(self.path / "checkpoint")
        self._rows_sha = hashlib.sha256()  # of rounds.jsonl, line by line
        self._files: dict[str, str] = {}  # sha256 of the files written at the start

    @property
    def exists(self) -> bool:
        """Whether a run has begun here."""
        return (self.path / "config.toml").is_file()

    def check_free(self) -> None:
        """Raise a RunError if another run is here, or the path cannot become a folder."""
        # A run that failed in its first round has left nothing worth keeping.
        begun = (self.path / "summary.json").exists() or (self.path / "checkpoint").exists() or bool(self.rows())
        if self.exists and begun:
            raise RunError(f"'{self.path}' already holds a run; add --resume to continue it or choose another --out")
        if self.path.exists() and not self.path.is_dir():
            raise RunError(f"'{self.path}' is a file; --out needs a folder")
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
        path = self.path / "split.json"
        try:
            split = dict(json.loads(path.read_text("utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise RunError(f"'{path}' cannot be read: {reason(error, path)}") from None
        for key in (*_DESCRIBED, "class_names", "client_names", "preprocess", "train"):
            if key not in split:
                raise RunError(f"'{path}' is damaged: it has no '{key}'")
        return split

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
        for name in ("summary.json", "clients.csv"):
            (self.path / name).unlink(missing_ok=True)
        before = self.config()
        if any(getattr(config, name) != getattr(before, name) for name in ("rounds", *NUMERIC_SETTINGS)):
            write_atomically(self.path / "config.toml", config.to_toml())

    def config(self) -> RunConfig:
        """The configuration the run was started with.

        Raises:
            ConfigError: the file is not readable, or holds what no setting can be.
        """
        path = self.path / "config.toml"
        values = RunConfig.read(path)
        try:
            return RunConfig.make(values)
        except ConfigError as error:
            raise ConfigError(f"'{path}' was changed: {error}") from None

    def check_config(self, settings: Mapping[str, Any], *, free: Collection[str] = FREE) -> None:
        """Raise a RunError that names the first setting in which ``config.toml`` differs from a checkpoint's."""
        written = plain_settings(self.config())
        for key, value in settings.items():
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
            if key not in free and key not in numeric and now[key] != value:
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

    # -- rounds -------------------------------------------------------------------------------------------------

    def rows(self) -> list[dict[str, Any]]:
        """The rounds written so far; a line cut short by a crash is left out."""
        path = self.path / "rounds.jsonl"
        rows: list[dict[str, Any]] = []
        for line in path.read_bytes().splitlines() if path.is_file() else []:
            try:
                row = json.loads(line)
            except ValueError:
                break
            if not isinstance(row, dict) or row.get("round") != len(rows) + 1:
                break
            rows.append(row)
        return rows

    def keep_rows(self, rounds: int, sha256: str | None = None) -> list[dict[str, Any]]:
        """Cut off the lines after a round.

        Args:
            rounds: lines to keep.
            sha256: of these lines as they were written.

        Returns:
            The rows.

        Raises:
            RunError: they are not what was written.
        """
        path = self.path / "rounds.jsonl"
        whole = path.read_bytes() if path.is_file() else b""
        kept = b"".join(whole.splitlines(keepends=True)[:rounds])
        self._rows_sha = hashlib.sha256(kept)
        if sha256 is not None:
            self.check_rows(rounds, sha256)
        if kept != whole:
            write_atomically(path, kept)
        return self.rows()

    def check_rows(self, rounds: int, sha256: str) -> None:
        """Raise a RunError if the lines up to a round are not what the run wrote."""
        path = self.path / "rounds.jsonl"
        whole = path.read_bytes() if path.is_file() else b""
        if hashlib.sha256(b"".join(whole.splitlines(keepends=True)[:rounds])).hexdigest() != sha256:
            raise RunError(
                f"'{path}' is not what the run wrote: of the {rounds} lines that belong to the checkpoint, some were "
                "changed or are missing; put it back or start again in another --out"
            )

    def replace_rows(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write all lines anew; a checkpoint that knows them must follow."""
        content = "".join(json.dumps(row) + "\n" for row in rows).encode()
        write_atomically(self.path / "rounds.jsonl", content)
        self._rows_sha = hashlib.sha256(content)

    def add_row(self, row: Mapping[str, Any]) -> None:
        """Append one round, as one write.

        Raises:
            RunError: it cannot be written; the file is as before.
        """
        line = (json.dumps(row) + "\n").encode()
        path = self.path / "rounds.jsonl"
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                before = os.fstat(descriptor).st_size
                if os.write(descriptor, line) < len(line):
                    os.ftruncate(descriptor, before)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            finally:
                os.close(descriptor)
        except OSError as error:
            raise RunError(f"'{path}' cannot be written: {error.strerror or error}") from None
        self._rows_sha.update(line)

    # -- checkpoints --------------------------------------------------------------------------------------------

    @property
    def files(self) -> dict[str, str]:
        """sha256 of the files that belong to a checkpoint taken now, by name."""
        return {**self._files, "rounds.jsonl": self._rows_sha.hexdigest()}

    def save(self, checkpoint: Checkpoint, *, name: str | None = None) -> Path:
        """Write a checkpoint; see :meth:`~commonground.engine.state.checkpoint.CheckpointFolder.save`.

        Raises:
            OSError: it cannot be written.
        """
        if (self.path / "rounds.jsonl").is_file():
            sync_file(self.path / "rounds.jsonl")  # a checkpoint must not outlast the lines that belong to it
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
        rows = self.keep_rows(checkpoint.round, checkpoint.files["rounds.jsonl"])
        (self.path / "summary.json").unlink(missing_ok=True)
        return rows

    # -- results ------------------------------------------------------------------------------------------------

    def write_clients(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write ``clients.csv``; a name is a cell that no spreadsheet computes, the true one is in ``split.json``."""
        write_atomically(self.path / "clients.csv", _lines(rows))

    def clients(self) -> Rows:
        """The rows of ``clients.csv``, numbers as numbers and names as in ``split.json``; each is made when it is asked
        for.
        """
        path = self.path / "clients.csv"
        names = self.split()["client_names"] if (self.path / "split.json").is_file() else None

        def made(texts: dict[str, str]) -> dict[str, Any]:
            row: dict[str, Any] = {key: _number(text) if key != "name" else text for key, text in texts.items()}
            row["name"] = without_apostrophe(str(row["name"])) if names is None else names[int(row["client"])]
            return row

        try:
            rows = CsvRows(path.read_bytes(), made)
            for _ in rows:
                pass  # what cannot be read is told now
            return rows
        except (OSError, ValueError, TypeError, KeyError, IndexError, csv.Error) as error:
            raise RunError(f"'{path}' cannot be read: {reason(error, path)}") from None

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


def _lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[bytes]:
    """The lines of ``clients.csv``, some thousands at a time."""
    names = list(rows[0])
    for start in range(0, len(rows), LINES):
        text = io.StringIO()
        writer = csv.DictWriter(text, names, lineterminator="\n")
        if start == 0:
            writer.writeheader()
        writer.writerows({**row, "name": cell(str(row["name"]))} for row in rows[start : start + LINES])
        yield text.getvalue().encode()


def plain_settings(config: RunConfig) -> dict[str, Any]:
    """A run's settings as they are after they were written to a file."""
    plain: dict[str, Any] = json.loads(json.dumps(config.model_dump(), default=str))
    return plain


def _summary_sha256(summary: Mapping[str, Any], files: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps([summary, files]).encode()).hexdigest()


def split_json(data: FederatedDataset) -> bytes:
    """What :func:`describe` tells, as ``split.json`` holds it, without a list in memory for every client."""
    about = describe(data)
    text = json.dumps(about)[:-1]
    parts = [text.encode()]
    for split in ("train", "test"):
        counts = data.class_counts(split)
        parts.append(f', "{split}": ['.encode())
        for start in range(0, len(counts), LINES):
            some = json.dumps(counts[start : start + LINES].tolist(), separators=(",", ":"))
            parts.append((("," if start else "") + some[1:-1]).encode())
        parts.append(b"]")
    return b"".join([*parts, b"}\n"])


def describe(data: FederatedDataset) -> dict[str, Any]:
    """What a model needs to know about its inputs; no sample is in it. In ``split.json`` follow, as ``train`` and
    ``test``, the counts of each client's classes.
    """
    p = data.preprocess
    return {
        "name": data.name,
        "fingerprint": data.fingerprint(),
        "sample_shape": list(data.sample_shape),
        "task": data.task.name,
        "task_settings": asdict(data.task),
        **data.format.about(),
        "classes": data.classes,
        "class_names": list(data.class_names),
        "client_names": None if data.client_names is None else list(data.client_names),
        "preprocess": {"scale": p.scale, "mean": list(p.mean), "std": list(p.std)},
        **({"described": True} if data.described else {}),
    }


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text

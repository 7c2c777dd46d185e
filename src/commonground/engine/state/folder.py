"""A run's folder: written so that a crash at any moment leaves it valid.

Whole files are written under a temporary name and renamed; ``rounds.jsonl`` grows by whole lines. A checkpoint is one
safetensors file, so it is either there or not.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save, save_file
from torch import Tensor

from commonground.config import RunConfig
from commonground.data import FederatedDataset
from commonground.errors import RunError

__all__ = ["Checkpoint", "RunFolder", "describe", "write_atomically"]

# Settings that may differ when a run is continued: they do not touch its numbers. (Of the number of rounds that is true
# of some runs only: see commonground.engine.more_rounds.)
_FREE = {"workers", "rounds"}

NOISE = "feature_noise.safetensors"
START = "initial_model.safetensors"

_DESCRIBED = ("fingerprint", "sample_shape", "inputs", "task", "task_settings", "classes")


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file under a temporary name in the same folder, then rename it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_bytes(content.encode() if isinstance(content, str) else content)
        os.replace(part, path)
    except OSError:
        part.unlink(missing_ok=True)
        raise


class Checkpoint:
    """What a run needs to go on: the round, running totals and every tensor.

    Args:
        round: rounds done.
        totals: bytes and seconds so far, times each client took part, and the like.
        shared: the server's tensors.
        clients: the engine's state of the clients.
    """

    def __init__(
        self, round: int, totals: dict[str, Any], shared: Mapping[str, Tensor], clients: Mapping[str, Tensor]
    ) -> None:
        self.round = round
        self.totals = totals
        self.shared = dict(shared)
        self.clients = dict(clients)


class RunFolder:
    """The files of one run.

    Args:
        path: the folder, created with the first file.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)

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
        """Write what the data looks like (``split.json``), its feature noise if any, what a user's own model starts
        from (:func:`~commonground.models.start_of`), and the configuration.
        """
        try:
            write_atomically(self.path / "split.json", json.dumps(describe(data)) + "\n")
            if data.noise is not None:
                write_atomically(self.path / NOISE, save({"images": torch.from_numpy(data.noise.images)}))
            if start is not None:
                write_atomically(self.path / START, save(dict(start)))
            write_atomically(self.path / "config.toml", config.to_toml())
        except OSError as error:
            raise RunError(f"the folder '{self.path}' cannot be written: {error.strerror}") from None

    def split(self) -> dict[str, Any]:
        """What :meth:`begin` wrote about the data.

        Raises:
            RunError: it is missing or not readable.
        """
        try:
            split = dict(json.loads((self.path / "split.json").read_text("utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise RunError(f"'{self.path / 'split.json'}' cannot be read: {error}") from None
        for key in (*_DESCRIBED, "class_names", "client_names", "preprocess", "train"):
            if key not in split:
                raise RunError(f"'{self.path / 'split.json'}' is damaged: it has no '{key}'")
        return split

    def noise(self) -> Tensor:
        """The foreign images [clients, …] of a run with feature noise, as the samples are stored.

        Raises:
            RunError: the file is missing or not readable.
        """
        path = self.path / NOISE
        try:
            return load(path.read_bytes())["images"]
        except (SafetensorError, OSError, KeyError) as error:
            raise RunError(f"'{path}', the feature noise of the run's clients, cannot be read: {error}") from None

    def start(self) -> dict[str, Tensor] | None:
        """What a user's own model started from; None for a model that is built by name.

        Raises:
            RunError: the file is not readable.
        """
        path = self.path / START
        try:
            return load(path.read_bytes()) if path.is_file() else None
        except (SafetensorError, OSError) as error:
            raise RunError(f"'{path}', the run's initial model, cannot be read: {error}") from None

    def go_on(self, config: RunConfig) -> None:
        """Note that a stopped or finished run is under way again, perhaps with more rounds."""
        # In this order: whenever the process dies, the folder is that of a run that can be resumed.
        for name in ("summary.json", "clients.csv"):
            (self.path / name).unlink(missing_ok=True)
        if config.rounds != self.config().rounds:
            write_atomically(self.path / "config.toml", config.to_toml())

    def config(self) -> RunConfig:
        """The configuration the run was started with."""
        return RunConfig.make(RunConfig.read(self.path / "config.toml"))

    def check_same(self, config: RunConfig, *, free: Collection[str] = _FREE) -> None:
        """Raise a RunError that names the first setting (none of ``free``) that differs from this run."""
        before, now = (json.loads(json.dumps(c.model_dump())) for c in (self.config(), config))  # tuples as lists
        for key, value in before.items():
            if key not in free and now[key] != value:
                raise RunError(
                    f"the run in '{self.path}' was started with {key} = {value!r}, not {now[key]!r}; resume it with "
                    "the same settings or choose another --out"
                )

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

    def keep_rows(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Replace the rounds by these."""
        write_atomically(self.path / "rounds.jsonl", "".join(json.dumps(row) + "\n" for row in rows))

    def add_row(self, row: Mapping[str, Any]) -> None:
        """Append one round, as one write."""
        line = (json.dumps(row) + "\n").encode()
        descriptor = os.open(self.path / "rounds.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)

    # -- checkpoints --------------------------------------------------------------------------------------------

    def _checkpoints(self) -> list[Path]:
        return sorted((self.path / "checkpoint").glob("round-*.safetensors"))

    def save(self, checkpoint: Checkpoint, *, name: str | None = None) -> Path:
        """Write a checkpoint, then remove older ones."""
        folder = self.path / "checkpoint"
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / (name or f"round-{checkpoint.round:06d}.safetensors")
        part = target.with_name(f".{target.name}.part")
        tensors = {f"shared/{n}": t.contiguous() for n, t in checkpoint.shared.items()}
        tensors |= {f"clients/{n}": t.contiguous() for n, t in checkpoint.clients.items()}
        save_file(tensors, part, {"round": str(checkpoint.round), "totals": json.dumps(checkpoint.totals)})
        os.replace(part, target)
        for other in self._checkpoints() if name is None else []:
            if other != target:
                other.unlink()
        return target

    def load(self, name: str | None = None) -> Checkpoint | None:
        """The newest checkpoint (or the named one), or None if there is none.

        Raises:
            RunError: it cannot be read.
        """
        found = self._checkpoints() if name is None else [self.path / "checkpoint" / name]
        if not found or not found[-1].is_file():
            return None
        shared: dict[str, Tensor] = {}
        clients: dict[str, Tensor] = {}
        try:
            with safe_open(found[-1], "pt") as file:
                meta = file.metadata()
                for key in file.keys():  # noqa: SIM118 (not a mapping)
                    kind, _, tensor = key.partition("/")
                    (shared if kind == "shared" else clients)[tensor] = file.get_tensor(key)
            totals = dict(json.loads(meta["totals"]))
            if "data_fingerprint" not in totals:
                raise ValueError("it does not say which data it belongs to")
            return Checkpoint(int(meta["round"]), totals, shared, clients)
        except (SafetensorError, OSError, KeyError, ValueError, TypeError) as error:
            raise RunError(f"the checkpoint '{found[-1]}' cannot be read: {error}") from None

    # -- results ------------------------------------------------------------------------------------------------

    def write_clients(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write ``clients.csv``."""
        text = io.StringIO()
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_atomically(self.path / "clients.csv", text.getvalue())

    def clients(self) -> list[dict[str, Any]]:
        """The rows of ``clients.csv``, numbers as numbers."""
        path = self.path / "clients.csv"
        try:
            with path.open(encoding="utf-8", newline="") as file:
                return [{k: _number(v) if k != "name" else v for k, v in row.items()} for row in csv.DictReader(file)]
        except (OSError, ValueError, TypeError, csv.Error) as error:
            raise RunError(f"'{path}' cannot be read: {error}") from None

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write ``summary.json``, the last file of a run."""
        write_atomically(self.path / "summary.json", json.dumps(summary, indent=2) + "\n")

    @property
    def finished(self) -> bool:
        """Whether all rounds of the run are done, and its results are there."""
        summary = self.summary()
        return summary is not None and "stopped_after" not in summary and summary["rounds"] == self.config().rounds

    def summary(self) -> dict[str, Any] | None:
        """The summary, or None if the run has neither finished nor been stopped.

        Raises:
            RunError: it is not readable.
        """
        path = self.path / "summary.json"
        try:
            summary = dict(json.loads(path.read_text("utf-8"))) if path.is_file() else None
        except (OSError, ValueError, TypeError) as error:
            raise RunError(f"'{path}' cannot be read: {error}") from None
        if summary is not None and "data_fingerprint" not in summary:
            raise RunError(f"'{path}' is damaged: it has no 'data_fingerprint'")
        return summary


def describe(data: FederatedDataset) -> dict[str, Any]:
    """Who holds how much of what, and what a model needs to know about its inputs; no sample is in it."""
    p, named = data.preprocess, data.x_train.dtype.names
    return {
        "name": data.name,
        "fingerprint": data.fingerprint(),
        "sample_shape": list(data.sample_shape),
        "task": data.task.name,
        "task_settings": asdict(data.task),
        "inputs": data.format.kind,
        **({"fields": {name: list(data.x_train[name].shape[1:]) for name in named}} if named else {}),
        "classes": data.classes,
        "class_names": list(data.class_names),
        "client_names": None if data.client_names is None else list(data.client_names),
        "preprocess": {"scale": p.scale, "mean": list(p.mean), "std": list(p.std)},
        "train": data.class_counts("train").tolist(),
        "test": data.class_counts("test").tolist(),
    }


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text

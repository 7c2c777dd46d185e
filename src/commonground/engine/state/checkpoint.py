"""Checkpoints: what a run needs to go on, each in one safetensors file beside the segments of the clients' state.

The metadata of the file holds its ``content`` as JSON (its name, round, totals, settings, digests of the run's other
files, the segments that hold the clients' state, and a sha256 over the file's tensors) and the sha256 of that text. The
last two checkpoints are kept, with them that of the best round so far of each (``best_round`` in its totals), if a run
looks for one, and the segments that these name.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from commonground.access import reason
from commonground.algorithms import Tensors
from commonground.engine.state.digests import digest
from commonground.engine.state.files import remove_parts, sync_folder, write_tensors
from commonground.engine.state.segment import Segment
from commonground.errors import RunError

__all__ = ["Checkpoint", "CheckpointFolder"]

FORMAT = "commonground-checkpoint-1"
KEPT = 2


@dataclass(frozen=True)
class Checkpoint:
    """What a run needs to go on: the round, running totals and every tensor.

    Attributes:
        round: rounds done.
        totals: bytes and seconds so far, times each client took part, and the like.
        shared: the server's tensors.
        clients: what the run knows of its clients, as tensors.
        settings: the run's configuration.
        files: sha256 of other files of the run, by name.
        personal: the segments that hold the clients' state, oldest first.
    """

    round: int
    totals: dict[str, Any]
    shared: Tensors
    clients: Tensors = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    personal: Sequence[Segment] = ()


class CheckpointFolder:
    """The checkpoints of one run.

    Args:
        path: their folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._good: list[tuple[str, str | None]] = []  # names of the checkpoints to keep, and of their best rounds'
        self._segments: dict[str, frozenset[Path]] = {}  # of checkpoints, by name

    def personal(self, name: str | None = None) -> Path:
        """The folder of the clients' state: of all rounds' checkpoints, or of a named one."""
        return self.path / (Path(name).stem if name else "personal")

    @staticmethod
    def name_of(round: int) -> str:
        """The file of a round's checkpoint."""
        return f"round-{round:06d}.safetensors"

    def rounds(self) -> list[Path]:
        """The rounds' checkpoints, oldest first.

        Raises:
            RunError: their folder is not ours to read.
        """
        try:
            names = os.listdir(self.path) if self.path.is_dir() else []
        except OSError as error:
            raise RunError(f"the checkpoints in '{self.path}' cannot be read: {reason(error, self.path)}") from None
        found = [self.path / name for name in names if re.fullmatch(r"round-\d+\.safetensors", name)]
        return sorted(found, key=lambda path: int(path.stem.removeprefix("round-")))

    def remove_parts(self) -> None:
        """Remove what a killed process has left half written."""
        for folder in (self.path, *(f for f in self.path.glob("*") if f.is_dir())):
            remove_parts(folder)

    def save(self, checkpoint: Checkpoint, name: str | None = None) -> Path:
        """Write a checkpoint; then remove all that need not be kept.

        Raises:
            OSError: it cannot be written; nothing has changed.
        """
        target = self.path / (name or self.name_of(checkpoint.round))
        tensors = {f"shared/{n}": t.cpu() for n, t in checkpoint.shared.items()}
        tensors |= {f"clients/{n}": t.cpu() for n, t in checkpoint.clients.items()}
        content = json.dumps(
            {
                "name": target.name,
                "round": checkpoint.round,
                "totals": checkpoint.totals,
                "settings": checkpoint.settings,
                "files": checkpoint.files,
                "personal": [{"file": s.path.name, "size": s.size, "sha256": s.sha256} for s in checkpoint.personal],
                "tensors": digest(tensors),
            }
        )
        write_tensors(target, tensors, {"format": FORMAT, "content": content, "sha256": _sha256(content)})
        if name is None:
            self._keep(target.name, checkpoint)
            self._remove_others()
        return target

    def load(
        self, name: str | None = None, *, note: Callable[[str], None] | None = None, rows: bool = False
    ) -> Checkpoint | None:
        """The newest checkpoint (or the named one), or None if there is none.

        Args:
            name: of a checkpoint that is none of the rounds'.
            note: told in a sentence if the newest one is damaged and the one before is taken; if it is not given, a
                damaged one is not passed over.
            rows: whether every client's row is compared with its digest, too; else when it is read.

        Raises:
            RunError: it is damaged, and the one before as well.
        """
        found = self.rounds() if name is None else [p for p in (self.path / name,) if p.is_file()]
        errors: list[RunError] = []
        for path in reversed(found):
            try:
                checkpoint = self._read(path, rows)
            except RunError as error:
                if not path.is_symlink() and not path.exists():  # a process that is training here has a newer one
                    return self.load(name, note=note, rows=rows)
                errors.append(error)
                if note is None:
                    break
                continue
            if errors and note is not None:
                note(f"{errors[0]}; the run goes on from the one before, of round {checkpoint.round}")
            if name is None:
                self._keep(path.name, checkpoint)
            return checkpoint
        if errors:
            more = f", nor can the one before, '{found[-2]}'" if len(errors) > 1 else ""
            raise RunError(f"{errors[0]}{more}")
        return None

    def settings(self) -> dict[str, Any] | None:
        """The settings in the newest checkpoint that is not damaged; None if there is none."""
        for path in reversed(self.rounds()):
            try:
                return dict(self._content(path)["settings"])
            except RunError:
                continue
        return None

    def _content(self, path: Path) -> dict[str, Any]:
        try:
            with safe_open(path, "pt") as file:
                metadata = file.metadata() or {}
            if "format" not in metadata and "totals" in metadata:
                raise RunError(
                    f"the checkpoint '{path}' was written by an earlier version of CommonGround, which this one cannot "
                    "read; start the run again in another --out"
                )
            if metadata["format"] != FORMAT or metadata["sha256"] != _sha256(metadata["content"]):
                raise ValueError("its metadata are not what was written")
            content = dict(json.loads(metadata["content"]))
            if content["name"] != path.name:
                raise ValueError(f"it is the file '{content['name']}' under another name")
            return content
        except (SafetensorError, OSError, KeyError, ValueError, TypeError) as error:
            raise RunError(f"the checkpoint '{path}' cannot be read: {_reason(error, path)}") from None

    def _read(self, path: Path, rows: bool) -> Checkpoint:
        content = self._content(path)
        kinds: dict[str, Tensors] = {"shared": {}, "clients": {}}
        try:
            with safe_open(path, "pt") as file:
                tensors = {key: file.get_tensor(key).clone() for key in file.keys()}  # noqa: SIM118 (not a mapping)
            if digest(tensors) != content["tensors"]:
                raise ValueError("its tensors are not what was written")
            for key, tensor in tensors.items():
                kind, _, own = key.partition("/")
                kinds[kind][own] = tensor
        except (SafetensorError, OSError, KeyError, ValueError, TypeError) as error:
            raise RunError(f"the checkpoint '{path}' cannot be read: {_reason(error, path)}") from None
        folder = self.personal(None if path.name.startswith("round-") else path.name)
        personal = []
        try:
            for entry in content["personal"]:
                segment = Segment.open(folder / entry["file"])
                if (segment.size, segment.sha256) != (entry["size"], entry["sha256"]):
                    raise RunError(f"'{segment.path}' is not the file it belongs to")
                if rows:
                    segment.check()
                personal.append(segment)
        except RunError as error:
            raise RunError(f"the checkpoint '{path}' cannot be read: {error}") from None
        return Checkpoint(
            content["round"], content["totals"], **kinds, settings=content["settings"], files=content["files"],
            personal=personal,
        )  # fmt: skip

    def _keep(self, name: str, checkpoint: Checkpoint) -> None:
        before = [kept for kept in self._good if kept[0] != name]
        best = checkpoint.totals.get("best_round")
        self._good = [*before, (name, None if best is None else self.name_of(best))][-KEPT:]
        self._segments[name] = frozenset(s.path for s in checkpoint.personal)

    def _segments_of(self, name: str) -> frozenset[Path]:
        if name not in self._segments:
            named = self._content(self.path / name)["personal"] if (self.path / name).is_file() else []
            self._segments[name] = frozenset(self.personal() / entry["file"] for entry in named)
        return self._segments[name]

    def _remove_others(self) -> None:
        """Only after a checkpoint has reached the disk, which no longer needs them."""
        names = {name for kept in self._good for name in kept if name is not None}
        used = {path for name in names for path in self._segments_of(name)}
        gone = [path for path in self.rounds() if path.name not in names]
        for path in gone:
            path.unlink()
        if gone:
            sync_folder(self.path)
        # A checkpoint must not outlast a segment that it names, so the segments go last.
        for path in self.personal().glob("round-*.safetensors"):
            if path not in used:
                path.unlink()


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _reason(error: Exception, path: Path) -> str:
    return f"it has no {error}" if isinstance(error, KeyError) else reason(error, path)

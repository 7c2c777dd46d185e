"""Clients added to a run after it: a head for each on the run's body, kept in the run's folder.

``added/clients.json`` holds their names, the digest of the weights that their heads were fitted to, and the digests of
the segments in which the heads lie (:mod:`commonground.engine.state.segment`). The run's own files stay as they are.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from commonground.algorithms import Tensors
from commonground.engine.state.digests import digest_rows
from commonground.engine.state.files import write_atomically
from commonground.engine.state.segment import Segment
from commonground.engine.state.store import PersonalStore
from commonground.errors import RunError

__all__ = ["FOLDER", "INDEX", "AddedClients"]

FOLDER, INDEX = "added", "clients.json"
_HEADS = "heads-{}.safetensors"
_FORMAT = 1


@dataclass(frozen=True, eq=False)
class AddedClients:
    """Clients that were added to a run.

    Attributes:
        weights: digest of the run's weights that their heads were fitted to.
        names: theirs, in the order in which they came.
        scales: by name, of clients that scale by their own statistics (``--scaling client``).
        segments: their heads; the newest row of a client counts.
    """

    weights: str
    names: tuple[str, ...] = ()
    scales: Mapping[str, Any] = field(default_factory=dict)
    segments: tuple[Segment, ...] = ()

    @classmethod
    def read(cls, run: Path, weights: str) -> AddedClients:
        """Those of the run in a folder; none where there are none.

        Args:
            run: the run's folder.
            weights: digest of its present weights.

        Raises:
            RunError: a file is missing or damaged.
        """
        path = run / FOLDER / INDEX
        if not path.is_file():
            return cls(weights)
        try:
            index = json.loads(path.read_text("utf-8"))
            if index["format"] != _FORMAT:
                raise ValueError("another version wrote it")
            if index.pop("sha256") != _sha256(index):
                raise ValueError("it is not what was written")
            names, scales, of = tuple(map(str, index["names"])), dict(index["scales"]), str(index["weights"])
            files = [(str(entry["file"]), str(entry["sha256"])) for entry in index["segments"]]
            if any(Path(name).name != name for name, _ in files):
                raise ValueError("a segment lies elsewhere")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(f"'{path}' is damaged: {str(error).splitlines()[0]}") from None
        segments = [Segment.open(run / FOLDER / name) for name, _ in files]
        for segment, (name, sha256) in zip(segments, files, strict=True):
            fits = segment.fits(len(names), segments[0].initial)
            if segment.sha256 != sha256 or not fits:
                raise RunError(f"'{run / FOLDER / name}' is not the file that '{path}' names")
        return cls(of, names, scales, tuple(segments))

    def with_more(
        self, run: Path, names: Sequence[str], heads: Sequence[Tensors], scales: Mapping[str, Any]
    ) -> AddedClients:
        """Write further clients, or new heads of known ones, into the run's folder. Earlier heads leave it.

        Args:
            run: the run's folder.
            names: theirs.
            heads: what each has of its own, by name.
            scales: by name, if they scale by their own statistics.
        """
        given, known = dict(zip(names, heads, strict=True)), {**self.scales, **scales}
        if given.keys() & {*self.names}:
            return self._anew(run, {**self._heads(), **given}, known)
        segment = self._segment(run, len(self.names), list(given.values()))
        return self._indexed(run, (*self.names, *given), known, (*self.segments, segment))

    def without(self, run: Path, names: Collection[str]) -> AddedClients:
        """Take clients out of the run's folder: their heads leave its files, earlier ones as well.

        Args:
            run: the run's folder.
            names: theirs.
        """
        left = {name: head for name, head in self._heads().items() if name not in names}
        return self._anew(run, left, {name: own for name, own in self.scales.items() if name in left})

    def _heads(self) -> dict[str, Tensors]:
        return {name: self.head(number) for number, name in enumerate(self.names)}

    def _anew(self, run: Path, heads: Mapping[str, Tensors], scales: Mapping[str, Any]) -> AddedClients:
        """All heads in a file of their own, in place of those that were there."""
        segments = (self._segment(run, 0, list(heads.values())),) if heads else ()
        added = self._indexed(run, tuple(heads), scales, segments)
        for path in (run / FOLDER).glob(_HEADS.format("*")):
            if path not in {segment.path for segment in segments}:
                path.unlink()
        return added

    def _segment(self, run: Path, first: int, heads: Sequence[Tensors]) -> Segment:
        """A file of the heads of clients from the number ``first`` on."""
        rows = {name: torch.stack([head[name].detach().cpu() for head in heads]) for name in heads[0]}
        (run / FOLDER).mkdir(exist_ok=True)
        before = [path.stem.removeprefix("heads-") for path in (run / FOLDER).glob(_HEADS.format("*"))]
        number = 1 + max((int(text) for text in before if text.isdecimal()), default=0)
        return Segment.write(
            run / FOLDER / _HEADS.format(f"{number:06d}"),
            number,
            np.arange(first, first + len(heads), dtype=np.int64),
            digest_rows(rows),
            {name: value[0] for name, value in rows.items()},
            lambda name, at: rows[name][torch.from_numpy(at)],
        )

    def _indexed(
        self, run: Path, names: tuple[str, ...], scales: Mapping[str, Any], segments: tuple[Segment, ...]
    ) -> AddedClients:
        """What the index says from now on."""
        entries = [{"file": part.path.name, "sha256": part.sha256} for part in segments]
        index = {"format": _FORMAT, "weights": self.weights, "names": names, "scales": scales, "segments": entries}
        index["sha256"] = _sha256(index)
        write_atomically(run / FOLDER / INDEX, json.dumps(index, indent=1, ensure_ascii=False) + "\n")
        return AddedClients(self.weights, names, scales, segments)

    def head(self, number: int) -> Tensors:
        """What a client has of its own, compared with its digest.

        Raises:
            RunError: its file is damaged.
        """
        return self._store.read(number)

    @cached_property
    def _store(self) -> PersonalStore:
        store = PersonalStore(len(self.names), self.segments[0].initial)
        store.load(self.segments)
        return store


def _sha256(index: Mapping[str, Any]) -> str:
    """Of all that the index says."""
    return hashlib.sha256(json.dumps(index, sort_keys=True).encode()).hexdigest()

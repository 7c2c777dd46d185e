"""Clients added to a run after it: a head for each on the run's body, kept in the run's folder.

``added/clients.json`` holds their names, the digest of the weights that their heads were fitted to, and the digests of
the segments in which the heads lie (:mod:`commonground.engine.state.segment`). The run's own files stay as they are.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
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
        """Write further clients, or new heads of known ones, into the run's folder.

        Args:
            run: the run's folder.
            names: theirs.
            heads: what each has of its own, by name.
            scales: by name, if they scale by their own statistics.
        """
        everyone = list(dict.fromkeys([*self.names, *names]))
        place = {name: number for number, name in enumerate(everyone)}
        order = sorted(range(len(names)), key=lambda i: place[names[i]])
        clients = np.array([place[names[i]] for i in order], dtype=np.int64)
        rows = {name: torch.stack([heads[i][name].detach().cpu() for i in order]) for name in heads[0]}
        number = len(self.segments) + 1
        (run / FOLDER).mkdir(exist_ok=True)
        segment = Segment.write(
            run / FOLDER / f"heads-{number:06d}.safetensors",
            number,
            clients,
            digest_rows(rows),
            {name: value[0] for name, value in rows.items()},
            lambda name, at: rows[name][torch.from_numpy(at)],
        )
        segments = (*self.segments, segment)
        entries = [{"file": part.path.name, "sha256": part.sha256} for part in segments]
        known = {**self.scales, **scales}
        index = {"format": _FORMAT, "weights": self.weights, "names": everyone, "scales": known, "segments": entries}
        index["sha256"] = _sha256(index)
        write_atomically(run / FOLDER / INDEX, json.dumps(index, indent=1, ensure_ascii=False) + "\n")
        return AddedClients(self.weights, tuple(everyone), known, segments)

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

"""What is measured, and what a peer has to offer to be measured."""

from __future__ import annotations

import json
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.peers.clock import Clock

NAMES = ("fedrep_authors", "pfllib", "fluke", "fl_bench", "flower", "pfl_research", "blazefl")


class Missing(Exception):
    """A peer cannot run here; the message says why."""


@dataclass(frozen=True)
class Work:
    """One kind of round, the same for a peer and for us.

    Attributes:
        method: ``fedrep`` or ``fedavg``.
        data: folder with the split's arrays (:mod:`benchmarks.peers.samples`).
        data_dir: folder with CIFAR-10's files, from which ours reads; empty for the library's own place.
        per_client: random pictures for each client in CIFAR-10's place, if not 0.
        clients, sampled: how many exist, and how many take part in a round.
        batch: samples in a mini-batch.
        head_epochs, body_epochs: FedRep's epochs.
        epochs: FedAvg's epochs on the whole network.
        rounds: rounds that count; one more before them warms up.
        lr: learning rate.
        net: ``cnn`` (that of FedRep's paper) or ``pfllib`` (that of PFLlib for CIFAR-10).
        momentum: of SGD.
        cores: how many the process may use.
        precision: in which ours computes products, ``fp32`` or ``bf16``; a peer computes as it does.
    """

    method: str
    data: str
    data_dir: str = ""
    per_client: int = 0
    clients: int = 100
    sampled: int = 10
    batch: int = 10
    head_epochs: int = 10
    body_epochs: int = 1
    epochs: int = 5
    rounds: int = 2
    lr: float = 0.01
    net: str = "cnn"
    momentum: float = 0.5
    cores: int = 1
    precision: str = "fp32"

    def text(self) -> str:
        """As JSON, for the child process."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> Work:
        """Back from :meth:`text`."""
        return cls(**json.loads(text))


class Peer(ABC):
    """A program that can train federated rounds; its subclass is named ``Peer`` in a module of its own.

    Attributes:
        title: its name on the page.
        methods: which of ``fedrep`` and ``fedavg`` it has.
        net, momentum: see :class:`Work`; what it can be given decides.
        differs: what is not the same as in ours, a sentence each.
    """

    title: str
    methods: Sequence[str] = ("fedrep", "fedavg")
    net: str = "cnn"
    momentum: float = 0.5
    differs: Sequence[str] = ()

    @abstractmethod
    def find(self, path: Path | None) -> str:
        """Its version, if it is here and can be imported; else :class:`Missing` is raised.

        Args:
            path: the checkout that was named, if any.
        """

    @abstractmethod
    def run(self, path: Path | None, work: Work, clock: Clock) -> None:
        """Warm up for one round, then train ``work.rounds`` of them, telling the clock when a test begins and ends."""


def peer_named(name: str) -> Peer:
    """The class ``Peer`` of a module of this folder, or of a module of your own, whose name has a dot."""
    peer = import_module(name if "." in name else f"benchmarks.peers.{name}").Peer()
    if not isinstance(peer, Peer):
        raise TypeError(f"{name}.Peer is not derived from benchmarks.peers.common.Peer")
    return peer


def checkout(path: Path | None, file: str) -> Path:
    """A named checkout, if it holds a file that belongs to the peer."""
    if path is None:
        raise Missing("it is no package: name a checkout with --peer NAME=PATH")
    if not (path / file).is_file():
        raise Missing(f"the folder that was named has no {file}")
    return path.resolve()


def commit(path: Path) -> str:
    """A checkout's commit in short, and whether files of it were changed."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(path), *words], capture_output=True, text=True, check=False)
        return done.stdout.strip()

    known = git("rev-parse", "--short=10", "HEAD")
    changed = ", with changes" if git("diff", "--name-only", "--diff-filter=M", "HEAD") else ""
    return f"commit {known}{changed}" if known else "commit unknown"

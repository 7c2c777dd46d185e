"""BlazeFL's FedAvg, client after client, installed or from a checkout."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.peers import common, samples
from benchmarks.peers.clock import Clock
from benchmarks.peers.nets import whole


class Peer(common.Peer):
    """Its own server and clients, in the loop of its quickstart: sample, send, train, load."""

    title = "BlazeFL"
    methods = ("fedavg",)
    momentum = 0.0  # its clients' SGD has none
    differs = (
        "it has no FedRep",
        "its SGD has no momentum, so ours has none either",
        "it asks for Python 3.14; where an older one runs it, the checkout's annotations were changed so that it can",
        "its clients are trained one after the other, as its quickstart does by default",
        "its server tests one model on all test samples",
    )

    def find(self, path: Path | None) -> str:
        """The package's version, or the checkout's commit."""
        _import(path)
        if path is not None:
            return common.commit(path)
        try:
            return version("blazefl")
        except PackageNotFoundError:
            raise common.Missing("there is no package blazefl") from None

    def run(self, path: Path | None, work: common.Work, clock: Clock) -> None:
        """Rounds, each followed by the server's own test."""
        _import(path)
        from blazefl.contrib import FedAvgBaseClientTrainer, FedAvgBaseServerHandler

        data, selector, share = _Split(work), _Selector(work.net), work.sampled / work.clients
        server = FedAvgBaseServerHandler(
            selector, "cnn", data, work.rounds + 1, work.clients, share, "cpu", batch_size=work.batch, seed=0
        )
        trainer = FedAvgBaseClientTrainer(
            selector, "cnn", data, "cpu", work.clients, work.epochs, work.batch, work.lr, seed=0
        )
        test = clock.testing(server.get_summary, lambda found: float(found["server_acc"]))
        while not server.is_stopped():
            trainer.local_process(server.downlink_package(), server.sample_clients())
            for package in trainer.uplink_package():
                server.load(package)
            test()


def _import(path: Path | None) -> None:
    if path is not None:
        sys.path.insert(0, str(common.checkout(path, "src/blazefl/__init__.py") / "src"))
    try:
        import_module("blazefl.contrib")
    except (SyntaxError, NameError):
        raise common.Missing(f"its language is newer than Python {sys.version.split()[0]}'s") from None


class _Selector:
    def __init__(self, net: str) -> None:
        self.net = net

    def select_model(self, name: str) -> nn.Module:
        return whole(self.net)


class _Split:
    """Loaders of a client's samples, or of all test samples."""

    def __init__(self, work: common.Work) -> None:
        self.parts = {part: samples.read(work.data, part) for part in ("train", "test")}

    def get_dataset(self, type_: str, cid: int | None) -> TensorDataset:
        part = self.parts[str(type_)]
        return TensorDataset(part.x, part.y) if cid is None else TensorDataset(*part.of(cid))

    def get_dataloader(self, type_: str, cid: int | None, batch_size: int | None, generator: Any) -> DataLoader[Any]:
        shuffled = str(type_) == "train"
        return DataLoader(self.get_dataset(type_, cid), batch_size=batch_size, shuffle=shuffled, generator=generator)

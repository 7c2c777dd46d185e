"""PFLlib's own program, ``system/main.py``, as it is, with our split in its files' place."""

from __future__ import annotations

import runpy
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.peers import common, samples, stand_ins
from benchmarks.peers.clock import Clock

PROGRAM = "system/main.py"


class Peer(common.Peer):
    """Its ``main`` runs with its own flags and network; its test of all clients tells the clock where a round ends."""

    title = "PFLlib"
    net = "pfllib"
    momentum = 0.0  # its SGD has none
    differs = (
        "its own network for CIFAR-10 is trained by both; its SGD has no momentum, so ours has none either",
        "its clients' files, which it reads and unpacks again at every use, are arrays in memory here",
        "it drops a client's last batch where that is not full; here all are",
        "it also tests on all training samples after each round, which is left out",
        "its test computes an AUC as well",
    )

    def find(self, path: Path | None) -> str:
        """The checkout's commit."""
        import_module("h5py")  # what it writes its results with

        return common.commit(common.checkout(path, PROGRAM))

    def run(self, path: Path | None, work: common.Work, clock: Clock) -> None:
        """``system/main.py`` from top to bottom, until the clock has its rounds."""
        root = common.checkout(path, PROGRAM)
        stand_ins.install("torchvision", "cvxpy", "calmsize")
        sys.path.insert(0, str(root / "system"))
        from flcore.servers.serverbase import Server
        from utils import data_utils

        parts = {train: samples.read(work.data, "train" if train else "test") for train in (True, False)}

        def own(dataset: str, client: int, is_train: bool = True) -> dict[str, Any]:
            x, y = parts[is_train].of(client)
            return {"x": x.numpy(), "y": y.numpy()}

        data_utils.read_data = own
        clock.begins_untrained()
        Server.test_metrics = clock.testing(Server.test_metrics, lambda found: sum(found[2]) / sum(found[1]))
        Server.train_metrics = lambda server: ([0], [1], [0.0])
        sys.argv = ["main.py", *_flags(work)]
        runpy.run_path(str(root / PROGRAM), run_name="__main__")


def _flags(work: common.Work) -> list[str]:
    flags = {
        "dataset": "Cifar10", "model": "CNN", "num_classes": 10, "device": "cpu", "global_rounds": 10_000,
        "algorithm": {"fedrep": "FedRep", "fedavg": "FedAvg"}[work.method], "num_clients": work.clients,
        "join_ratio": work.sampled / work.clients, "batch_size": work.batch, "local_learning_rate": work.lr,
        "local_epochs": work.body_epochs if work.method == "fedrep" else work.epochs, "plocal_epochs": work.head_epochs,
    }  # fmt: skip
    return [word for name, value in flags.items() for word in (f"--{name}", str(value))]

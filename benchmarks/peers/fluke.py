"""fluke's own algorithms, installed or from a checkout, with our split and network."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.peers import common, samples, stand_ins
from benchmarks.peers.clock import Clock

NET = "benchmarks.peers.fluke_net"


class Peer(common.Peer):
    """Its ``FedRep`` and ``FedAvg`` run as its configuration files set them up; its evaluation is timed apart."""

    title = "fluke"
    differs = (
        "its evaluation computes accuracy, precision, recall and F1, of which ours has the first",
        "it tests only participants by itself; here all clients are tested, by its own evaluator",
    )

    def find(self, path: Path | None) -> str:
        """The version that the package or the checkout names, and the checkout's commit."""
        _import(path)
        from importlib.metadata import PackageNotFoundError, version

        if path is not None:
            return common.commit(common.checkout(path, "fluke/__init__.py"))
        try:
            return version("fluke-fl")
        except PackageNotFoundError:
            raise common.Missing("there is no package fluke-fl") from None

    def run(self, path: Path | None, work: common.Work, clock: Clock) -> None:
        """Its federation, until the clock has its rounds."""
        _import(path)
        from fluke import FlukeENV
        from fluke.algorithms import CentralizedFL
        from fluke.evaluation import ClassificationEval

        environment = FlukeENV()
        environment.set_seed(0)
        environment.set_device("cpu")
        environment.set_evaluator(ClassificationEval(1, 10))
        environment.set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
        CentralizedFL._compute_evaluation = clock.testing(_test(work), lambda accuracy: accuracy)
        federation = _federation(work)
        federation.run(10_000, work.sampled / work.clients)


def _import(path: Path | None) -> None:
    stand_ins.install("torchvision", "wandb", "clearml", "seaborn", "tensorboard", "opacus")
    if path is not None:
        sys.path.insert(0, str(path))
    import_module("fluke.algorithms.fedrep")


def _federation(work: common.Work) -> Any:
    from fluke import DDict
    from fluke.algorithms.fedavg import FedAVG
    from fluke.algorithms.fedrep import FedRep

    fedrep = work.method == "fedrep"
    client = DDict(
        batch_size=work.batch,
        local_epochs=work.head_epochs if fedrep else work.epochs,
        loss="CrossEntropyLoss",
        optimizer=DDict(lr=work.lr, momentum=work.momentum),
        scheduler=DDict(gamma=1, step_size=1),
        **({"model": f"{NET}.Net", "tau": work.body_epochs} if fedrep else {}),
    )
    settings = DDict(client=client, server=DDict(weighted=False), model=f"{NET}.{'Body' if fedrep else 'Whole'}")
    return (FedRep if fedrep else FedAVG)(work.clients, _Split(work), settings)


class _Split:
    """In its splitter's place: a loader for each client, and the server's test samples."""

    num_classes = 10

    def __init__(self, work: common.Work) -> None:
        self.work = work

    def assign(self, n_clients: int, batch_size: int) -> Any:
        from fluke.data import FastDataLoader

        train, test = (samples.read(self.work.data, part) for part in ("train", "test"))
        loaders = [
            [FastDataLoader(*part.of(c), num_labels=10, batch_size=size, shuffle=shuffle) for c in range(n_clients)]
            for part, size, shuffle in ((train, batch_size, True), (test, 128, False))
        ]
        return loaders, FastDataLoader(test.x, test.y, num_labels=10, batch_size=128)


def _test(work: common.Work) -> Any:
    def tests(federation: Any, round: int, eligible: Any) -> float:
        from fluke import FlukeENV

        evaluator, server = FlukeENV().get_evaluator(), federation.server
        if work.method == "fedavg":
            return float(server.evaluate(evaluator, server.test_set, round + 1)["accuracy"])
        found = []
        for client in federation.clients:
            client._load_from_cache()
            found.append(client.evaluate(evaluator, client.test_set)["accuracy"])
            client._save_to_cache()
        return float(sum(found) / len(found))

    return tests

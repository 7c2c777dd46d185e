"""The FedRep authors' own program, ``main_fedrep.py``, as it is, with our split in its data's place."""

from __future__ import annotations

import runpy
import sys
from importlib import import_module
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.peers import common, samples, stand_ins
from benchmarks.peers.clock import Clock


class Peer(common.Peer):
    """Its ``main`` runs with its own flags; its function that tests all clients tells the clock where a round ends."""

    title = "FedRep authors' code"
    differs = (
        "it crops and flips its images, which is left out: they lie ready in memory, which spares it the work",
        "its SGD has weight decay on top, which stays",
        "it applies the ReLU before pooling; ours pools first, which gives the same numbers",
        "one of its files mixes tabs and spaces, which Python 3 refuses: it is read with its tabs expanded",
    )

    def find(self, path: Path | None) -> str:
        """The checkout's commit."""
        return common.commit(common.checkout(path, "main_fedrep.py"))

    def run(self, path: Path | None, work: common.Work, clock: Clock) -> None:
        """``main_fedrep.py`` from top to bottom, until the clock has its rounds."""
        root = common.checkout(path, "main_fedrep.py")
        stand_ins.install("torchvision")
        sys.path.insert(0, str(root))
        testing = _with_expanded_tabs("models.test", root / "models" / "test.py")
        evaluate = testing.test_img_local_all

        def tests(*args: Any, **options: Any) -> Any:
            # FedAvg is tested twice: with the clients' last models, and with the shared one, which is what ours tests.
            if work.method == "fedavg" and options.get("w_locals") is not None:
                return 0.0, 0.0
            return timed(*args, **options)

        timed = clock.testing(evaluate, lambda result: result[0] / 100)
        vars(testing)["test_img_local_all"] = tests
        vars(import_module("utils.train_utils"))["get_data"] = lambda args: _split(work)
        sys.argv = ["main_fedrep.py", *_flags(work)]
        runpy.run_path(str(root / "main_fedrep.py"), run_name="__main__")


def _flags(work: common.Work) -> list[str]:
    both = work.head_epochs + work.body_epochs
    flags = {
        "dataset": "cifar10", "model": "cnn", "num_classes": 10, "epochs": 10_000, "alg": work.method, "lr": work.lr,
        "num_users": work.clients, "gpu": -1, "shard_per_user": 2, "test_freq": 1, "frac": work.sampled / work.clients,
        "local_ep": both if work.method == "fedrep" else work.epochs, "local_rep_ep": work.body_epochs,
        "local_bs": work.batch,
    }  # fmt: skip
    return [word for name, value in flags.items() for word in (f"--{name}", str(value))]


class _Pictures:
    """What its loaders index: a picture and its label."""

    def __init__(self, part: samples.Part) -> None:
        self.x, self.labels = part.x, part.y.tolist()

    def __getitem__(self, row: int) -> tuple[Any, int]:
        return self.x[row], self.labels[row]

    def __len__(self) -> int:
        return len(self.labels)


def _split(work: common.Work) -> tuple[Any, ...]:
    """Both data sets, and the rows of each client in them, as its own function gives them."""
    parts = [samples.read(work.data, part) for part in ("train", "test")]
    rows = [{client: part.index(client) for client in range(work.clients)} for part in parts]
    return (*(_Pictures(part) for part in parts), *rows)


def _with_expanded_tabs(name: str, file: Path) -> ModuleType:
    """A module read from a file in which tabs and spaces are mixed."""

    class Expanded(SourceFileLoader):
        def get_data(self, path: str) -> bytes:
            return super().get_data(path).expandtabs(8)

        def path_stats(self, path: str) -> dict[str, Any]:
            raise OSError  # so that no compiled file is read or left behind

    spec = spec_from_loader(name, Expanded(name, str(file)))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module

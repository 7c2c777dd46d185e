"""FL-bench's own program, ``main.py``, as it is, with our split and network in its data's and model's place."""

from __future__ import annotations

import json
import pickle
import runpy
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.peers import common, samples, stand_ins
from benchmarks.peers.clock import Clock
from benchmarks.peers.nets import cut


class Peer(common.Peer):
    """Its ``main`` runs with its own settings; its test of all clients tells the clock where a round ends."""

    title = "FL-bench"
    differs = (
        "it computes gradients of the whole network in every epoch and sets to zero what shall not move",
        "its tests of the participants before and after their training are switched off",
        "its images are normalised when they are read one by one; here they lie ready in memory",
    )

    def find(self, path: Path | None) -> str:
        """The checkout's commit."""
        import_module("hydra")
        import_module("ray")

        return common.commit(common.checkout(path, "src/server/fedrep.py"))

    def run(self, path: Path | None, work: common.Work, clock: Clock) -> None:
        """``main.py`` from top to bottom, until the clock has its rounds."""
        root = common.checkout(path, "src/server/fedrep.py")
        stand_ins.install("torchvision", "pynvml")
        sys.path.insert(0, str(root))
        from src.server import fedavg

        parts = [samples.read(work.data, part) for part in ("train", "test")]
        folder = Path("data", "cifar10")
        folder.mkdir(parents=True)
        (folder / "args.json").write_text(json.dumps({"split": "sample"}))
        (folder / "partition.pkl").write_bytes(pickle.dumps(_partition(parts, work.clients)))
        fedavg.FLBENCH_ROOT = Path.cwd()  # nothing is written into the checkout
        fedavg.DATASETS["cifar10"] = _data(parts)
        fedavg.MODELS["ours"] = _model(work.net)
        server = fedavg.FedAvgServer
        server.test_client_models = clock.testing(_test(server.test_client_models), lambda found: found)
        sys.argv = ["main.py", *_settings(work)]
        runpy.run_path(str(root / "main.py"), run_name="__main__")


def _partition(parts: list[samples.Part], clients: int) -> dict[str, Any]:
    """Whose rows are which, in both parts laid one after the other, as its own files say it."""
    train, test = parts
    everyone = list(range(clients))
    indices = [
        {"train": train.index(c), "val": train.index(c)[:0], "test": test.index(c) + len(train.y)} for c in everyone
    ]
    separation = {"train": everyone, "test": everyone, "val": everyone, "total": clients}
    return {"separation": separation, "data_indices": indices}


def _data(parts: list[samples.Part]) -> Any:
    import torch
    from data.utils.datasets import BaseDataset

    class Ready(BaseDataset):
        def __init__(self, root: Path, args: Any, **transforms: Any) -> None:
            self._rescale_data = lambda: None
            x, y = (torch.cat([getattr(part, name) for part in parts]) for name in "xy")
            super().__init__(x, y, list(range(10)), **transforms)

    return Ready


def _model(net: str) -> Any:
    from src.utils.models import DecoupledModel

    class Given(DecoupledModel):
        def __init__(self, dataset: str, pretrained: bool) -> None:
            super().__init__()
            self.base, self.classifier = cut(net)

    return Given


def _test(own: Any) -> Any:
    def accuracy(server: Any) -> float:
        own(server)
        found = server.test_results[server.current_epoch + 1]["all_clients"]["before"]["test"]
        return float(found.accuracy) / 100

    return accuracy


def _settings(work: common.Work) -> list[str]:
    fedrep = work.method == "fedrep"
    settings = {
        "method": work.method, "dataset.name": "cifar10", "model.name": "ours", "optimizer.lr": work.lr,
        "optimizer.momentum": work.momentum, "common.global_epoch": 1000, "common.batch_size": work.batch,
        "common.join_ratio": work.sampled / work.clients, "common.test.client.interval": 1,
        "common.local_epoch": work.head_epochs + work.body_epochs if fedrep else work.epochs,
        "common.client_side_evaluation": "false", "common.save_log": "false", "common.use_cuda": "false",
    }  # fmt: skip
    return [f"{name}={value}" for name, value in settings.items()] + (
        [f"+fedrep.train_body_epoch={work.body_epochs}"] if fedrep else []
    )

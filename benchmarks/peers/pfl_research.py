"""pfl-research's simulated backend and its federated averaging, installed or from a checkout."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.peers import common, samples
from benchmarks.peers.clock import Clock
from benchmarks.peers.nets import whole


class Peer(common.Peer):
    """Its ``FederatedAveraging``; a callback of it tells the clock where a round ends."""

    title = "pfl-research"
    methods = ("fedavg",)
    differs = (
        "it has no FedRep",
        "it samples who takes part in its own way, and its clients' SGD has the same momentum",
        "it tests on all test samples at once, with its own central evaluation",
    )

    def find(self, path: Path | None) -> str:
        """The package's version, or the checkout's commit."""
        if path is not None:
            sys.path.insert(0, str(common.checkout(path, "pfl/__init__.py")))
        import_module("pfl.model.pytorch")

        if path is not None:
            return common.commit(path)
        try:
            return version("pfl")
        except PackageNotFoundError:
            raise common.Missing("there is no package pfl") from None

    def run(self, path: Path | None, work: common.Work, clock: Clock) -> None:
        """Its algorithm, until the clock has its rounds."""
        if path is not None:
            sys.path.insert(0, str(path))
        from pfl.aggregate.simulate import SimulatedBackend
        from pfl.aggregate.weighting import WeightByUser
        from pfl.algorithm.base import NNAlgorithmParams
        from pfl.algorithm.federated_averaging import FederatedAveraging
        from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
        from pfl.model.pytorch import PyTorchModel

        net = _Judged(whole(work.net))
        model = PyTorchModel(
            model=net,
            local_optimizer_create=lambda parameters, lr: torch.optim.SGD(parameters, lr, momentum=work.momentum),
            central_optimizer=torch.optim.SGD(net.parameters(), 1.0),
        )
        evaluation = NNEvalHyperParams(local_batch_size=256)
        FederatedAveraging().run(
            NNAlgorithmParams(
                central_num_iterations=10_000,
                evaluation_frequency=10_000,
                train_cohort_size=work.sampled,
                val_cohort_size=0,
            ),
            backend=SimulatedBackend(_federated(work), None, postprocessors=[WeightByUser()]),
            model=model,
            model_train_params=NNTrainHyperParams(
                local_learning_rate=work.lr, local_num_epochs=work.epochs, local_batch_size=work.batch
            ),
            model_eval_params=evaluation,
            callbacks=[_ends_rounds(work, clock, evaluation)],
        )


class _Judged(nn.Module):
    """A network with its loss and accuracy, as its models have them."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x)
        return out

    def loss(self, x: Tensor, y: Tensor, is_eval: bool = False) -> Tensor:
        self.eval() if is_eval else self.train()
        return nn.functional.cross_entropy(self(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor, is_eval: bool = True) -> dict[str, Any]:
        from pfl.metrics import Weighted

        self.eval() if is_eval else self.train()
        return {"accuracy": Weighted(int((self(x).argmax(1) == y).sum()), len(y))}


def _federated(work: common.Work) -> Any:
    """The training samples of all clients, as its artificial federation of users."""
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler

    train = samples.read(work.data, "train")
    sampler = get_user_sampler("random", list(range(work.clients)))
    return FederatedDataset(lambda user: Dataset(train.of(user), user_id=str(user)), sampler)


def _ends_rounds(work: common.Work, clock: Clock, evaluation: Any) -> Any:
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset

    test = samples.read(work.data, "test")

    class Ends(TrainingProcessCallback):
        def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
            from pfl.metrics import Metrics

            clock.trained()
            found = model.evaluate(Dataset((test.x, test.y)), lambda name: name, evaluation)
            clock.tested(float(found["accuracy"].overall_value))
            return False, Metrics()

    return Ends()

"""How many kernels a step of stacked clients starts: on a GPU, starting them takes the time of small batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from commonground import FederatedDataset
from commonground.config import RunConfig
from commonground.engine.backends.batched import BatchedEngine
from commonground.engine.prepare import prepare_setup
from commonground.models import MLP, ConvNet
from tests.helpers import images, made_data, normed, seeded

VIEWS = {
    "_unsafe_view", "alias", "as_strided", "detach", "expand", "permute", "reshape", "select", "slice", "split",
    "squeeze", "t", "transpose", "unbind", "unsqueeze", "view",
}  # fmt: skip


class Kernels(TorchDispatchMode):
    """Counts what is computed; several tensors at once count as one, as they do on a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = function.overloadpacket.__name__
        self.count[name] += name not in VIEWS
        return function(*args, **(kwargs or {}))


def kernels_of_a_round(
    method: str, data: FederatedDataset, model: Callable[[], nn.Module], **settings: Any
) -> Counter[str]:
    config = RunConfig.make({"algorithm": method, "model": "m", "data": "d", "batch_size": 4, **settings})
    setup = prepare_setup(config, data, model())
    engine = BatchedEngine(setup)
    with Kernels() as kernels:
        engine.train(1, range(data.clients), dict(setup.initial_shared))
    return kernels.count


MODELS: dict[str, tuple[Callable[[], FederatedDataset], Callable[[], nn.Module], int]] = {
    "chain": (lambda: made_data((8, 8, 8)), lambda: seeded(MLP, (4,), 3, hidden=[6]), 34),
    "convolutions": (
        lambda: images((8, 8, 8)),
        lambda: seeded(ConvNet, (2, 16, 16), 3, channels=(3, 4), hidden=(6, 5)),
        66,
    ),
    "normalised": (lambda: made_data((8, 8, 8)), lambda: seeded(normed), 89),
}


@pytest.mark.parametrize("kind", MODELS)
def test_a_step_of_a_cohort(kind: str) -> None:
    """The difference of two lengths of training, over its steps; 44, 94 and 105 before weights were moved together."""
    data, model, most = MODELS[kind]
    short, long = (kernels_of_a_round("fedavg", data(), model, local_epochs=epochs) for epochs in (2, 4))
    assert (long.total() - short.total()) / 4 <= most  # two epochs of two batches


def test_a_step_of_linear_heads() -> None:
    """Product, bias, softmax, residual, its share, two gradients, and three to move weights and momentum."""
    data, model = made_data((8, 8, 8)), lambda: seeded(MLP, (4,), 3, hidden=[6])
    rounds = [
        kernels_of_a_round("fedrep", data, model, options={"head_epochs": epochs, "body_epochs": 1})
        for epochs in (3, 13)
    ]
    steps = 10 * 2
    assert (rounds[1].total() - rounds[0].total()) / steps <= 11  # and the features of an epoch, gathered at once


def test_more_tensors_are_not_more_kernels_to_move_them() -> None:
    torch.manual_seed(0)
    found = []
    for layers in ([6], [6, 6, 6]):
        model = seeded(MLP, (4,), 3, hidden=layers)
        count = kernels_of_a_round("fedavg", made_data((8, 8)), lambda model=model: model)  # type: ignore[misc]
        found.append({name: n for name, n in count.items() if name.startswith("_foreach")})
    assert found[0] == found[1] != {}

"""A round's steps never wait for the device that computes them, and nothing is made on another device than the run's.

No accelerator is needed for either. On PyTorch's ``meta`` device tensors have shapes and no values: reading one back
(``.item()``, ``.tolist()``, ``.cpu()``, ``bool()``) raises, and so does mixing it with a tensor of the host. A function
mode refuses to make a tensor without saying where.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import commonground
from commonground import FederatedDataset, train
from commonground.algorithms import Server, registry
from commonground.config import RunConfig
from commonground.engine.backends.batched import BatchedEngine
from commonground.engine.prepare import prepare_setup
from commonground.engine.server_optimizer import step_server
from commonground.engine.server_round import conclude
from commonground.engine.setup import Setup
from commonground.models import MLP, ConvNet
from tests.helpers import TwoLayer, fitting, images, made_data, normed, seeded, suited
from tests.language import tiny_model, token_data

ALGORITHMS = sorted(registry)
META = torch.device("meta")


@pytest.fixture
def on_meta(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("build", "setup"):
        monkeypatch.setattr(f"commonground.engine.{module}.resolve_device", lambda text: META)


def setup_of(method: str, data: FederatedDataset, model: nn.Module, **settings: Any) -> Setup:
    config = RunConfig.make(
        {"algorithm": method, "model": "made", "rounds": 3, **fitting(method, {"batch_size": 4, **settings})}
    )
    return prepare_setup(config, data, model)


def whole_round(setup: Setup, round: int = 1) -> Sequence[Tensor]:
    """Everything of a round between receiving and the finite check: clients, server, optimizer, replies."""
    engine, algorithm = BatchedEngine(setup), setup.algorithm
    clients = range(setup.data.clients)
    server = Server(dict(setup.initial_shared), {}, round=round, clients=len(clients), lr=0.1)
    extra = {client: algorithm.message_to(server, client) for client in clients}
    extra = {client: tensors for client, tensors in extra.items() if tensors}
    results = engine.train(round, clients, server.shared, extra)
    updates = [result.update for result in results]
    if any(update.tensors for update in updates):
        algorithm.round_figures(server, updates)
        algorithm.server_update(server, updates, round)
        step_server(setup.config, setup.groups.trainable("all"), server, before=setup.initial_shared)
        algorithm.replies(server, updates)
    return [value for r in results for value in (*r.update.tensors.values(), *(r.personal or {}).values())]


MODELS = {
    "chain": lambda: (made_data((5, 3, 8, 2)), seeded(MLP, (4,), 3, hidden=[6])),
    "captured": lambda: (made_data((5, 3, 8, 2)), seeded(TwoLayer)),
    "convolutions": lambda: (
        images((7, 12, 4)),
        seeded(ConvNet, (2, 16, 16), 3, channels=(3, 4), hidden=(6, 5), dropout=0.3),
    ),
    "normalised": lambda: (made_data((6, 4, 8, 2)), seeded(normed)),
}


@pytest.mark.usefixtures("on_meta")
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("method", ALGORITHMS)
def test_a_round_reads_nothing_back(method: str, kind: str) -> None:
    data, model = MODELS[kind]()
    model = suited(method, model, (2, 16, 16) if kind == "convolutions" else (4,))
    setup = setup_of(method, data, model, dtype="float32", server_optimizer="none")
    assert setup.device == META
    tensors = whole_round(setup)
    floats = [value for value in tensors if value.is_floating_point()]
    assert all(value.device == META for value in floats)


@pytest.mark.usefixtures("on_meta")
@pytest.mark.parametrize("method", ["fedavg", "fedrep", "scaffold"])
def test_nor_with_changed_images_noise_and_a_server_optimizer(method: str) -> None:
    data, model = MODELS["convolutions"]()
    setup = setup_of(method, data, model, augment="flip-crop", server_optimizer="adam", feature_noise=0.1)
    assert whole_round(setup)


@pytest.mark.usefixtures("on_meta")
@pytest.mark.parametrize(
    ("method", "kind"),
    [
        (method, kind)
        for method in ("lora", "ffa-lora", "rolora", "flexlora", "flora", "fedrep", "fedsgd", "ditto", "scaffold")
        for kind in ("bert", "roberta", "llama", "llama-lm")
        if (method, kind) != ("fedrep", "llama-lm")  # a language model has no head of its own
    ],
)
def test_nor_with_factors_in_a_pretrained_model(method: str, kind: str, tmp_path: Path) -> None:
    """Rows are planned on the host: how long they are, how their tokens are laid, whose factors each one meets."""
    pytest.importorskip("transformers")
    data, dropout = token_data(language=kind == "llama-lm"), 0.1 if kind == "bert" else 0.0
    model = tiny_model(kind, tmp_path, layers=2)
    settings = {"model": model, "model_options": {"dropout": dropout}, "batch_size": 3, "optimizer": "sgd", "lr": 0.1}
    config = {"algorithm": method, "rounds": 3, **fitting(method, settings)}
    setup = prepare_setup(RunConfig.make(config), data)
    tensors = whole_round(setup)
    assert tensors
    assert all(value.device == META for value in tensors if value.is_floating_point())


@pytest.mark.usefixtures("on_meta")
def test_nor_have_they_more_places_than_there_is_room_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    from commonground.models import adapted

    monkeypatch.setattr(adapted, "DEVICE_PASS_TOKENS", 60)
    monkeypatch.setattr(adapted, "WIDEST", 1)
    places, usual = list[int](), adapted.AdaptedModel._pass

    def watched(self: Any, tokens: Tensor, lengths: Tensor, numbers: Tensor | None) -> Tensor:
        places.append(len(tokens) * int(lengths.max()))
        return usual(self, tokens, lengths, numbers)

    config = {"algorithm": "lora", "model": tiny_model("bert", tmp_path, layers=2), "rounds": 3, "batch_size": 9}
    setup = prepare_setup(RunConfig.make({**config, "optimizer": "sgd", "lr": 0.1, "local_steps": 2}), token_data())
    monkeypatch.setattr(adapted.AdaptedModel, "_pass", watched)
    whole_round(setup)
    assert len(places) > 6
    assert max(places) <= 60


@pytest.mark.usefixtures("on_meta")
def test_passes_there_are_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One for a step of all clients, where the host would take many: its launches are what takes the time."""
    pytest.importorskip("transformers")
    from commonground.models.adapted import AdaptedModel

    monkeypatch.setattr("commonground.models.adapted.PASS_TOKENS", 1)
    rows, usual = list[int](), AdaptedModel._pass

    def watched(self: AdaptedModel, tokens: Tensor, lengths: Tensor, numbers: Tensor | None) -> Tensor:
        rows.append(len(tokens))
        return usual(self, tokens, lengths, numbers)

    config = {"algorithm": "lora", "model": tiny_model("bert", tmp_path, layers=2), "rounds": 3, "batch_size": 3}
    setup = prepare_setup(RunConfig.make({**config, "optimizer": "sgd", "lr": 0.1, "local_steps": 2}), token_data())
    monkeypatch.setattr(AdaptedModel, "_pass", watched)
    whole_round(setup)
    assert rows[-2:] == [12, 11]  # after two trials: three of each of four clients; one of them has five in all
    assert next(iter(setup.inputs.rows("train", np.array([0]))[0].values())).device.type == "cpu"


@pytest.mark.usefixtures("on_meta")
def test_the_device_would_notice() -> None:
    data, model = MODELS["chain"]()

    class Reading(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = model
            self.head = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            if self.training and bool((x.sum() > 0).all()):  # a forward that waits
                return self.head(self.net(x))
            return self.head(self.net(x))

    with pytest.raises(Exception, match="data-dependent"):
        whole_round(setup_of("fedavg", data, Reading()))


# -- the check of a round -------------------------------------------------------------------------------------------

READING = {
    getattr(Tensor, name)
    for name in ("__array__", "__bool__", "__float__", "__int__", "cpu", "equal", "item", "nonzero", "numpy", "tolist")
} | {torch.equal, torch.nonzero}  # fmt: skip


class Counting(TorchFunctionMode):
    """Counts what would wait for a device."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in READING:
            self.read.append(func.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("optimizer", ["none", "adam"])
@pytest.mark.parametrize("method", ["fedavg", "fedrep", "scaffold", "flute", "flora"])
def test_updates_average_and_memory_are_checked_in_one_transfer(method: str, optimizer: str) -> None:
    """Whatever the number of clients and tensors: the losses come with it."""
    data, model = MODELS["chain"]()
    setup = setup_of(method, data, model, server_optimizer="none" if method == "flora" else optimizer)
    engine, before = BatchedEngine(setup), setup.initial_shared
    server = Server(dict(before), {}, round=1, clients=4, lr=0.1)
    results = engine.train(1, range(4), before)
    assert all(isinstance(result.loss, Tensor) for result in results)
    with Counting() as counting:
        made = conclude(setup, server, results, 1, before)
    assert counting.read == ["tolist"]
    assert all(isinstance(result.loss, float) for result in made.results)


# -- where tensors are made -----------------------------------------------------------------------------------------

FACTORIES = {
    getattr(torch, name)
    for name in ("arange", "as_tensor", "empty", "eye", "full", "linspace", "ones", "rand", "randn", "randint",
                 "randperm", "tensor", "zeros")
}  # fmt: skip
ENGINE = str(Path(commonground.__file__).parent / "engine")


class Explicit(TorchFunctionMode):
    """Refuses to make a tensor in a file of the engine without saying on which device."""

    def __init__(self) -> None:
        super().__init__()
        self.made = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in FACTORIES:
            import inspect

            frame = inspect.currentframe()
            caller = frame.f_back if frame is not None else None
            if caller is not None and caller.f_code.co_filename.startswith(ENGINE):
                self.made += 1
                where = f"{caller.f_code.co_filename.removeprefix(ENGINE)}:{caller.f_lineno}"
                assert "device" in kwargs, f"{where} makes a tensor by {func.__name__} without saying where"
        return func(*args, **kwargs)


@pytest.fixture
def explicit() -> Iterator[Explicit]:
    with Explicit() as mode:
        yield mode


@pytest.mark.parametrize("engine", ["serial", "batched"])
@pytest.mark.parametrize("method", ALGORITHMS)
def test_the_engine_says_where_tensors_are_made(method: str, engine: str, explicit: Explicit) -> None:
    model = suited(method, seeded(TwoLayer))
    train(
        method, made_data(), model=model, engine=engine, rounds=2, metrics="full", **fitting(method, {"batch_size": 4})
    )
    assert explicit.made


@pytest.mark.parametrize("engine", ["serial", "batched"])
def test_so_with_images(engine: str, explicit: Explicit) -> None:
    data, model = MODELS["convolutions"]()
    train("fedrep", data, model=model, engine=engine, rounds=2, augment="flip-crop", feature_noise=0.1)
    assert explicit.made

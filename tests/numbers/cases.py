"""Runs whose numbers must stay what they are, bit for bit: every method in every engine, and every kind of model.

``python -m tests.numbers.cases`` writes ``numbers.json`` beside this file. It is written once, before a change of the
code's structure, and anew only where a change of numbers is meant (say which and why in the commit).
``python -m tests.numbers.cases new`` adds the cases that are not in it yet, such as those of a new method, and leaves
the others as they are.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch

from commonground import FederatedDataset, Run, train
from commonground.algorithms import registry
from commonground.models import ConvNet, ResNet18
from tests.helpers import FREE, Dropping, TwoLayer, digits, fitting, images, made_data, mlp_options, seeded
from tests.language import tiny_model, token_data

FILE = Path(__file__).parent / "numbers.json"
LORA = ("lora", "ffa-lora", "rolora", "flexlora", "flora")


def machine() -> str:
    """What floating-point results depend on besides the code: a digest of some of PyTorch's own on this machine."""
    g = torch.Generator().manual_seed(0)
    a, b = torch.randn(37, 53, generator=g), torch.randn(53, 41, generator=g)
    image, kernel = torch.randn(3, 2, 16, 16, generator=g), torch.randn(4, 2, 5, 5, generator=g)
    parts = [a @ b, torch.softmax(a, 1), torch.nn.functional.conv2d(image, kernel), torch.tanh(a).sum(0)]
    sha = hashlib.sha256(f"{torch.__version__} {platform.machine()}".encode())
    for part in parts:
        sha.update(part.numpy().tobytes())
    return sha.hexdigest()[:16]


@cache
def _bert() -> str:
    return tiny_model("bert", Path(tempfile.mkdtemp()) / "bert")


def _train(method: str, data: FederatedDataset, **settings: Any) -> Run:
    return train(method, data, **fitting(method, settings))


@cache
def _llama() -> str:
    return tiny_model("llama-lm", Path(tempfile.mkdtemp()) / "llama", layers=2)


def _digits(method: str, engine: str, **more: Any) -> Run:
    settings: dict[str, Any] = {
        "model": "mlp", "model_options": mlp_options(method, [8]), "participation": 0.8, "batch_size": 16,
        "weight_decay": 1e-3,
    }  # fmt: skip
    return _train(method, digits(), engine=engine, workers=2, rounds=3, seed=1, **settings | more)


def _cnn(method: str, engine: str, **more: Any) -> Run:
    net = seeded(ConvNet, (2, 16, 16), 3, channels=(3, 4), hidden=(6, 5), dropout=0.3, dropout_after=1)
    return _train(method, images(), model=net, engine=engine, workers=2, rounds=2, batch_size=4, lr=0.05, **more)


def _resnet(method: str, engine: str, **more: Any) -> Run:
    net = seeded(ResNet18, (2, 16, 16), 3, stem="cifar", width=4, blocks=[1, 1, 1])
    return _train(method, images((6, 12, 4)), model=net, engine=engine, workers=2, rounds=2, batch_size=4, **more)


def _text(method: str, engine: str, **more: Any) -> Run:
    options = {"rank": 2, "layers": "1-2"} | more.pop("model_options", {})
    return _train(
        method, token_data(), model=_bert(), model_options=options, engine=engine, workers=2, rounds=3, batch_size=3,
        metrics="full", optimizer="sgd", lr=0.03, **more,
    )  # fmt: skip


def _answers(method: str, engine: str, **more: Any) -> Run:
    data = token_data(language=True)
    return _train(
        method, data, model=_llama(), model_options={"rank": 2}, engine=engine, workers=2, rounds=3, batch_size=3,
        optimizer="sgd", lr=0.2, **more,
    )  # fmt: skip


def _small(net: Any, method: str, engine: str, **more: Any) -> Run:
    return _train(method, made_data(), model=seeded(net), engine=engine, workers=2, rounds=3, batch_size=4, **more)


def cases() -> dict[str, Callable[[], Run]]:
    """Runs by name: ``kind method engine …``."""
    found: dict[str, Callable[[], Run]] = {}

    def add(name: str, make: Callable[..., Run], method: str, engine: str, **more: Any) -> None:
        found[f"{name} {method} {engine}"] = lambda: make(method, engine, **more)

    for method in sorted(registry):
        for engine in ("serial", "processes", "batched", "messages"):
            add("digits", _digits, method, engine)
    add("digits", _digits, "fedrep", "ray")  # a sample: each starts a Ray of its own
    for engine in ("serial", "batched"):
        for method in ("fedrep", "fedavg", "flute", "perfedavg", "scaffold", "fedrod", "apfl"):
            add("cnn", _cnn, method, engine, augment="flip-crop" if method == "fedavg" else "none")
            add("two-layer", lambda m, e, **k: _small(TwoLayer, m, e, **k), method, engine, metrics="full")
            add("dropping", lambda m, e, **k: _small(Dropping, m, e, **k), method, engine, dtype="float64")
        for method in LORA:
            add("text", _text, method, engine)
            add("answers", _answers, method, engine)
        add("text-dropout", _text, "lora", engine, model_options={"dropout": 0.2})
        add("tuned", _digits, "fedavg", engine, finetune_epochs=3)
        add("server-adam", _digits, "fedrep", engine, server_optimizer="adam", server_lr=0.1)
        add("server-momentum", _digits, "fedavg", engine, server_optimizer="momentum", weighting="samples")
        add("noise", _digits, "fedrep", engine, feature_noise=0.1)
        add("schedule", _digits, "fedrep", engine, lr_schedule="cosine", momentum=0.9, metrics="full")
    for method in ("fedrep", "fedavg", "ditto"):
        add("resnet", _resnet, method, "serial")
        add("resnet-local", _resnet, method, "serial", batch_norm="local")
    return found


# Columns of clients.csv that came after numbers.json; tests/engine/test_metrics_of_runs.py and tests/tasks hold them.
FINER = {"balanced_accuracy", "f1", "auc", "log_loss", "calibration_error", "perplexity", "token_accuracy"}


def numbers(run: Run) -> dict[str, Any]:
    """What must stay: the digest of all weights and of all figures; and a few figures for other machines."""
    history = [{k: v for k, v in row.items() if k not in FREE} for row in run.history]
    accuracy = {key: run.personal_accuracy[key] for key in ("mean", "std", "p10", "min", "last10")}
    clients = [{k: v for k, v in row.items() if k.removeprefix("personal_") not in FINER} for row in run.clients]
    figures = json.dumps([history, clients, accuracy, run.summary["global_accuracy"]])
    loss = next((row["train_loss"] for row in reversed(history) if row["train_loss"] is not None), None)
    return {
        "weights": run.summary["weights_sha256"],
        "figures": hashlib.sha256(figures.encode()).hexdigest(),
        "loss": loss,
        "accuracy": run.personal_accuracy["mean"],
        "bytes": [run.summary["bytes_up"], run.summary["bytes_down"]],
    }


def record(make: Callable[[], Run]) -> dict[str, Any]:
    """The numbers of a case, or the sentence by which it is refused."""
    from commonground.errors import CommonGroundError

    try:
        return numbers(make())
    except CommonGroundError as error:
        return {"refused": str(error)}


if __name__ == "__main__":
    torch.set_num_threads(1)
    written: dict[str, Any] = {"machine": machine(), "cases": {}}
    if sys.argv[1:] == ["new"]:
        written = json.loads(FILE.read_text("utf-8"))
    if written["machine"] != machine():
        sys.exit("the numbers were written on another machine, or with another PyTorch; new ones would not fit to them")
    found: dict[str, Any] = {}
    for name, make in cases().items():
        found[name] = written["cases"].get(name) or record(make)
        print(name, str(found[name].get("weights", found[name].get("refused")))[:60], file=sys.stderr)
    FILE.write_text(json.dumps({"machine": machine(), "cases": found}, indent=0) + "\n")

"""A round of local training in settings of different kind, with its share of this machine's own peak."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.data import cifar, digits, linear, packaged_bert, random_texts
from benchmarks.peak import one_thread_peak
from commonground import FederatedDataset
from commonground.engine.backends.factory import choose_engine, make_engine
from commonground.engine.loop import sample_clients
from commonground.engine.training import prepared

__all__ = ["ROUNDS", "time_rounds"]


@dataclass(frozen=True)
class Setting:
    """A round to time: what it is, its method, data, settings, and the peak that it is compared with."""

    what: str
    method: str
    data: Callable[[], FederatedDataset]
    settings: dict[str, Any] = field(default_factory=dict)
    peak: str = "matmul"


ROUNDS = {
    "linear": Setting("linear, d = 20, all of 1,000 clients", "fedavg", linear, {"model": "linear", "lr": 0.01}),
    "mlp": Setting("FedRep, MLP on digits, 20 clients", "fedrep", lambda: digits(20)),
    "flute": Setting("FLUTE, MLP on digits, 20 clients", "flute", lambda: digits(20)),
    "cnn100": Setting(
        "FedRep, CNN on CIFAR-10 (100, 2), 10 clients", "fedrep", lambda: cifar(100),
        {"model": "cnn", "participation": 0.1}, "conv",
    ),
    "cnn1000": Setting(
        "FedRep, CNN on CIFAR-10 (1000, 2), 100 clients", "fedrep", lambda: cifar(1000),
        {"model": "cnn", "participation": 0.1}, "conv",
    ),
    "resnet18": Setting(
        "Local SGD, ResNet-18, 4 steps of 10 clients", "local-sgd", lambda: cifar(100),
        {"model": "resnet18", "participation": 0.1, "options": {"steps": 4}}, "conv",
    ),
    "lora10": Setting(
        "RoLoRA, 6-layer BERT, 10 clients of 8 texts", "rolora", lambda: random_texts(10, 8),
        {"model": "bert", "batch_size": 4, "lr": 0.01},
    ),
    "lora50": Setting(
        "RoLoRA, 6-layer BERT, 50 clients of 8 texts", "rolora", lambda: random_texts(50, 8),
        {"model": "bert", "batch_size": 4, "lr": 0.01},
    ),
}  # fmt: skip


def time_rounds(name: str, rounds: int) -> dict[str, Any]:
    """Median seconds of the processor for a round in one thread, arithmetic done in it, and its share of the peak.

    Worker processes would share such a round out; here it is computed in this process, ``serial`` or ``batched``, so
    that the same thread makes the peak.
    """
    setting = ROUNDS[name]
    given = dict(setting.settings)
    if given.get("model") == "bert":
        given["model"] = packaged_bert()
    setup = prepared(setting.method, setting.data(), rounds=max(2, rounds + 1), **given)
    chosen = choose_engine(setup)
    engine = make_engine("serial" if chosen == "processes" else chosen, setup)
    torch.set_num_threads(1)
    shared, seconds, peaks = dict(setup.initial_shared), [], []
    for round in range(1, rounds + 2):
        clients = sample_clients(setup.config, setup.data.clients, round)
        if round == 1:  # compiles, loads, and is counted
            with FlopCounterMode(display=False) as counter:
                engine.train(round, clients, shared)
            continue
        peaks.append(one_thread_peak(setting.peak))
        began = time.process_time()
        engine.train(round, clients, shared)
        seconds.append(time.process_time() - began)
    engine.close()
    rate = counter.get_total_flops() / statistics.median(seconds) / 1e9
    peak = max(peaks)
    return {
        "what": setting.what,
        "engine": engine.name,
        "rounds": rounds,
        "cpu_seconds": statistics.median(seconds),
        "gflops": rate,
        "peak_of": setting.peak,
        "peak": peak,
        "share": rate / peak,
    }

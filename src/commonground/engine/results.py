"""What a finished run leaves: its summary, a row per client, the digest of all weights."""

from __future__ import annotations

import hashlib
import platform
import resource
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from commonground.algorithms import Tensors
from commonground.config import RunConfig
from commonground.data import FederatedDataset
from commonground.engine.backends.base import Engine
from commonground.engine.evaluation import Scores
from commonground.engine.setup import Setup
from commonground.engine.state.digests import digest

__all__ = ["Run", "client_rows", "rounded", "summarise", "weights_sha256"]


@dataclass(frozen=True)
class Run:
    """The result of a run.

    Attributes:
        config: every setting, automatic ones resolved.
        summary: what ``summary.json`` holds.
        history: one dict per round, as in ``rounds.jsonl``.
        clients: one dict per client, as in ``clients.csv``.
        shared: the server's final tensors, by name.
        folder: where the files are, if anywhere.
    """

    config: RunConfig
    summary: dict[str, Any]
    history: list[dict[str, Any]]
    clients: list[dict[str, Any]] = field(repr=False)
    shared: Tensors = field(repr=False)
    folder: Path | None = None

    @property
    def personal_accuracy(self) -> dict[str, float]:
        """mean, std, p10 and min over clients after the last round, and the mean over the last 10 rounds."""
        return dict(self.summary["personal_accuracy"])

    @property
    def global_accuracy(self) -> float | None:
        """Accuracy of the single shared model, averaged over clients; None where a method has none."""
        value = self.summary["global_accuracy"]
        return None if value is None else float(value)


def client_rows(
    data: FederatedDataset, took_part: Sequence[int], scores: Scores, global_scores: Scores | None
) -> list[dict[str, Any]]:
    """A row of ``clients.csv`` for every client.

    Args:
        data: the clients' samples.
        took_part: rounds of each client.
        scores, global_scores: of the model that is each client's own, and of the one shared model if there is one.
    """
    train_sizes = data.train_sizes
    classes = (data.class_counts("train") > 0).sum(1)
    accuracy = scores.accuracy
    global_accuracy = None if global_scores is None else global_scores.accuracy
    return [
        {
            "client": c,
            "name": data.client_name(c),
            "train_samples": int(train_sizes[c]),
            "test_samples": int(scores.count[c]),
            "classes": int(classes[c]),
            "rounds": int(took_part[c]),
            "personal_accuracy": float(accuracy[c]),
            "global_accuracy": "" if global_accuracy is None else float(global_accuracy[c]),
            "test_loss": float(scores.loss[c]),
        }
        for c in range(data.clients)
    ]


def weights_sha256(clients: int, engine: Engine, shared: Tensors) -> str:
    """Over the shared tensors and every client's personal ones, each side digested with names in order."""
    sha = hashlib.sha256(f"shared {digest(shared)}\n".encode())
    for client in range(clients):
        sha.update(f"client {client} {engine.digest(client)}\n".encode())
    return sha.hexdigest()


def summarise(
    setup: Setup,
    engine: str,
    history: Sequence[Mapping[str, Any]],
    totals: Mapping[str, Any],
    scores: Scores,
    global_scores: Scores | None,
    weights_sha256: str,
) -> dict[str, Any]:
    """What ``summary.json`` holds.

    Args:
        setup: of the run.
        engine: that computed it.
        history: its rounds.
        totals: bytes, seconds and fingerprints.
        scores, global_scores: as of :func:`client_rows`.
        weights_sha256: of :func:`weights_sha256`.
    """
    config, accuracy = setup.config, scores.accuracy
    tuned = config.finetune_epochs > 0
    return {
        "algorithm": config.algorithm,
        "data": config.data,
        "model": config.model,
        "clients": setup.data.clients,
        "rounds": config.rounds,
        "seed": config.seed,
        "engine": engine,
        "personal_accuracy": {
            "mean": float(accuracy.mean()),
            "std": float(accuracy.std()),
            "p10": float(np.quantile(accuracy, 0.1)),
            "min": float(accuracy.min()),
            "last10": float(accuracy.mean()) if tuned else _last10(history, config.rounds, "personal_accuracy"),
        },
        "personal_accuracy_of": _what_is_personal(setup, config),
        **setup.algorithm.summary_fields(),
        **({"batch_norm": config.batch_norm} if setup.groups.statistics else {}),
        "global_accuracy": None if global_scores is None else float(global_scores.accuracy.mean()),
        "global_accuracy_last10": _last10(history, config.rounds, "global_accuracy"),
        "bytes_up": totals["bytes_up"],
        "bytes_down": totals["bytes_down"],
        "seconds": rounded(totals["seconds"]),
        "peak_rss_bytes": _peak_rss(),
        "weights_sha256": weights_sha256,
        "data_fingerprint": totals["data_fingerprint"],
        "base_sha256": totals["base_sha256"],
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "platform": platform.platform(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "threads": config.threads,
        },
    }


def _last10(history: Sequence[Mapping[str, Any]], rounds: int, key: str) -> float | None:
    """Mean of a figure over the evaluated rounds among the last 10."""
    values = [r[key] for r in history if r["round"] > rounds - 10 and r[key] is not None]
    return float(np.mean(values)) if values else None


def _what_is_personal(setup: Setup, config: RunConfig) -> str:
    if config.finetune_epochs:
        return f"the final global model after {config.finetune_epochs} epochs on each client's head"
    algorithm, local = setup.algorithm, bool(setup.groups.local_statistics)
    statistics = "each client's own BatchNorm statistics (the initial ones if it never took part)"
    if algorithm.personalizes:
        model = f"the shared parameters with {statistics}," if local else "the shared model"
        return f"{model} after the local training this method does before a test"
    if not setup.has_personal_model:
        return "the global model (this method has no personal one; see --finetune-epochs)"
    if not setup.shared_names:
        return "each client's own model"
    if not algorithm.has_personal_model:
        return f"the shared parameters with {statistics}; there is no global model"
    beside = f", with {statistics}" if local else ""
    if not setup.groups.names(algorithm.personal):
        return f"each client's own model, kept beside the shared one{beside}"
    return f"the last shared tensors with each client's last personal ones, before further local training{beside}"


def rounded(seconds: float) -> float:
    """Seconds to a tenth of a millisecond."""
    return round(seconds, 4)


def _peak_rss() -> int:
    """Largest resident memory of this process or of a worker that has ended, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    usage = [resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return max(usage) * unit

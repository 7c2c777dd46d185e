"""A run's figures: its summary, a row per client, the digest of all weights."""

from __future__ import annotations

import hashlib
import math
import platform
import resource
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from commonground.algorithms import Algorithm, Tensors
from commonground.counted import counted
from commonground.data import FederatedDataset
from commonground.data.class_counts import class_totals, classes_held
from commonground.engine.backends.base import Engine
from commonground.engine.backends.pooled import pooled_steps
from commonground.engine.client_rows import ClientRows, Column, Numbers
from commonground.engine.scores import Scores, mean_of, spread_of
from commonground.engine.setup import Setup
from commonground.engine.state.digests import digest
from commonground.processor import processor

__all__ = ["GlobalTest", "client_rows", "peak_rss", "rounded", "summarise", "weights_sha256"]


def client_rows(
    data: FederatedDataset, took_part: Numbers | Sequence[int], scores: Scores, shared: Numbers | None
) -> ClientRows:
    """The rows of ``clients.csv``, one for every client.

    Args:
        data: the clients' samples.
        took_part: rounds of each client.
        scores: of the model that is each client's own.
        shared: headline metric of the one shared model, if there is one.
    """
    task = data.task
    own = {f"personal_{name}": values for name, values in scores.metrics.items()}
    columns: dict[str, Column] = {
        "client": int,
        "name": data.client_name,
        "train_samples": data.train_sizes,
        "test_samples": np.where(scores.count > 0, scores.count, data.test_sizes),  # held, tested or not
        "classes": None if data.described else classes_held(data.class_counts_in_parts()),
        "rounds": np.asarray(took_part),
        **own,
        f"global_{task.metric}": shared,
        "test_loss": scores.loss,
    }
    return ClientRows(data.clients, columns)


@dataclass(frozen=True)
class GlobalTest:
    """What is told of the test of the one shared model: of very many clients there is no room for all scores of two.

    Attributes:
        headline: [clients] the task's headline metric.
        mean: of it over the clients.
        metrics: as in ``summary.json``; its worst tenth is among the clients that answered this test.
    """

    headline: Numbers
    mean: float | None
    metrics: Mapping[str, Mapping[str, float | None]]

    @classmethod
    def of(cls, scores: Scores, least_rows: int) -> GlobalTest:
        """Of its scores; clients with fewer than ``least_rows`` rows count in no worst tenth."""
        headline = scores.headline
        return cls(headline, mean_of(headline), _metrics(scores, _ranked(scores, least_rows)))


def weights_sha256(setup: Setup, engine: Engine, shared: Tensors) -> str:
    """Over the shared tensors and every client's personal ones, each side digested with names in order; with ``--dp``
    over the shared ones alone: others are fitted without noise, and who guesses a client's data could try the guess on
    their digest.
    """
    sha = hashlib.sha256(f"shared {digest(shared)}\n".encode())
    for client in range(setup.data.clients if setup.config.dp is None else 0):
        sha.update(f"client {client} {engine.digest(client)}\n".encode())
    return sha.hexdigest()


def summarise(
    setup: Setup,
    engine: str,
    history: Sequence[Mapping[str, Any]],
    totals: Mapping[str, Any],
    scores: Scores,
    global_test: GlobalTest | None,
    weights_sha256: str,
    *,
    rounds: int,
    took_part: Numbers,
    asked: Sequence[int],
    untested: Mapping[int, str],
    untuned: Mapping[int, str],
    stopped: bool = False,
    last: int | None = None,
) -> dict[str, Any]:
    """What ``summary.json`` holds.

    Args:
        setup: of the run.
        engine: that computed it.
        history: its rounds' lines.
        totals: bytes, seconds and fingerprints.
        scores: of the model that is each client's own.
        global_test: of the one shared model, if there is one.
        weights_sha256: of :func:`weights_sha256`.
        rounds: done; a client's own model has no lines of them.
        took_part: [clients] rounds of each client.
        asked: clients of the last test.
        untested: why it did not count, for clients of whom that is known.
        untuned: clients whose model could not be fine-tuned after the last round, and why.
        stopped: whether the run was stopped before its last round, so that it can be continued.
        last: the round whose models these are, if not the history's last.
    """
    config, task, metric = setup.config, setup.data.task, setup.data.task.metric
    ranked = _ranked(scores, config.worst_min_rows)
    headline, until = spread_of(scores.headline, ranked), history[:last]
    tuned = config.finetune_epochs > 0 and not stopped
    return {
        "algorithm": config.algorithm,
        "data": config.data,
        "model": config.model,
        "clients": setup.data.clients,
        "rounds": rounds,
        **({"stopped_after": rounds} if stopped else {}),
        "seed": config.seed,
        **({"init_from": dict(setup.init_from)} if setup.init_from else {}),
        "engine": engine,
        "task": task.name,
        "metric": metric,
        f"personal_{metric}": {
            **headline,
            "last10": headline["mean"] if tuned else _last10(until, f"personal_{metric}"),
        },
        f"personal_{metric}_of": _what_is_personal(setup, tuned, len(untuned)),
        **setup.algorithm.summary_fields(),
        **({"table": _read_how(setup.data.about)} if setup.data.about else {}),
        **({"batch_norm": setup.batch_norm} if setup.groups.statistics else {}),
        f"global_{metric}": None if global_test is None else global_test.mean,
        f"global_{metric}_last10": _last10(until, f"global_{metric}"),
        "metrics": _metrics(scores, ranked),
        "global_metrics": None if global_test is None else global_test.metrics,
        "worst_tenth": {"min_rows": config.worst_min_rows, "clients": int(ranked.sum())},
        **({"final_test": {"clients": len(asked)}} if len(asked) < setup.data.clients else {}),
        **_missing(setup.data, totals, scores, asked, untested),
        **({"untuned_clients": {setup.data.client_name(c): why for c, why in untuned.items()}} if untuned else {}),
        **_untrained(setup, tuned, took_part, asked),
        **_ranking(setup),
        **_majority(setup),
        "optimizer": config.optimizer,
        "lr": config.lr,
        **_options(setup),
        "device": str(setup.device),
        "precision": config.precision,
        "threads": config.threads,
        **({"numerics_changed": totals["numerics"]} if len(totals["numerics"]) > 1 else {}),
        "bytes_up": totals["bytes_up"],
        "bytes_down": totals["bytes_down"],
        "seconds": rounded(totals["seconds"]),
        "peak_rss_bytes": peak_rss(),
        "weights_sha256": weights_sha256,
        "data_fingerprint": totals["data_fingerprint"],
        "base_sha256": totals["base_sha256"],
        **({"code": totals["code"]} if totals.get("code") else {}),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "platform": platform.platform(),
            "processor": processor(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "threads": config.threads,
        },
    }


def _options(setup: Setup) -> dict[str, Any]:
    """Options of local training beside the usual ones, where they were used."""
    names = ("head_lr", "body_lr", "warmup", "betas", "eps", "clip_norm", "no_decay_bias", "loss")
    used: dict[str, Any] = {name: value for name in names if (value := getattr(setup.config, name))}
    if setup.own_metrics:
        used["own_metrics"] = list(setup.own_metrics)
    if setup.class_weights is not None:
        used["class_weights"] = dict(zip(setup.data.class_names, setup.class_weights, strict=True))
        if setup.config.class_weights == "balanced":
            used["class_weights_from"] = (
                "the clients' numbers of training rows of each class, added up over all clients"
            )
    return used


def _read_how(about: Mapping[str, Any]) -> dict[str, Any]:
    """How the data were read, without the clients' names, of which there may be many."""
    return {name: value for name, value in about.items() if name != "few_clients"}


def _missing(
    data: FederatedDataset,
    totals: Mapping[str, Any],
    scores: Scores,
    asked: Sequence[int],
    why: Mapping[int, str],
) -> dict[str, Any]:
    """Whose rounds did not count, and whose last test did not; nothing where that did not happen."""
    refused = {data.client_name(int(c)): {"rounds": n, "why": last} for c, (n, last) in totals["refused"].items()}
    lost = np.flatnonzero(scores.count == 0)
    if len(asked) < data.clients:
        lost = np.intersect1d(lost, asked, assume_unique=True)
    found: dict[str, Any] = {"refused": refused} if refused else {}
    if len(lost):
        found["lost_clients"] = [data.client_name(int(c)) for c in lost]
        found["lost_why"] = {data.client_name(int(c)): why[int(c)] for c in lost if int(c) in why}
    return found


def _untrained(setup: Setup, tuned: bool, took_part: Numbers, asked: Sequence[int]) -> dict[str, Any]:
    """How many tested clients never took part, whose own tensors are as they were at the start; nothing if none."""
    if tuned or setup.algorithm.personalizes or not setup.has_personal_model:
        return {}
    idle = (np.asarray(took_part) == 0) & (setup.data.train_sizes > 0)  # who has nothing to train on is served
    count = int(idle[np.asarray(asked, dtype=np.int64)].sum())
    return {"untrained_clients": count} if count else {}


def _ranking(setup: Setup) -> dict[str, Any]:
    """Which metric ranks, where a user said so."""
    rank = setup.rank
    said = {"metric": rank.key, "higher_is_better": rank.higher_is_better}
    return {} if setup.config.rank_by is None else {"rank_by": said}


def _majority(setup: Setup) -> dict[str, Any]:
    """Of classes: the most frequent one of the test rows, and its share of all clients' training and test rows."""
    data = setup.data
    if not data.task.softmax or data.described:
        return {}
    test, train = (class_totals(data.class_counts_in_parts(split)) for split in ("test", "train"))
    most = int(test.argmax())
    shares = {"train_share": float(train[most] / train.sum()), "test_share": float(test[most] / test.sum())}
    return {"majority": {"class": data.class_names[most], **shares}}


def _ranked(scores: Scores, least_rows: int) -> npt.NDArray[np.bool_]:
    return scores.count >= least_rows


def _metrics(scores: Scores, ranked: npt.NDArray[np.bool_]) -> dict[str, dict[str, float | None]]:
    """Every metric's spread over clients, its value over all their samples as one set (``over_rows``), how far off that
    can be where it is not exact (``over_rows_within``), and for how many clients it is defined (``clients``).
    """
    whole, within = scores.over_rows, {} if scores.fine is None else scores.fine.within
    return {
        name: spread_of(values, ranked)
        | {"over_rows": None if math.isnan(whole[name]) else whole[name]}
        | ({"over_rows_within": within[name]} if name in within and not math.isnan(within[name]) else {})
        | {"clients": int((~np.isnan(values)).sum())}
        for name, values in scores.metrics.items()
    }


def _last10(history: Sequence[Mapping[str, Any]], key: str) -> float | None:
    """Mean of a figure over the evaluated rounds among the last 10."""
    values = [row[key] for row in history[-10:] if row[key] is not None]
    return float(np.mean(values)) if values else None


def _as_many(algorithm: Algorithm) -> str:
    given = getattr(algorithm, "steps", None)
    return "as its setting says" if given is not None else "as many as a round's clients take together"


def _what_is_personal(setup: Setup, tuned: bool, untuned: int) -> str:
    if tuned:
        what = {"head": "each client's head", "all": "all its layers by each client"}[setup.config.finetune]
        but = f"; of {counted(untuned, 'client')}, who gave no answer to that, as it was before" if untuned else ""
        return f"the final global model after {counted(setup.config.finetune_epochs, 'epoch')} on {what}{but}"
    algorithm, local = setup.algorithm, bool(setup.groups.local_statistics)
    if algorithm.pools:
        return (
            "one model trained on the rows of all clients together, which is not federated: "
            f"{pooled_steps(setup):,} steps of {setup.config.batch_size} rows in a round ({_as_many(algorithm)})"
        )
    statistics = "each client's own BatchNorm statistics (the initial ones if it never took part)"
    if algorithm.personalizes:
        model = f"the shared parameters with {statistics}," if local else "the shared model"
        return f"{model} after the local training this method does before a test"
    if not setup.has_personal_model:
        how = "" if setup.groups.names("head") else " with --finetune all"
        return f"the global model (this method has no personal one; see --finetune-epochs{how})"
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


def peak_rss() -> int:
    """Largest resident memory of this process or of a worker that has ended, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * unit
    return max(_own_peak() or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit, children)


def _own_peak() -> int:
    """As Linux tells it; what getrusage tells there begins with the peak of the process that started this one."""
    try:
        lines = Path("/proc/self/status").read_text("ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)

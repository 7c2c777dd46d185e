"""Why a method works or fails: figures taken while it trains (``--metrics full``).

``body_drift``: how far the participants' bodies are from their average; ``body_angle_mean`` and ``body_angle_max``:
how far the shared body's outputs turned in this round; ``before_local_accuracy`` and ``after_local_accuracy``: the
participants' accuracy (or their task's own metric) on their own test data with what they received and after their local
training; ``global_nc2`` and ``local_nc2``: neural collapse of the participants' heads (Liu et al. 2024, App. C.2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import numpy as np
import torch
from torch import Tensor

from commonground.algorithms import Algorithm, Tensors
from commonground.engine.backends.client_result import ClientResult
from commonground.engine.evaluation import blocks_of, evaluate_block, run_with
from commonground.engine.neural_collapse import nc2_metrics
from commonground.engine.scores import Scores, mean_of
from commonground.engine.setup import Setup
from commonground.errors import ModelError
from commonground.keys import numpy_stream

__all__ = ["body_drift", "figure_names", "principal_angles", "round_metrics"]

PROBE_SAMPLES = 512


def figure_names(metric: str) -> list[str]:
    """The figures of :func:`round_metrics`, which evaluated rounds have with ``--metrics full``.

    Args:
        metric: the task's headline metric.
    """
    local = [f"{when}_local_{metric}" for when in ("before", "after")]
    return ["body_angle_mean", "body_angle_max", *local, "global_nc2", "local_nc2"]


def body_drift(setup: Setup, results: Sequence[ClientResult], before: Tensors) -> float | None:
    """Mean over participants of ‖φᵢ − φ̄‖ / ‖φ̄‖, φ̄ the participants' plain average; None where no body was sent but a
    change or a gradient, and where the server hides single updates.

    Args:
        setup: of the run.
        results: of the participants.
        before: the shared tensors that they were sent.
    """
    if setup.hides_updates or not results:
        return None
    names = setup.groups.trainable("body")
    if type(setup.algorithm).change_of is not Algorithm.change_of:
        start = setup.algorithm.change_of(before, results[0].update.tensors, setup.buffers)
        if any(start[name] is not before.get(name) for name in names if name in start):
            return None
    sent = [[r.update.tensors[n].detach().flatten() for n in names if n in r.update.tensors] for r in results]
    if not sent or not all(sent):
        return None
    bodies = torch.stack([torch.cat(parts) for parts in sent])
    mean = bodies.mean(0)
    return float((bodies - mean).norm(dim=1).mean() / mean.norm())


def principal_angles(one: Tensor, other: Tensor) -> Tensor:
    """Principal angles, in radians and ascending, between the column spaces of two matrices [N, F], N ≥ F.

    They are arccos of the singular values of Q₁ᵀQ₂ with Q orthonormal bases; the sine of the largest is the distance
    of Definition 1 in Collins et al. 2021. Directions in which a matrix has no extent are left out; none are left of 0.
    """
    bases = []
    for matrix in (one.cpu().double(), other.cpu().double()):  # Apple's GPUs have no float64
        u, s, _ = torch.linalg.svd(matrix, full_matrices=False)
        bases.append(u[:, s > 1e-6 * s[0]])
    cosines = torch.linalg.svdvals(bases[0].T @ bases[1]).clamp(max=1.0)
    return torch.acos(cosines)


def round_metrics(
    setup: Setup,
    results: Sequence[ClientResult],
    before: Tensors,
    after: Tensors,
    tested: Scores,
) -> dict[str, float | None]:
    """All figures of one round; None for what a method or an engine cannot tell.

    Args:
        setup: data, model and algorithm.
        results: the participants' rounds.
        before, after: the shared tensors before and after the round.
        tested: the participants' test before local training.
    """
    metric = setup.data.task.metric
    results = [r for r in results if r.update.tensors] or results  # who is silent while others send has nothing to show
    clients = [r.update.client for r in results]
    figures: dict[str, float | None] = dict.fromkeys(figure_names(metric))
    figures[f"before_local_{metric}"] = mean_of(tested.headline)
    figures |= _body_angles(setup, before, after)
    personal = [r.personal for r in results if r.personal is not None]
    if len(personal) == len(results) and not setup.hides_updates:
        figures[f"after_local_{metric}"] = _after_local(setup, results, before)
        stacked = {name: torch.stack([p[name] for p in personal]) for name in personal[0]}
        heads = {
            name: torch.stack([r.update.tensors[name] for r in results])
            for name in results[0].update.tensors
            if name in setup.initial
        }
        with suppress(ModelError):  # a head that is no single linear layer has no NC2
            collapse = nc2_metrics(setup, after, {**heads, **stacked}, clients)
            figures |= {name: None if math.isnan(value) else value for name, value in collapse.items()}
    return figures


def _body_angles(setup: Setup, before: Tensors, after: Tensors) -> dict[str, float]:
    body = setup.groups.whole("body")  # with statistics that clients keep: then there is no one body
    split = setup.split(frozenset(setup.groups.trainable("head")))
    if split is None or not body or any(name not in before for name in body):
        return {}
    count = len(setup.data.y_test)
    chosen = numpy_stream(setup.config.seed, "probe").permutation(count)[:PROBE_SAMPLES]
    x = setup.inputs.arrange(setup.inputs.rows("test", np.sort(chosen))[0])
    inside = {n for n, _ in split.first.named_parameters()} | {n for n, _ in split.first.named_buffers()}
    setup.model.eval()
    features = []
    with torch.no_grad():
        for tensors in (before, after):
            values = {n: v for n, v in {**setup.moved(setup.initial), **tensors}.items() if n in inside}
            features.append(split.features(partial(run_with, split.first, values), x).flatten(1))
    if features[0].shape[1] > len(chosen):
        return {}
    angles = principal_angles(*features)
    if not len(angles):  # a body that is dead: its outputs are 0 whatever comes in
        return {}
    return {"body_angle_mean": float(angles.mean()), "body_angle_max": float(angles.max())}


def _after_local(setup: Setup, results: Sequence[ClientResult], before: Tensors) -> float | None:
    """Headline metric of the participants' models as they were after local training, before anything was averaged."""
    by_client = {r.update.client: r for r in results}
    values = []
    for block in blocks_of(list(by_client), setup.data.test_sizes):
        members = [by_client[client] for client in block]
        sent = {n: torch.stack([r.update.tensors[n] for r in members]) for n in members[0].update.tensors}
        own = {n: torch.stack([(r.personal or {})[n] for r in members]) for n in members[0].personal or {}}
        trained = {n: v for n, v in sent.items() if n in setup.initial and n not in own}
        models = {**trained, **setup.personal_models({**before, **trained}, own, trained)}
        values.append(evaluate_block(setup, block, before, models, stack=False).headline)
    return mean_of(np.concatenate(values))

"""Neural collapse of personal heads: the two NC2 metrics of the FLUTE paper (Liu et al. 2024, App. C.2)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.func import vmap

from commonground.algorithms import Tensors
from commonground.algorithms.flute import neural_collapse
from commonground.engine.setup import Setup
from commonground.errors import ModelError

__all__ = ["global_nc2", "local_nc2", "nc2_metrics"]


def global_nc2(weights: Tensor, present: Tensor) -> float:
    """Global NC2: the mean over clients of ‖HᵀH/‖HᵀH‖_F − (m−1)^(−½) uuᵀ⊙(I − 11ᵀ/m)‖_F, m the number of all classes.

    It is 0 where every head is, on its client's classes, part of one simplex of all classes (Observation B.3,
    eq. (60)), up to the scale that the norm takes out.

    Args:
        weights: [C, m, F] the clients' heads, Hᵀ.
        present: [C, m] u, 1 for a class the client has and 0 otherwise.
    """
    present = present.to(weights.dtype)
    return float(vmap(lambda w, u: neural_collapse(w, u, weights.shape[1]))(weights, present).mean())


def local_nc2(weights: Tensor, present: Tensor) -> float:
    """Averaged Local NC2: as :func:`global_nc2` with m′, the number of the client's own classes, in place of m.

    It is 0 where every head is a simplex of its client's own classes and vanishes on the others (Observation B.2,
    eq. (57)). The formula divides by √(m′−1): clients with a single class are left out, and without any other client
    the metric is NaN.

    Args:
        weights: [C, m, F] the clients' heads, Hᵀ.
        present: [C, m] u, 1 for a class the client has and 0 otherwise.
    """
    own = (present > 0).sum(1)
    several = own > 1
    if not bool(several.any()):
        return math.nan
    weights, present, own = weights[several], (present[several] > 0).to(weights.dtype), own[several].to(weights.dtype)
    return float(vmap(neural_collapse)(weights, present, own).mean())


def nc2_metrics(setup: Setup, shared: Tensors, heads: Tensors, clients: Sequence[int]) -> dict[str, float]:
    """Both metrics of some clients' heads.

    Args:
        setup: data, model and algorithm.
        shared: the shared tensors, which hold the head of a method without personal ones.
        heads: the clients' personal tensors, stacked in the order of ``clients``; others than heads are ignored.
        clients: their numbers; which classes they have is read off their training data.

    Returns:
        ``global_nc2`` and ``local_nc2``. With two heads per client (FedRoD, FedCP) they are those of the personal one.

    Raises:
        ModelError: the head is not one linear layer of as many rows as there are classes.
    """
    group = "personal_head" if "personal_head" in setup.groups else "head"
    matrices = [name for name in setup.groups.names(group) if setup.initial[name].ndim == 2]
    if len(matrices) != 1:
        raise ModelError(f"neural collapse is measured on a head of one linear layer, and this one has {len(matrices)}")
    name = matrices[0]
    if len(setup.initial[name]) != setup.data.classes:
        raise ModelError(
            f"neural collapse is measured on a head with a row for each class, and '{name}' has "
            f"{len(setup.initial[name])} rows for {setup.data.classes} classes"
        )
    weights = heads[name] if name in heads else shared[name].expand(len(clients), *shared[name].shape)
    present = torch.from_numpy(setup.data.class_counts("train")[list(clients)] > 0).to(weights.device)
    return {"global_nc2": global_nc2(weights, present), "local_nc2": local_nc2(weights, present)}

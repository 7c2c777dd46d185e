"""Server optimisers as an option of any method: the round's change of the shared tensors taken as a gradient."""

from __future__ import annotations

from collections.abc import Collection

import torch

from commonground.algorithms import Server, Tensors
from commonground.config import RunConfig

__all__ = ["step_server"]


def step_server(config: RunConfig, names: Collection[str], server: Server, *, before: Tensors) -> None:
    """Replace the shared parameters after a round by what the server optimiser makes of their change.

    With Δ the change that the method's own server update would make: FedAvgM (Hsu, Qi, Brown 2019) has
    m ← β₁m + Δ and moves by η·m; FedAdam (Reddi et al. 2021, Algorithm 2) has m ← β₁m + (1−β₁)Δ,
    v ← β₂v + (1−β₂)Δ² and moves by η·m/(√v + τ), without bias correction, from v = τ².

    Args:
        config: names the optimiser (``server_optimizer`` and its settings).
        names: parameters it applies to; buffers and extra state keep their plain average.
        server: holds the shared tensors after the method's update; changed here.
        before: the shared tensors before the round.
    """
    if config.server_optimizer == "none":
        return
    beta1, beta2, eta, tau = config.server_momentum, config.server_beta2, config.server_lr, config.server_epsilon
    for name, old in before.items():
        if name not in names:
            continue
        delta = server.shared[name] - old
        m = server.memory.get(f"m/{name}", torch.zeros_like(old))
        if config.server_optimizer == "momentum":
            m = beta1 * m + delta
            step = m
        else:
            v = server.memory.get(f"v/{name}", torch.full_like(old, tau**2))
            m = beta1 * m + (1 - beta1) * delta
            v = beta2 * v + (1 - beta2) * delta**2
            server.memory[f"v/{name}"] = v
            step = m / (v.sqrt() + tau)
        server.memory[f"m/{name}"] = m
        server.shared[name] = old + eta * step

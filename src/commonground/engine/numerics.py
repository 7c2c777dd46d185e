"""What decides the last bits of a run's numbers beside its settings and seed: threads, precision and device.

The order in which a sum is taken depends on the number of threads, on the kernels a device has, and on whether clients
are stacked. A run that goes on with other ones is as good as before, but it is not the run an unbroken one would be.
"""

from __future__ import annotations

import torch

from commonground.engine.backends.base import Engine

__all__ = ["changed_numerics", "numerics_of"]

Numerics = dict[str, int | str]


def numerics_of(engine: Engine) -> Numerics:
    """What an engine computes with, by names that a user reads."""
    device = engine.setup.device
    kind = torch.cuda.get_device_name(device) if device.type == "cuda" else torch.backends.cpu.get_cpu_capability()
    return {
        "threads": torch.get_num_threads(),
        "precision": engine.setup.config.precision,
        "device": f"{device.type} ({kind})" if device.type in ("cpu", "cuda") else device.type,
        "engine": "batched" if engine.name == "batched" else "serial",  # or one of those that equal it bit for bit
    }


def changed_numerics(before: Numerics, now: Numerics) -> str:
    """In what a run would go on differently, as ``threads 2 instead of 1``; empty if in nothing."""
    changed = [name for name, value in now.items() if before.get(name) != value]
    return ", ".join(f"{name} {now[name]} instead of {before.get(name)}" for name in changed)

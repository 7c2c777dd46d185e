"""Why training may have left the finite numbers: what to tell a user to look at first."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from commonground.engine.setup import Setup
from commonground.registration import is_ours

__all__ = ["largest_weight", "why_not_finite"]

# Beyond these a number is rather the cause than the learning rate, whatever that is.
LARGE_INPUT = 1e6
LARGE_SETTING = 1e4
SMALL_SETTING = 1e-12  # methods divide by some
# A rate below this moves a weight by nothing that could diverge, unless a gradient is immense.
HARMLESS_RATE = 1e-6


def largest_weight(dtype: torch.dtype) -> float:
    """Beyond it no second moment and no distance is finite, and one such weight takes an average to its own size."""
    return math.sqrt(max(torch.finfo(dtype).max, torch.finfo(torch.float32).max))


def why_not_finite(setup: Setup, client: int, loss: float | None = None) -> str:
    """The end of the sentence in which a client's result is refused: the likeliest cause that can be seen.

    Args:
        setup: of the run.
        client: its position in the data set.
        loss: of its training, None if it is not known.
    """
    causes, rate = list(_causes(setup, client)), f"a smaller --lr (it is {setup.config.lr})"
    harmless = (setup.config.lr or 0) < HARMLESS_RATE
    if loss is not None and math.isfinite(loss) and not is_ours(type(setup.algorithm)) and not harmless:
        causes.insert(0, f"what client_update of {setup.algorithm.title} computes")
        return f"its training loss was finite; look at {' and at '.join(causes)} before trying {rate}"
    if causes:
        return f"training diverged; look at {' and at '.join(causes)} before trying {rate}"
    if harmless:
        return (
            f"with --lr {setup.config.lr} that is hardly the rate; look at the gradients of the model and of the "
            "method's loss, one of which is not finite or immense"
        )
    return f"training diverged; try {rate}"


def _causes(setup: Setup, client: int) -> Iterator[str]:
    """What is extreme in the client's data, the method's settings and the run's own."""
    size = _largest_input(setup, client)
    if not size <= LARGE_INPUT:
        yield f"the client's samples, which reach {size:.3g} in size (scale them)"
    defaults = setup.algorithm.options()
    for name, value in vars(setup.algorithm).items():
        real = float in (type(value), type(defaults.get(name)))  # no count, of epochs or steps
        if real and not (value == 0 or SMALL_SETTING <= abs(value) <= LARGE_SETTING):
            yield f"{setup.algorithm.title}'s setting {name}={value:g}"
    config = setup.config
    if config.weight_decay * (config.lr or 0) > 1:  # |1 - ηλ| > 1 from ηλ = 2 on; with momentum earlier
        yield f"--weight-decay {config.weight_decay:g}, which with this rate makes weights grow instead of decay"
    if config.server_optimizer != "none" and config.server_lr > 1:
        yield f"--server-lr {config.server_lr:g}"


def _largest_input(setup: Setup, client: int) -> float:
    """The largest size of a number among the client's inputs, infinite where the run's number type cannot hold one."""
    if setup.data.described or setup.config.dp is not None:
        return 0.0  # nobody here knows them, or is to know
    rows, _ = setup.inputs.rows("train", setup.data.train_indices(client))
    floats = [value for value in setup.inputs.arrange(rows).values() if value.is_floating_point() and value.numel()]
    return max((float(value.abs().nan_to_num(torch.inf, torch.inf).max()) for value in floats), default=0.0)

"""By what a run's folder knows again what of its user's it was made with: code, and an adapter to start from."""

from __future__ import annotations

import hashlib
from pathlib import Path

from torch import nn

from commonground.adapters.format import WEIGHTS
from commonground.config import RunConfig
from commonground.data.partition_texts import is_own_partition
from commonground.engine.network import named_model
from commonground.models import is_pretrained
from commonground.user_code import digests_of

__all__ = ["code_of"]


def code_of(config: RunConfig, network: nn.Module) -> dict[str, str]:
    """The sha256 of each Python file that a configuration names, of the weights of an adapter that it starts from (what
    is constant in them is read again with the run), and of the layers of a module given as an object, by the module's
    class.

    Args:
        config: the run's configuration.
        network: its network, as its method extends it.
    """
    partition = config.partition if is_own_partition(config.partition) else None
    files = digests_of((config.algorithm, config.model, config.loss, config.metric, partition))
    if is_pretrained(config.model) and (adapter := config.model_options.get("adapter")):
        weights = Path(str(adapter)).expanduser() / WEIGHTS
        found = hashlib.sha256(weights.read_bytes()).hexdigest() if weights.is_file() else ""
        files |= {f"{adapter}/{WEIGHTS}": found}
    if named_model(config):
        return files
    layers = "\n".join(f"{name}: {_said(module)}" for name, module in network.named_modules())
    return files | {str(config.model): hashlib.sha256(layers.encode()).hexdigest()}


def _said(module: nn.Module) -> str:
    """A layer's kind, and of PyTorch's own what it says of itself; a user's may say another thing every time."""
    kind = type(module)
    return f"{kind.__qualname__}({module.extra_repr() if kind.__module__.startswith('torch.') else ''})"

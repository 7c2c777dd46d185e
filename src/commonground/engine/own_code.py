"""By what a run's folder knows the code of its user again."""

from __future__ import annotations

import hashlib
import re

from torch import nn

from commonground.config import RunConfig
from commonground.engine.network import named_model
from commonground.user_code import digests_of

__all__ = ["code_of"]

_PLACE = re.compile(r" at 0x[0-9a-f]+")  # in memory, which says nothing of what is there


def code_of(config: RunConfig, network: nn.Module) -> dict[str, str]:
    """The sha256 of each Python file that a configuration names, and of the layers of a module given as an object, by
    the module's class.

    Args:
        config: the run's configuration.
        network: its network, as its method extends it.
    """
    files = digests_of((config.algorithm, config.model, config.loss, config.metric))
    if named_model(config):
        return files
    return files | {str(config.model): hashlib.sha256(_PLACE.sub("", repr(network)).encode()).hexdigest()}

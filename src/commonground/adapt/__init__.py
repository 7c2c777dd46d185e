"""Clients that never took part: heads for them, tried on few samples or kept."""

from commonground.adapt.few_shot import Adaptation, adapt
from commonground.adapt.keep import Kept, keep_clients

__all__ = ["Adaptation", "Kept", "adapt", "keep_clients"]

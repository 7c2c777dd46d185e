"""Clients that never took part: heads for them, tried on few samples, or kept until they leave."""

from commonground.adapt.few_shot import Adaptation, adapt
from commonground.adapt.forget import forget_clients
from commonground.adapt.keep import Kept, keep_clients

__all__ = ["Adaptation", "Kept", "adapt", "forget_clients", "keep_clients"]

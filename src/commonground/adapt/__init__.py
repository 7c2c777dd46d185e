"""After training: heads for clients that never took part."""

from commonground.adapt.few_shot import Adaptation, adapt
from commonground.engine import load_run

__all__ = ["Adaptation", "adapt", "load_run"]

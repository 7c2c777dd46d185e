"""After training: a client's finished model, and heads for clients that never took part."""

from commonground.adapt.few_shot import Adaptation, adapt
from commonground.adapt.trained import TrainedRun, load_run

__all__ = ["Adaptation", "TrainedRun", "adapt", "load_run"]

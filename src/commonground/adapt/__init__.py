"""After training: a client's finished model, heads for clients that never took part, and adapters out again."""

from commonground.adapt.export import Exported, export_adapter
from commonground.adapt.few_shot import Adaptation, adapt
from commonground.adapt.trained import TrainedRun, load_run

__all__ = ["Adaptation", "Exported", "TrainedRun", "adapt", "export_adapter", "load_run"]

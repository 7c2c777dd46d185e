"""After training: heads for clients that never took part, and adapters out again."""

from commonground.adapt.export import Exported, export_adapter
from commonground.adapt.few_shot import Adaptation, adapt
from commonground.engine import load_run

__all__ = ["Adaptation", "Exported", "adapt", "export_adapter", "load_run"]

"""What a user takes away: models as folders, in formats that others read."""

from commonground.export.adapters import export_adapter
from commonground.export.folders import Exported
from commonground.export.load import ExportedModel, load_exported, table_inputs
from commonground.export.models import export_model

__all__ = ["Exported", "ExportedModel", "export_adapter", "export_model", "load_exported", "table_inputs"]

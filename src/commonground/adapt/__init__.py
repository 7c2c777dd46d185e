"""After training: heads for clients that never took part, and whole tables answered row by row."""

from commonground.adapt.few_shot import Adaptation, adapt
from commonground.adapt.keep import Kept, keep_clients
from commonground.adapt.rows import predict_rows
from commonground.adapt.tested import predict_tests
from commonground.engine import load_run

__all__ = ["Adaptation", "Kept", "adapt", "keep_clients", "load_run", "predict_rows", "predict_tests"]

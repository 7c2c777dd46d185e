"""Trackers that runs are written to beside their own files: TensorBoard, MLflow, Weights & Biases, or one of yours."""

from commonground.tracking.base import TRACKERS, Started, Tracker, make_tracker

__all__ = ["TRACKERS", "Started", "Tracker", "make_tracker"]

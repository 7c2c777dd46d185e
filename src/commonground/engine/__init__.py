"""Rounds, sampling, local training, evaluation, personal state, checkpoints and the communication ledger."""

from commonground.engine.loop import run_training, train
from commonground.engine.observer import Observer
from commonground.engine.results import Run

__all__ = ["Observer", "Run", "run_training", "train"]

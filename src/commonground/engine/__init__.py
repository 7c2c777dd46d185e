"""Rounds, sampling, local training, evaluation, personal state, checkpoints and the communication ledger."""

from commonground.engine.observer import Observer
from commonground.engine.run import Run, load_run
from commonground.engine.training import run_training, train

__all__ = ["Observer", "Run", "load_run", "run_training", "train"]

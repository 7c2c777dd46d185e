"""Rounds, sampling, local training, evaluation, personal state, checkpoints and the communication ledger."""

from commonground.engine.observer import Observer
from commonground.engine.results import Run
from commonground.engine.train import run_training, train

__all__ = ["Observer", "Run", "run_training", "train"]

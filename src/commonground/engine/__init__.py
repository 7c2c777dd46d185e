"""Rounds, sampling, local training, evaluation, personal state, checkpoints and the communication ledger."""

from commonground.engine.train import Observer, Run, run_training, train

__all__ = ["Observer", "Run", "run_training", "train"]

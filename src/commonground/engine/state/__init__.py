"""What a run keeps between rounds: personal tensors, checkpoints, the run's folder."""

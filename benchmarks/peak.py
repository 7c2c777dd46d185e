"""What one thread of this machine computes at most, measured in the process that is judged by it."""

from __future__ import annotations

import time

import torch

from benchmarks.cifar_round import one_core_peak

__all__ = ["one_thread_peak"]

SIDE = 512  # of the square matrices


def one_thread_peak(kind: str) -> float:
    """Best fp32 rate of one thread in GFLOP/s, by the processor's own seconds.

    Args:
        kind: ``matmul`` or ``conv``.
    """
    torch.set_num_threads(1)
    if kind == "conv":
        return one_core_peak()
    a, b = torch.randn(SIDE, SIDE), torch.randn(SIDE, SIDE)
    best = 0.0
    for _ in range(10):
        began = time.process_time()
        a @ b
        best = max(best, 2 * SIDE**3 / max(time.process_time() - began, 1e-6) / 1e9)
    return best

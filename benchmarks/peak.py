"""What this machine computes at most, measured beside what is judged by it."""

from __future__ import annotations

import multiprocessing as mp
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

import torch
from torch import nn
from torch.nn.utils import convert_conv2d_weight_memory_format

__all__ = ["PeakOfAllCores", "one_thread_peak"]

SIDE = 512  # of the square matrices
# (batch, channels in, channels out, side, kernel): shapes on which oneDNN comes closest to the machine's limit.
CONVOLUTIONS = [(64, 64, 64, 14, 5), (32, 256, 256, 14, 3), (64, 64, 64, 28, 3)]


def one_thread_peak(kind: str, clock: Callable[[], float] = time.process_time) -> float:
    """Best fp32 rate of one thread, in GFLOP/s.

    Args:
        kind: ``matmul`` or ``conv``.
        clock: by whose seconds.
    """
    torch.set_num_threads(1)
    with torch.no_grad():
        return _matrices(clock) if kind == "matmul" else max(_convolution(clock, *shape) for shape in CONVOLUTIONS)


def _matrices(clock: Callable[[], float]) -> float:
    a, b = torch.randn(SIDE, SIDE), torch.randn(SIDE, SIDE)
    return _rate(lambda: a @ b, 2 * SIDE**3, 10, clock)


def _convolution(clock: Callable[[], float], batch: int, c_in: int, c_out: int, side: int, kernel: int) -> float:
    layer = convert_conv2d_weight_memory_format(nn.Conv2d(c_in, c_out, kernel), torch.channels_last)
    x = torch.randn(batch, c_in, side, side).contiguous(memory_format=torch.channels_last)
    return _rate(lambda: layer(x), 2 * batch * c_out * (side - kernel + 1) ** 2 * c_in * kernel**2, 3, clock)


def _rate(work: Callable[[], object], flops: int, times: int, clock: Callable[[], float]) -> float:
    best = 0.0
    for _ in range(times):
        began = clock()
        work()
        best = max(best, flops / max(clock() - began, 1e-6) / 1e9)
    return best


class PeakOfAllCores:
    """Convolutions on all cores at once, a process with one thread each.

    Args:
        cores: how many.
    """

    def __init__(self, cores: int) -> None:
        self._pipes = []
        for _ in range(cores):
            here, there = mp.Pipe()
            mp.get_context("spawn").Process(target=_serve, args=(there,), daemon=True).start()
            there.close()  # a process that dies is heard of
            self._pipes.append(here)

    def measure(self) -> float:
        """Sum over the cores, in GFLOP/s."""
        for pipe in self._pipes:
            pipe.send(True)
        found: list[float] = [pipe.recv() for pipe in self._pipes]
        return sum(found)

    def close(self) -> None:
        """End the processes."""
        for pipe in self._pipes:
            pipe.send(False)
            pipe.close()


def _serve(pipe: Connection) -> None:
    while pipe.recv():
        pipe.send(one_thread_peak("conv", time.perf_counter))

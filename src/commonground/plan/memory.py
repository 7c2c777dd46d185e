"""Memory of this process and its workers, and what there is of it."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from commonground.engine.results import peak_rss

__all__ = ["Memory", "available_bytes", "measured", "resident_bytes"]


@dataclass
class Memory:
    """What a run needs of memory, in bytes.

    Attributes:
        peak: the largest resident memory of one process, which is what a run's summary tells.
        together: of this process and its workers, pages that they share counted once; ``peak`` where that is unknown.
        workers: processes beside this one.
        device: of an accelerator's own memory, the most; 0 on the CPU.
    """

    peak: int = 0
    together: int = 0
    workers: int = 0
    device: int = 0


@contextmanager
def measured(memory: Memory, device: torch.device) -> Iterator[None]:
    """Raise the figures to what is met by the end of the block, in which workers are still there."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    yield
    workers = [process.pid for process in multiprocessing.active_children() if process.pid is not None]
    shares = [_proportional(pid) for pid in (os.getpid(), *workers)]
    memory.workers = max(memory.workers, len(workers))
    memory.together = max(memory.together, sum(shares))
    if device.type == "cuda":
        memory.device = max(memory.device, torch.cuda.max_memory_allocated(device))


def resident_bytes() -> int:
    """The largest resident memory so far of this process or a worker that has ended."""
    return peak_rss()


def available_bytes() -> int | None:
    """Memory that processes can have beside what is in use; None where the system does not say."""
    try:
        for line in Path("/proc/meminfo").read_text("ascii").splitlines():
            if line.startswith("MemAvailable:"):
                free = int(line.split()[1]) * 1024
                limit = _group_room()
                return free if limit is None else min(free, limit)
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def _group_room() -> int | None:
    """What is left of a control group's limit, in which containers run."""
    try:
        folder = Path("/sys/fs/cgroup")
        most = (folder / "memory.max").read_text("ascii").strip()
        used = int((folder / "memory.current").read_text("ascii"))
        return None if most == "max" else max(0, int(most) - used)
    except (OSError, ValueError):
        return None


def _proportional(pid: int) -> int:
    """A process's share of resident pages; 0 where the system does not say."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text("ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)

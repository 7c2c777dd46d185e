"""What to change of a run that will not fit, in a sentence each."""

from __future__ import annotations

from commonground.engine.setup import Setup
from commonground.plan.memory import Memory
from commonground.terminal import human_bytes

__all__ = ["advice"]


def advice(
    setup: Setup, engine: str, memory: Memory, free: int | None, device_free: int | None, files: int, disk: int
) -> tuple[str, ...]:
    """A sentence on each of memory, the device's memory and the disk that does not suffice.

    Args:
        setup: of the run.
        engine: that computes it.
        memory: what it needs.
        free: memory that can be had, for a process that begins now; None if unknown.
        device_free: an accelerator's free memory; None on the CPU.
        files: bytes of its files.
        disk: free bytes.
    """
    told = []
    if free is not None and memory.together > free:
        need = f"it needs about {human_bytes(memory.together)} of memory, and {human_bytes(free)} can be had"
        told.append(f"{need}: {_less_memory(setup, engine, memory, free)}")
    if device_free is not None and memory.device > device_free:
        told.append(
            f"it needs about {human_bytes(memory.device)} of memory on {setup.device}, which has "
            f"{human_bytes(device_free)}: take a smaller --batch-size, or --precision bf16"
        )
    if files > disk:
        told.append(
            f"it writes up to {human_bytes(files)}, and {human_bytes(disk)} are free there: choose an --out on another "
            "disk, or a method or model with less personal state"
        )
    return tuple(told)


def _less_memory(setup: Setup, engine: str, memory: Memory, free: int) -> str:
    clients = setup.data.clients
    if engine == "processes" and memory.workers > 1:
        each = max(1, (memory.together - memory.peak) // memory.workers)
        able = (free - memory.peak) // each
        return f"take fewer processes, --workers {able}" if able > 1 else "take --engine serial, which has one process"
    if engine == "batched" and setup.config.participants(clients) > 1:
        return "take --engine serial, which computes one client after the other, or a smaller --participation"
    data = setup.data.x_train.nbytes + setup.data.x_test.nbytes
    if data > memory.together // 2:
        return f"the data are {human_bytes(data)} of it: take fewer rows, such as --train-samples 100"
    return "take a smaller --model or --batch-size"

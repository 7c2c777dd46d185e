"""A run before it begins: bytes that travel, seconds, memory, files, and what to change where they do not fit."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from commonground.devices import device_bytes_free
from commonground.engine.backends.base import payload_bytes
from commonground.engine.backends.batched import COHORT_NUMBERS, numbers_of_client
from commonground.engine.backends.factory import choose_engine
from commonground.engine.private.summary import privacy_summary
from commonground.engine.setup import Setup
from commonground.engine.state.changed import MEMORY_BYTES
from commonground.plan.advice import advice
from commonground.plan.disk import ever_taking_part, file_bytes, free_bytes
from commonground.plan.ledger import Bytes, fewest_rounds, ledger
from commonground.plan.memory import Memory, available_bytes, resident_bytes
from commonground.plan.parts import shortened
from commonground.plan.rehearsal import Clock
from commonground.plan.timing import TimedRun, Timing
from commonground.precision import computing_with
from commonground.privacy import CLIP

__all__ = ["Plan", "plan_of"]

BETWEEN = 0.5  # seconds of rounds between two checkpoints, at least


@dataclass(frozen=True, repr=False)
class Plan:
    """What a run will need.

    Attributes:
        setup: of the run.
        engine: that would compute it.
        sent: bytes that travel in the whole run.
        measured: what a rehearsal found, seconds among it.
        memory: bytes of memory.
        memory_free: of them, what can be had beside what is in use now; None where the system does not say.
        device_free: of an accelerator's memory; None on the CPU.
        files: bytes by file.
        disk_free: bytes.
        advice: a sentence on each of these that does not fit.
    """

    setup: Setup
    engine: str
    sent: Bytes
    measured: TimedRun
    memory: Memory
    memory_free: int | None
    device_free: int | None
    files: dict[str, int]
    disk_free: int
    advice: tuple[str, ...]

    @cached_property
    def fewest_rounds(self) -> int:
        """Rounds after which the run ends at the earliest."""
        return fewest_rounds(self.setup)

    @cached_property
    def privacy(self) -> dict[str, Any]:
        """What a run of all rounds will tell of its privacy, as in its summary; empty without ``--dp``."""
        asked = self.setup.privacy
        clip = {} if asked is None else {CLIP: torch.tensor(asked.clip, device="cpu")}
        told: dict[str, Any] = privacy_summary(self.setup, self.setup.config.rounds, clip).get("privacy", {})
        return {name: value for name, value in told.items() if name != "last_clip"}

    @property
    def seconds(self) -> float:
        """Of the whole run, as long as the machine is as busy as it was just now."""
        return self.measured.seconds

    def __repr__(self) -> str:
        config, up = self.setup.config, f"{self.sent.up[1] / 1e6:.1f} MB sent by clients"
        figures = f"{self.seconds:.1f} s, {up}, {self.memory.peak / 1e6:.0f} MB of memory"
        fits = "; " + "; ".join(self.advice) if self.advice else ""
        return f"<Plan {config.algorithm} on {self.setup.data.name}, {config.rounds:,} rounds: {figures}{fits}>"

    def to_dict(self) -> dict[str, Any]:
        """All figures, for JSON."""
        config, found = self.setup.config, self.measured
        part = None if found.batches is None else f"{found.batches} mini-batches of each"
        return {
            "algorithm": config.algorithm,
            "data": self.setup.data.name,
            "model": config.model,
            "clients": self.setup.data.clients,
            "participants": config.participants(self.setup.data.clients),
            "rounds": config.rounds,
            "fewest_rounds": self.fewest_rounds,
            "engine": self.engine,
            "settings": config.model_dump(mode="json"),
            "bytes": {"up": list(self.sent.up), "down": list(self.sent.down), "exact": self.sent.exact},
            "seconds": {
                "start": found.start, "rounds": found.rounds, "tests": found.tests, "end": found.end,
                "all": found.seconds, "rehearsed_clients": found.participants, "rehearsed_part": part,
            },
            "memory_bytes": {**asdict(self.memory), "free": self.memory_free, "device_free": self.device_free},
            "disk_bytes": {**self.files, "all": sum(self.files.values()), "free": self.disk_free},
            **({"privacy": self.privacy} if self.privacy else {}),
            "fits": not self.advice,
            "advice": list(self.advice),
        }  # fmt: skip


def plan_of(setup: Setup, out: Path | None = None, clock: Clock = time.perf_counter) -> Plan:
    """Rehearse a part of a run, which takes some seconds, and work out the rest. No file is written.

    Args:
        setup: of the run; its model is used up.
        out: the folder that it would write; none, if it would keep everything in memory.
        clock: tells the seconds, such as those of a busy machine that went into this process alone.
    """
    with computing_with(setup.config.precision, setup.config.threads):
        return _plan_of(setup, out, clock)


def _plan_of(setup: Setup, out: Path | None, clock: Clock) -> Plan:
    before = available_bytes()
    engine = choose_engine(setup) if setup.config.engine == "auto" else setup.config.engine
    timing = Timing(setup, engine, clock)
    found = timing.measure()
    free = available_bytes()
    device_free = device_bytes_free(setup.device)
    config = setup.config
    between = max(1, math.ceil(BETWEEN * config.rounds / max(found.rounds + found.tests, 1e-9)))
    memory = _memory(setup, engine, found, min(between, config.rounds) if out is not None else config.rounds)
    one = next(iter(found.rehearsed.values()))
    files = {} if out is None else file_bytes(setup, one, timing.scores, min(between, config.rounds))
    disk = free_bytes(out or Path())
    told = advice(setup, engine, memory, before if free is None else free, device_free, sum(files.values()), disk)
    shown = "pooled" if setup.algorithm.pools else engine
    return Plan(
        setup, shown, ledger(setup, found.rehearsed, found.moved), found, memory, free, device_free, files, disk, told
    )


def _memory(setup: Setup, engine: str, found: TimedRun, rounds_between: int) -> Memory:
    """What was met in the rehearsal, and what comes to it in a whole run."""
    config, met = setup.config, found.memory
    asked = config.participants(setup.data.clients)
    own, ever = payload_bytes(setup.initial_personal), ever_taking_part(setup)
    kept = min(MEMORY_BYTES, own * min(ever, asked * rounds_between))
    left_out = 0 if setup.algorithm.pools else max(0, asked - found.participants)
    sent = max(done.up[1] for done in found.rehearsed.values())
    more = kept + left_out * 2 * (sent + own)
    if engine == "batched":
        more += _cohort(setup, found)
    else:
        more += (min(config.workers or 1, asked) if engine == "processes" else 1) * _rows(setup, found)
    peak = resident_bytes() + more
    return Memory(peak, max(peak, met.together + more), met.workers, met.device)


def _rows(setup: Setup, found: TimedRun) -> int:
    """Bytes of the largest client's rows as inputs that the rehearsal left out."""
    if found.batches is None:
        return 0
    rehearsed = shortened(setup, found.batches).data.train_sizes
    return int((setup.data.train_sizes - rehearsed).max()) * setup.data.numbers_per_sample * 4


def _cohort(setup: Setup, found: TimedRun) -> int:
    """Bytes of a cohort beyond the one that was rehearsed."""
    part = setup.data if found.batches is None else shortened(setup, found.batches).data
    asked = setup.config.participants(setup.data.clients)
    whole, met = (
        min(COHORT_NUMBERS, clients * numbers_of_client(setup, int(data.train_sizes.max())))
        for clients, data in ((asked, setup.data), (found.participants, part))
    )
    return 4 * max(0, whole - met)

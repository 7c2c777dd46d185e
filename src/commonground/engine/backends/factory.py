"""Which engine suits a model on this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from commonground.engine.backends.base import Engine
from commonground.engine.backends.batched import BatchedEngine
from commonground.engine.backends.messages import MessageEngine
from commonground.engine.backends.method_trial import cannot_be_stacked, without_advice
from commonground.engine.backends.pooled import PooledEngine
from commonground.engine.backends.processes import ProcessEngine, default_workers
from commonground.engine.backends.serial import SerialEngine
from commonground.engine.clients.stacking_trial import check_stackable
from commonground.engine.setup import Setup
from commonground.errors import ConfigError, ModelError

__all__ = ["EngineOf", "choose_engine", "make_engine"]

EngineOf = Callable[[str, Setup, Path | None], Engine]
"""What makes an engine of its name, the setup and the run's folder."""

# On a CPU, stacking wins 12–20 times for models of a few thousand weights and loses for an MLP of 550,000 (0.7
# times) and for every CNN (0.5 times); between these, the crossing was measured near this size.
STACKED_WEIGHTS = 60_000
# Threads of a smaller model wait for each other longer than they work.
THREADED_WEIGHTS = 5_000_000


def choose_engine(setup: Setup) -> str:
    """``batched`` for models whose frozen part all clients have in common; on a CPU also for small models without
    convolutions or recurrences, on an accelerator for all that stack; else ``processes`` on a CPU with several cores
    and clients, else ``serial``.
    """
    return _chosen(setup)[0]


def _chosen(setup: Setup) -> tuple[str, str]:
    """The engine, and a sentence about why a faster one was passed over, if it is for the user's own method."""
    why = ""
    if setup.folds and setup.config.workers is None:
        return "batched", ""
    accelerated = setup.device.type != "cpu"
    heavy = any(isinstance(m, nn.modules.conv._ConvNd | nn.RNNBase) for m in setup.model.modules())
    weights = sum(value.numel() for value in setup.initial.values())
    sampled = setup.config.participants(setup.data.clients)
    if accelerated or (not heavy and weights <= STACKED_WEIGHTS and sampled > 1):
        try:
            check_stackable(setup)
        except (ModelError, ConfigError):
            pass
        else:
            why = cannot_be_stacked(setup)
            if not why:
                return "batched", ""
    workers = 1 if accelerated else setup.config.workers or default_workers()
    return "processes" if workers > 1 and sampled > 1 else "serial", why


def make_engine(name: str, setup: Setup, folder: Path | None = None) -> Engine:
    """An engine by name (``auto`` chooses); a method that pools has one of its own.

    Args:
        name: auto, serial, processes, batched, messages or ray.
        setup: data, model and algorithm.
        folder: the run's folder, in which ``messages`` keeps the clients' folders.
    """
    if setup.algorithm.pools:
        return PooledEngine(setup)
    chosen, remark = name == "auto", ""
    if chosen:
        name, remark = _chosen(setup)
    if name in ("processes", "ray") and setup.device.type != "cpu":
        raise ConfigError(
            f"the engine '{name}' shares out CPU cores, and this run computes on {setup.device}; take batched "
            "(the default there) or serial, or --device cpu"
        )
    if name == "ray":
        from commonground.engine.backends.ray_engine import RayEngine

        return RayEngine(setup)
    if name == "batched" and not chosen and (why := cannot_be_stacked(setup, only_wrong=True)):
        raise ConfigError(f"{why}; or take --engine serial")
    if threaded := name == "batched" and _is_threaded(setup):
        torch.set_num_threads(setup.config.threads * (setup.config.workers or default_workers()))
    engine: Engine
    if name == "messages":
        engine = MessageEngine(setup, folder / "clients" if folder is not None else None)
    else:
        engines: dict[str, type[SerialEngine] | type[ProcessEngine] | type[BatchedEngine]] = {
            "serial": SerialEngine,
            "processes": ProcessEngine,
            "batched": BatchedEngine,
        }
        engine = engines[name](setup)
    if chosen and not remark and name == "serial" and setup.device.type != "cpu":
        remark = f"clients are computed one after the other on {setup.device}: {_why_not_stacked(setup)}"
    elif not remark and name != "processes" and not threaded:
        remark = _unused_workers(name, setup)
    engine.remark = remark
    return engine


def _is_threaded(setup: Setup) -> bool:
    """Whether one pass for all clients is so much of one process's work that it gets the cores that worker processes
    would have had.
    """
    return setup.folds and sum(p.numel() for p in setup.model.parameters()) > THREADED_WEIGHTS


def _unused_workers(name: str, setup: Setup) -> str:
    """A sentence about workers that were asked of an engine of one process; empty if there were none."""
    asked = setup.config.workers or 1
    if asked == 1:
        return ""
    more = "; take --engine processes" if setup.device.type == "cpu" else ""
    return f"--workers {asked} is not used: the engine '{name}' computes in one process{more}"


def _why_not_stacked(setup: Setup) -> str:
    """What :func:`check_stackable` says, without what it advises."""
    try:
        check_stackable(setup)
    except (ModelError, ConfigError) as error:
        return without_advice(error)
    return ""

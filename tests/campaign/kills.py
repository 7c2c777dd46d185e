"""Runs that are killed at random moments, and then ended: weights and rounds are those of a run nobody killed."""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any

from commonground.engine.state.folder import RunFolder
from commonground.errors import Interrupted
from commonground.stopping import stops_raise
from tests.campaign.common import Tally, drawn, tries
from tests.helpers import ENGINES, SMALL, TwoLayer, Whole, made_data, rows_without_time, seeded, train_whole, training

__all__ = ["SETTINGS", "campaign", "go", "run_and_kill"]

SETTINGS: dict[str, Any] = SMALL | {"rounds": 8, "participation": 0.5}
METHODS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("fedrep", {"options": {"head_epochs": 2}}),
    ("fedavg", {"finetune_epochs": 3}),
    ("ditto", {}),
    ("scaffold", {}),
    ("fedprox", {"server_optimizer": "adam", "server_lr": 0.1}),
    ("apfl", {}),
    ("flute", {}),
    ("l2gd", {}),
    ("local-sgd", {"options": {"steps": 3}}),
    ("perfedavg", {}),
)
ROUNDS = 40


def go(out: Path | None, engine: str = "serial", **changes: Any) -> Whole:
    """A small run."""
    algorithm = changes.pop("algorithm", "fedrep")
    data = changes.pop("data", None) or made_data()
    model = changes.pop("model", None) or seeded(TwoLayer)
    return train_whole(algorithm, data, model=model, out=out, **(SETTINGS | {"engine": engine} | changes))


def run_and_kill(
    out: Path, engine: str, after: float, changes: dict[str, Any], number: int = signal.SIGKILL, group: bool = False
) -> int | None:
    """Start or go on with a run in a process of its own, and send it a signal.

    Args:
        out: the run's folder.
        engine: that computes it.
        after: seconds until the signal.
        changes: settings.
        number: of the signal.
        group: send it to the run's workers as well.

    Returns:
        The exit code; None if it had come to its end before the signal.
    """
    child = mp.get_context("fork").Process(target=_child, args=(out, engine, changes))
    child.start()
    child.join(after)
    alive = child.is_alive()
    if alive and group:
        os.killpg(child.pid or 0, number)
    elif alive:
        os.kill(child.pid or 0, number)
    child.join()
    return child.exitcode if alive else None


def _child(out: Path, engine: str, changes: dict[str, Any]) -> None:
    os.setpgid(0, 0)
    training.Keeper.save_if_due = training.Keeper.save  # a checkpoint after every round
    try:
        with stops_raise():
            go(out, engine, resume=True, **changes)
    except (Interrupted, KeyboardInterrupt):
        os._exit(130)


@cache
def _whole(case: int, engine: str) -> tuple[Whole, float]:
    """A run that nobody kills, and its seconds."""
    method, more = METHODS[case]
    began = time.perf_counter()
    whole = go(None, engine, algorithm=method, rounds=ROUNDS, **more)
    return whole, time.perf_counter() - began


def campaign(seed: int, count: int, minutes: float) -> Tally:
    """So many signals that landed, several in each run, to its process or to its workers as well."""
    findings: list[str] = []
    landed = held = 0
    for number in tries(count, minutes):
        rng = drawn(seed, number)
        case, engine = number % len(METHODS), ENGINES[(number // len(METHODS) + number) % len(ENGINES)]
        method, more = METHODS[case]
        changes = {"algorithm": method, "rounds": ROUNDS, **more}
        whole, usual = _whole(case, engine)
        with tempfile.TemporaryDirectory() as temporary:
            out, kills, codes = Path(temporary) / "run", 0, set()
            for _ in range(min(4, count - landed)):
                stop = int(rng.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM]))
                delay = 0.02 + float(rng.uniform(0, 1.2)) * usual
                code = run_and_kill(out, engine, delay, changes, stop, group=bool(rng.random() < 0.5))
                kills += code is not None
                codes.add(code)
            wrong = sorted(str(code) for code in codes - {None, 0, 130, -signal.SIGKILL})
            again = go(out, engine, resume=True, **changes)
            same = again.sha == whole.sha and rows_without_time(RunFolder(out).rounds.rows()) == rows_without_time(
                whole.run.history
            )
            left = [path.name for path in out.rglob("*.part")]
        landed += kills
        what = [] if same else ["ends with other weights or rounds"]
        what += [f"exit codes {', '.join(wrong)}"] if wrong else []
        what += [f"leaves {', '.join(left)}"] if left else []
        held += 0 if what else kills
        findings += [f"{number}: {method} {engine}, {kills} signals: {'; '.join(what)}"] if what else []
        if landed >= count:
            break
    return Tally(landed, held, tuple(findings))

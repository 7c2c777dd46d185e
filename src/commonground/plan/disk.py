"""The bytes of a run's files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from commonground.engine.backends.base import Which, payload_bytes
from commonground.engine.evaluation_plan import EvaluationPlan
from commonground.engine.sampling import sample_clients
from commonground.engine.scores import Scores
from commonground.engine.setup import Setup
from commonground.engine.state.split_file import split_json
from commonground.plan.rehearsal import Rehearsed

__all__ = ["ever_taking_part", "file_bytes", "free_bytes"]

KEPT = 2  # checkpoints
HEADER = 4_000  # a checkpoint's names and settings
INDEX = 40  # of a client's row in a segment: its number and digest
SUMMARY = 5_000
PAGE = 310_000  # of the report with its figures, without what follows
PAGE_CLIENT, PAGE_CLIENTS, PAGE_ROUND = 600, 200, 1_000  # of each client, as far as they are shown, and each round


def ever_taking_part(setup: Setup) -> int:
    """Clients who take part in any of the rounds."""
    config, clients = setup.config, setup.data.clients
    if config.participants(clients) == clients:
        return clients
    seen = np.zeros(clients, bool)
    for round in range(1, config.rounds + 1):
        seen[sample_clients(config, clients, round)] = True
    return int(seen.sum())


def file_bytes(setup: Setup, round: Rehearsed, scores: Mapping[Which, Scores], rounds_between: int) -> dict[str, int]:
    """Bytes of a run's files by their names; those of the clients' state are the most there can be at once.

    Args:
        setup: of the run.
        round: an evaluated one.
        scores: a test of some clients.
        rounds_between: rounds between two checkpoints.
    """
    config, clients = setup.config, setup.data.clients
    own = payload_bytes(setup.initial_personal)
    ever = ever_taking_part(setup) if own else 0
    anew = min(ever, rounds_between * config.participants(clients))
    kept = KEPT if config.rounds > rounds_between else 1
    best = config.early_stopping is not None  # whose checkpoint stays, and all clients' state as it was then
    plan = EvaluationPlan(setup)
    due = sum(plan.is_due(round) for round in range(1, config.rounds + 1))
    line = len(json.dumps(dict(round.row))) + 1
    shorter = sum(len(repr(value)) - 4 for key, value in round.row.items() if "_" in key and _is_tested(key, value))
    split = len(split_json(setup.data))
    shared = payload_bytes(setup.initial_shared) + round.remembered + 8 * clients + HEADER
    return {
        "checkpoint": (kept + best) * shared,
        "checkpoint/personal": (own + INDEX) * (ever + (anew if kept == KEPT else 0) + best * ever) if own else 0,
        **_fine_tuned(setup),
        "clients.csv": clients * _client_line(setup, scores),
        "rounds.jsonl": config.rounds * line - (config.rounds - due) * shorter,
        "split.json": split,
        "start": 0 if setup.start is None else payload_bytes(setup.start),
        "report.html": PAGE + PAGE_CLIENT * min(clients, PAGE_CLIENTS) + PAGE_ROUND * config.rounds,
        "others": SUMMARY + len(config.to_toml()),
    }


def _fine_tuned(setup: Setup) -> dict[str, int]:
    """What is kept of the round more in which all clients tune the global model, or its head."""
    if not setup.config.finetune_epochs:
        return {}
    tuned = setup.fine_tuning(setup.initial)
    own = setup.data.clients * (payload_bytes(tuned.initial_personal) + INDEX)
    rest = payload_bytes(tuned.initial_shared) + HEADER
    return {"checkpoint/finetuned": own, "checkpoint/finetuned.safetensors": rest}


def free_bytes(folder: Path) -> int:
    """Free space where a folder is, or would be made."""
    near = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.is_dir())
    return shutil.disk_usage(near).free


def _is_tested(key: str, value: object) -> bool:
    return isinstance(value, float) and key.startswith(("personal_", "global_", "worst_"))


def _client_line(setup: Setup, scores: Mapping[Which, Scores]) -> int:
    """Mean bytes of a client's line: whole numbers, its name, and figures in all their digits."""
    judged = scores.get("personal") or scores["global"]
    figures = [*judged.metrics.values(), judged.loss, *([scores["global"].headline] if "global" in scores else [])]
    digits = sum(float(np.mean([len(repr(float(v))) if not np.isnan(v) else 0 for v in f])) + 1 for f in figures)
    clients = setup.data.clients
    names = setup.data.client_names
    name = len(str(clients - 1)) if names is None else float(np.mean([len(n) for n in names[:1000]]))
    return round(digits + len(str(clients - 1)) + name + 11)

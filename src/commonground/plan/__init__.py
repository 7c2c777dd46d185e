"""What a run would do and need, before it begins: ``train --dry-run`` and :func:`plan`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from commonground.algorithms import Algorithm
from commonground.data import FederatedDataset
from commonground.engine.training import prepared
from commonground.plan.estimate import Plan, plan_of
from commonground.plan.table import plan_table

__all__ = ["Plan", "plan", "plan_of", "plan_table"]


def plan(
    algorithm: str | Algorithm = "fedrep",
    data: FederatedDataset | str | os.PathLike[str] = "digits",
    *,
    out: str | Path | None = None,
    **given: Any,
) -> Plan:
    """What a run would need: bytes that travel, seconds, memory and files. A part of it is computed to be timed, which
    takes some seconds; nothing is written.

    Memory is what this process reaches, so a process that held more before says more.

    Args:
        algorithm, data: as of :func:`~commonground.train`.
        out: the folder that the run would write.
        **given: what else :func:`~commonground.train` is given of data, model and settings.
    """
    return plan_of(prepared(algorithm, data, **given), None if out is None else Path(out))

"""Whom a run's last test was of, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["tested_clients"]


def tested_clients(summary: Mapping[str, Any]) -> str:
    """``100 clients``, or ``a sample of 100 of 5,000 clients``.

    Args:
        summary: of a run.
    """
    everyone = f"{summary['clients']:,} clients"
    sample = summary.get("final_test")
    return everyone if sample is None else f"a sample of {sample['clients']:,} of {everyone}"

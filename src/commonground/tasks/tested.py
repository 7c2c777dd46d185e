"""Whom a run's last test was of, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from commonground.counted import counted
from commonground.quoting import quoted

__all__ = ["special_clients", "tested_clients", "untested_clients", "untrained_clients", "untuned_clients"]

SHOWN = 3  # clients that are named


def tested_clients(summary: Mapping[str, Any]) -> str:
    """``100 clients``, ``99 of 100 clients``, or ``a sample of 100 of 5,000 clients``.

    Args:
        summary: of a run.
    """
    everyone, sample = f"{summary['clients']:,} clients", summary.get("final_test")
    asked = everyone if sample is None else f"a sample of {sample['clients']:,} of {everyone}"
    lost = len(summary.get("lost_clients", ()))
    if not lost:
        return asked
    return f"{(summary if sample is None else sample)['clients'] - lost:,} of {asked}"


def special_clients(summary: Mapping[str, Any]) -> list[str]:
    """Of whom a run's figures are not as one would think: clauses of :func:`untested_clients` and those after it.

    Args:
        summary: of a run.
    """
    every = (untested_clients, untrained_clients, untuned_clients, unserved_clients)
    return [clause for say in every if (clause := say(summary))]


def untested_clients(summary: Mapping[str, Any]) -> str:
    """Whose last test did not count, and why, as a clause; empty if everybody's did.

    Args:
        summary: of a run.
    """
    lost, why = summary.get("lost_clients", ()), summary.get("lost_why", {})
    if not lost:
        return ""
    return f"without {counted(len(lost), 'client')}, whose last test did not count: {_named(lost, why)}"


def untrained_clients(summary: Mapping[str, Any]) -> str:
    """How many clients never took part and so have a model of their own that nobody trained, as a clause; empty if
    everybody did, or if nobody has one.

    Args:
        summary: of a run.
    """
    found, clients = summary.get("untrained_clients", 0), summary["clients"]
    if not found:
        return ""
    return f"with {found:,} of {counted(clients, 'client')} that never took part: what is their own is as at the start"


def untuned_clients(summary: Mapping[str, Any]) -> str:
    """Whose model could not be fine-tuned after the last round, and why, as a clause; empty if everybody's could.

    Args:
        summary: of a run.
    """
    return _some(summary.get("untuned_clients", {}), "whose model could not be fine-tuned")


def unserved_clients(summary: Mapping[str, Any]) -> str:
    """Which clients of a network did not take the finished model, and why, as a clause; empty if all did.

    Args:
        summary: of a run.
    """
    what = "that did not take the finished model (--resume offers it again)"
    return _some(summary.get("clients_without_model", {}), what)


def _some(found: Mapping[str, str], what: str) -> str:
    """A clause about clients, each with why."""
    return f"with {counted(len(found), 'client')} {what}: {_named(tuple(found), found)}" if found else ""


def _named(clients: Sequence[str], why: Mapping[str, str]) -> str:
    named = [quoted(name, 40) + (f" ({why[name]})" if name in why else "") for name in clients[:SHOWN]]
    return ", ".join(named) + (f" and {len(clients) - SHOWN:,} more" if len(clients) > SHOWN else "")

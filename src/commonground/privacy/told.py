"""What a summary says of privacy, in words: for the console, reports and comparisons."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["about_privacy", "short_epsilon"]


def short_epsilon(privacy: Mapping[str, Any]) -> str:
    """ε and δ, such as ``ε 8.00 at δ 0.0063``; an ε that two decimals would make none in its first digit.

    >>> short_epsilon({"epsilon": 8, "delta": 0.0063}), short_epsilon({"epsilon": 4.2e-9, "delta": 0.037})
    ('ε 8.00 at δ 0.0063', 'ε 4e-09 at δ 0.037')
    """
    epsilon = privacy["epsilon"]
    return f"ε {epsilon:{'.1g' if 0 < epsilon < 0.005 else '.2f'}} at δ {privacy['delta']:.2g}"


LARGE_DELTA = 0.01
"""A δ from which on ε promises little: it bounds the chance that the promise does not hold at all."""


def about_privacy(privacy: Mapping[str, Any]) -> str:
    """One sentence without its full stop, from the field ``privacy`` of a summary."""
    if "epsilon_in" in privacy:
        return (
            f"changes cut to {privacy['clip']:g}, noise {privacy['noise']:g} times that by the {privacy['where']}; "
            f"ε is in {privacy['epsilon_in']}"
        )
    told = _about(privacy)
    if privacy.get("noise_from") == "seed":
        told += "; the noise follows from the seed, and whoever knows that can subtract it: --dp-secret-noise"
    if privacy["delta"] < LARGE_DELTA:
        return told
    return f"{told}; δ bounds how often this fails, and {privacy['delta']:.2g} is often: --dp-delta sets it"


def _about(privacy: Mapping[str, Any]) -> str:
    if privacy["level"] == "example" and "noise" in privacy:
        passes = f"{privacy['passes']:,} pass{'es' if privacy['passes'] != 1 else ''} over the data"
        return (
            f"{short_epsilon(privacy)} for one training example, against {privacy['hidden_from']}: gradients of "
            f"examples cut to {privacy['clip']:g}, noise {privacy['noise']:g} times that in every step, {passes}"
        )
    begin = f"{short_epsilon(privacy)} for all data of one client, against {privacy['hidden_from']}"
    if "noise" not in privacy:
        return begin
    clip = f"{privacy['clip']:g}"
    if "last_clip" in privacy:
        clip += f" at first and {privacy['last_clip']:.3g} at last"
    elif "adaptive_clip" in privacy:
        clip += f" at first, so that {100 * privacy['adaptive_clip']:g} % of the clients are within that"
    many = f"{privacy['participants']:,} of {privacy['clients']:,} clients"
    rounds = f"{privacy['rounds']:,} round{'s' if privacy['rounds'] != 1 else ''}"
    whose = "each client" if privacy["where"] == "client" else "the server"
    also = ""
    if "epsilon_zero_out" in privacy:
        also = f"; ε {privacy['epsilon_zero_out']:.2f} if a neighbour sends zero"
    elif "epsilon_of_models" in privacy:
        also = f"; ε {privacy['epsilon_of_models']:.2f} against those who see the shared model alone"
    # Local noise hides a client by the rounds in which it took part.
    when = f"{rounds} of each at most, {many} in one" if privacy["where"] == "client" else f"{rounds} of {many}"
    return f"{begin}: changes cut to {clip}, noise {privacy['noise']:g} times that by {whose}, {when}{also}"

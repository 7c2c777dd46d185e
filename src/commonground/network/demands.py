"""What a run must hide, and must not ask for, before a client takes part in it."""

from __future__ import annotations

import re
from pathlib import Path

from commonground.config import RunConfig
from commonground.data.described import Demand

__all__ = ["files_of_weights", "is_folder", "unmet"]


def unmet(demand: Demand | None, least_noise: float, config: RunConfig) -> str:
    """Why a client takes no part in a run that hides less than its owner demands, in its words; empty if it does.

    Args:
        demand: what is to be hidden at least: whole clients, or single examples; None if nothing.
        least_noise: the least --dp-noise.
        config: of the run.
    """
    if demand is None:
        return ""
    by_client = config.dp == "client" and config.dp_where == "client"
    if not (by_client or (demand == "example" and config.dp == "example")):
        wanted = "--dp client --dp-where client" + (" or --dp example" if demand == "example" else "")
        return f"this client takes part in runs with {wanted} alone, as its owner demands"
    if config.dp_noise is None or config.dp_noise < least_noise:
        return (
            f"this client takes part in runs with a --dp-noise of at least {least_noise:g} alone, as its owner "
            f"demands, and this one has {0 if config.dp_noise is None else config.dp_noise:g}"
        )
    return ""


def files_of_weights(config: RunConfig) -> dict[str, str]:
    """Settings that name weights on the disk to begin with, each with its value: a run over a network has none. Who
    answers a round would tell them to the server, which says what is read and by how little it is trained.
    """
    named = {"--init-from": config.init_from, "--set model.adapter": config.model_options.get("adapter")}
    return {name: str(value) for name, value in named.items() if value}


def is_folder(model: str) -> bool:
    """Whether a pretrained model (``hf:…``) is one on the disk, by its form or because it is there; else it is one of
    the hub's, which hold nothing of a client's.
    """
    location = model.removeprefix("hf:")
    return re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", location) is None or Path(location).exists()

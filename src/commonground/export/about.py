"""``config.json`` of an exported model: how its network is built and its samples are read; nothing of a client."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from commonground.algorithms import Algorithm
from commonground.algorithms.federated_lora import FederatedLoRA
from commonground.config import RunConfig
from commonground.data.formats import InputFormat, read_format
from commonground.data.tables.schema import TableSchema
from commonground.engine.network import plain_algorithm
from commonground.engine.run import Run
from commonground.engine.state.folder import SCHEMA, plain_settings
from commonground.engine.state.split_file import read_task
from commonground.engine.trained import Trained
from commonground.errors import RunError
from commonground.tasks import Task

__all__ = [
    "CONFIG",
    "SCHEMA",
    "About",
    "about",
    "graph_dtype",
    "in_order",
    "read_about",
    "rounding",
    "rounds_of",
    "whose",
]

CONFIG = "config.json"

# What the network is built by; the rest of a run's settings (paths of data among them) stays at home.
_SETTINGS = ("algorithm", "options", "model", "model_options", "body", "head", "batch_norm", "dtype", "seed")
_SECRET = {"seed"}  # of a private run: noise or who took part may follow from it
# What is known of samples and targets; names and counts of clients stay at home.
_DATA = ("sample_shape", "inputs", "fields", "whole", "task", "task_settings", "classes", "class_names", "preprocess")


def about(run: Run, client: int | None, format: str, schema: TableSchema | None) -> dict[str, Any]:
    """What ``config.json`` holds.

    Args:
        run: the run.
        client: whose model it is; None for the global one.
        format: how its weights are written.
        schema: of a table, as it travels.
    """
    settings, split = plain_settings(run.config), dict(run.trained.split)
    told = [name for name in _SETTINGS if run.config.dp is None or name not in _SECRET]
    if schema is not None:
        split["preprocess"] = asdict(schema.preprocess)
    if client is not None and client >= run.trained.clients:  # added later
        settings |= _of_plain_network(settings, plain_algorithm(run.config, run.trained.algorithm))
    return {
        "made_by": f"commonground {version('commonground')}",
        "format": format,
        "whose": "global" if client is None else in_order(run.trained, client),
        "settings": {name: settings[name] for name in told},
        "data": {name: split[name] for name in _DATA if name in split} | {"given": run.trained.given},
    }


def _of_plain_network(settings: Mapping[str, Any], plain: Algorithm) -> dict[str, Any]:
    """Which method builds the network of a client that was added to a run of these settings."""
    if isinstance(plain, FederatedLoRA):
        return {"options": {**settings["options"], "head": plain.head}}
    return {"algorithm": plain.name, "options": {}}


def in_order(trained: Trained, client: int) -> str:
    """A client by its number, which names nobody to whom the model may travel; said to be one where clients have names,
    which may be numbers as well.
    """
    return (
        f"client {client}" if trained.known.names[client] == str(client) else f"client number {client} (the first is 0)"
    )


def whose(trained: Trained, client: int | None) -> str:
    """Whose a model is, for the README.md beside it."""
    if client is None:
        return "global: the server's"
    return f"{in_order(trained, client)}'s own, of {len(trained.known.names)} clients"


def rounds_of(run: Run) -> str:
    """For a card, after how many rounds the models are those that they are."""
    if "rounds" not in run.summary:
        return f"some of {run.config.rounds}: the run is not finished"
    early = run.summary.get("early_stopping") or {}
    whole = f"{run.summary['rounds']}"
    return f"{early['best_round']} of {whole} (early stopping)" if "best_round" in early else whole


def rounding(config: RunConfig) -> list[tuple[str, str]]:
    """For a card, where the run computed its products in less than single precision: that the model does not."""
    if config.precision == "fp32":
        return []
    return [("products", f"float32 here; the run's own tests and predictions: {config.precision}")]


def graph_dtype(trained: Trained) -> str:
    """The type of the numbers that an exported graph takes: the model's, but for samples that single precision would
    round away before their mean is taken off. A table's inputs have what is common to them off by then.
    """
    in_double = trained.format.preprocess.in_double and trained.schema is None
    return "float64" if in_double else trained.config.dtype


class About(NamedTuple):
    """What ``config.json`` says of an exported model.

    Attributes:
        config: the run's settings, as far as the network follows from them.
        written: how the weights are written.
        given: whether the network was given as an object.
        form: of the samples.
        task: what is predicted.
        class_names: one per class (target, label).
    """

    config: RunConfig
    written: str
    given: bool
    form: InputFormat
    task: Task
    class_names: tuple[str, ...]


def read_about(folder: Path) -> About:
    """What is known of the exported model in a folder.

    Raises:
        RunError: it holds none, or ``config.json`` is damaged.
        ConfigError: its task is one of a user's own, which is not defined here.
    """
    path = folder / CONFIG
    try:
        read = json.loads(path.read_text("utf-8"))
        if "model_type" in read and "settings" not in read:
            raise RunError(f"'{folder}' holds a model of transformers'; its README.md says how that is loaded")
        config = RunConfig.model_validate(read["settings"] | {"data": "digits"})  # which data is not told
        data, written = read["data"], str(read["format"])
        missing = {*_DATA, "given"} - {*data} - {"fields", "whole"}  # which named inputs alone have
        if missing:
            raise ValueError(f"it lacks {', '.join(sorted(missing))}")
        if config.model is None:
            raise ValueError("its settings name no model")
        names = tuple(map(str, data["class_names"]))
        if len(names) != int(data["classes"]) or not names:
            raise ValueError(f"it has {data['classes']} classes and {len(names)} names of them")
        return About(config, written, bool(data["given"]), read_format(data), read_task(data), names)
    except FileNotFoundError:
        if (folder / "adapter_config.json").is_file():
            raise RunError(f"'{folder}' holds an adapter of peft's; its README.md says how that is loaded") from None
        raise RunError(f"'{folder}' holds no exported model (it has no {CONFIG})") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        said = f"it lacks {error}" if isinstance(error, KeyError) else str(error).splitlines()[0]
        raise RunError(f"'{path}' is damaged: {said}") from None

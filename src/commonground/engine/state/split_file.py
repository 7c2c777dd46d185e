"""``split.json``: what a model needs to know about its inputs, and who holds how many samples of which class."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from commonground.access import reason
from commonground.data import FederatedDataset
from commonground.errors import ConfigError, RunError
from commonground.quoting import quoted
from commonground.tasks import Task, tasks

__all__ = ["describe", "read_split", "read_task", "split_json"]

_ALWAYS = (
    "fingerprint", "sample_shape", "inputs", "task", "task_settings", "classes", "class_names", "client_names",
    "preprocess", "train",
)  # fmt: skip


OF_READING = ("max_length", "text_columns", "label_column", "client_column", "few_clients", "times", "image_size")
"""What is kept of how texts and pictures were read, for others like them."""


def describe(data: FederatedDataset) -> dict[str, Any]:
    """What a model needs to know about its inputs; no sample is in it. In ``split.json`` follow, as ``train`` and
    ``test``, the counts of each client's classes.
    """
    p = data.preprocess
    return {
        "name": data.name,
        "fingerprint": data.fingerprint(),
        "sample_shape": list(data.sample_shape),
        "task": data.task.name,
        "task_settings": asdict(data.task),
        **data.format.about(),
        "classes": data.classes,
        "class_names": list(data.class_names),
        "client_names": None if data.client_names is None else list(data.client_names),
        "preprocess": {"scale": p.scale, "mean": list(p.mean), "std": list(p.std)},
        **({"described": True} if data.described else {}),
        **{name: data.about[name] for name in OF_READING if name in data.about},
    }


def split_json(data: FederatedDataset) -> bytes:
    """The file, made without a list in memory for every client."""
    about = describe(data)
    text = json.dumps(about)[:-1]
    parts = [text.encode()]
    splits: tuple[Literal["train", "test"], ...] = ("train", "test")
    for split in splits:
        parts.append(f', "{split}": ['.encode())
        for n, counts in enumerate(data.class_counts_in_parts(split)):
            some = json.dumps(counts.tolist(), separators=(",", ":"))
            parts.append((("," if n else "") + some[1:-1]).encode())
        parts.append(b"]")
    return b"".join([*parts, b"}\n"])


def read_split(path: Path) -> dict[str, Any]:
    """The file's content.

    Raises:
        RunError: it is missing, not readable or not complete.
    """
    try:
        split = dict(json.loads(path.read_text("utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise RunError(f"'{path}' cannot be read: {reason(error, path)}") from None
    for key in _ALWAYS:
        if key not in split:
            raise RunError(f"'{path}' is damaged: it has no '{key}'")
    return split


def read_task(split: Mapping[str, Any]) -> Task:
    """The task that ``split.json`` names, with its settings.

    Raises:
        ConfigError: it is one of a user's own, which is not defined here.
    """
    if split["task"] not in tasks:
        raise ConfigError(
            f"the task {quoted(str(split['task']))} is defined by code of yours: import it before what was trained for "
            "it is used"
        )
    settings = {name: tuple(v) if isinstance(v, list) else v for name, v in split["task_settings"].items()}
    return tasks[split["task"]](**settings)

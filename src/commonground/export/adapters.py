"""A finished run's adapters, written as folders."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from commonground.adapters import peft_factors, write_adapter, write_merged
from commonground.algorithms import Tensors
from commonground.engine.run import Run, as_run
from commonground.errors import ConfigError
from commonground.export.adapter_card import model_card
from commonground.export.folders import Exported, Head, check_free, parts_of, whole
from commonground.export.reading import Reading, reading_of
from commonground.models import tensors_of
from commonground.models.adapted import AdaptedModel

__all__ = ["export_adapter"]


def export_adapter(
    run: str | os.PathLike[str] | Run,
    out: str | os.PathLike[str],
    *,
    client: str | int | Literal["all"] | None = None,
    merge: bool = False,
) -> list[Exported]:
    """Write a run's adapter as a folder that peft loads, or as a plain transformers model.

    ``PeftModel.from_pretrained(base, out)`` and ``AutoPeftModelFor…from_pretrained(out)`` load it. The folder appears
    whole or not at all.

    Args:
        run: a run's folder, or what :func:`~commonground.load_run` gave.
        out: the folder to write; it must be new or empty.
        client: the name or number of a client whose own model is meant, with its own head; by default the global
            adapter, whose head is untrained where every client has its own. ``all`` writes every client's into
            ``out/client-0``, ``out/client-1``, ….
        merge: whether to add the update to the base's weights and write a model that needs neither peft nor the base.

    Returns:
        What was written, a folder each.

    Raises:
        ConfigError: the run has no LoRA, no such client or nothing global; the extra is not installed; FLoRA's merged
            update has too large a rank for an adapter.
        RunError: the folder is taken or cannot be written, or there is no finished run.
    """
    target = Path(out)
    check_free(target)
    run = as_run(run)
    model = run.trained.network
    if not isinstance(model, AdaptedModel):
        raise ConfigError(
            f"{run.trained.where} has the model {run.config.model} and no LoRA adapter to export; train with "
            "--model hf:NAME_OR_FOLDER"
        )
    parts = parts_of(run.trained, client)
    _values(run, model, parts[0][1])  # refuses before anything is written

    reading = reading_of(run, model)

    def write(folder: Path) -> list[Exported]:
        return [_write_one(run, reading, folder / name, number, merge) for name, number in parts]

    done = whole(target, write)
    return [Exported(target / name, e.client, e.head, e.bytes) for (name, _), e in zip(parts, done, strict=True)]


def _values(run: Run, model: AdaptedModel, client: int | None) -> tuple[Tensors, Head]:
    """The tensors to write, and what the head among them is: where every client has its own, the global adapter's is
    the one that the run began with, since peft does not load a classifier without one.
    """
    values = run.trained.values_of(client)
    lacking = [name for name in tensors_of(model) if name not in values]
    if any(name not in model.head_names for name in lacking):
        raise ConfigError(
            f"{run.trained.algorithm.title} shares no adapter: the factors are every client's own; name one with "
            "--client"
        )
    frozen = [name for name in model.head_names if name in model.constants]
    state = model.state_dict()
    kind: Head = "untrained" if lacking else "frozen" if frozen else "trained" if model.head_names else "none"
    return {**values, **{name: state[name] for name in (*lacking, *frozen)}}, kind


def _write_one(run: Run, reading: Reading, folder: Path, client: int | None, merge: bool) -> Exported:
    folder.mkdir(exist_ok=True)
    model = reading.model
    values, head = _values(run, model, client)
    factors = None if merge else peft_factors(model, values)
    if factors is None:
        write_merged(folder, model, values, run.trained.split["class_names"], reading.pad_token)
    else:
        write_adapter(folder, model, values, factors)
    reading.write(folder)
    card = model_card(run, reading, client, factors, untrained=head == "untrained")
    (folder / "README.md").write_text(card, "utf-8")
    return Exported(folder, client, head, sum(file.stat().st_size for file in folder.glob("*.safetensors")))

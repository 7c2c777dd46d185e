"""A finished run's models, written as folders that can be taken away."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

import torch

from commonground.engine.portable import PortableModel
from commonground.engine.predictions import portable_model
from commonground.engine.run import Run, as_run
from commonground.errors import ConfigError
from commonground.export.about import CONFIG, SCHEMA, about, graph_dtype
from commonground.export.adapters import export_adapter
from commonground.export.card import card
from commonground.export.folders import Exported, check_free, parts_of, whole
from commonground.export.formats import FORMATS, Traced, write_tensors
from commonground.export.reading import Reading, reading_of
from commonground.export.tables import travelling_schema
from commonground.export.texts import traced_texts
from commonground.models.adapted import AdaptedModel
from commonground.suggest import meant

__all__ = ["Format", "export_model"]

Format = Literal["peft", "safetensors", "onnx", "torch"]


def export_model(
    run: str | os.PathLike[str] | Run,
    out: str | os.PathLike[str],
    *,
    client: str | int | Literal["all"] | None = None,
    format: Format | None = None,
    trust_code: bool = False,
) -> list[Exported]:
    """Write a client's own model, or the global one, as a folder for use elsewhere. It appears whole or not at all.

    - ``safetensors``: weights, ``config.json`` and, for tables, ``schema.json``; :func:`load_exported` reads it. Of a
      pretrained model, a plain transformers model with the adapter merged.
    - ``onnx`` and ``torch`` (``torch.export``): one file from raw samples to what the task says (class probabilities,
      numbers, probabilities of labels), scaling and the client's feature noise inside; any number of rows. Of a
      pretrained classifier, from tokens to probabilities.
    - ``peft``: the LoRA adapter of a pretrained model (:func:`export_adapter`).

    Args:
        run: a run's folder, or a :class:`Run`.
        out: the folder to write; it must be new or empty.
        client: a client's name or number; ``all`` writes every client's into ``out/client-0``, ``out/client-1``, …, of
            those that were added to the run as well; by default the global model.
        format: by default ``peft`` for pretrained models, ``safetensors`` for all others.
        trust_code: whether Python files that the run names may be run (see :func:`load_run`).

    Returns:
        What was written, a folder each.

    Raises:
        ConfigError: no such client or format for this run, no global model, or an extra is not installed.
        ModelError: the model cannot be written in this format.
        RunError: the folder is taken or cannot be written, or there is no finished run.
    """
    target = Path(out)
    check_free(target)
    run = as_run(run, trust_code=trust_code)
    pretrained = isinstance(run.trained.network, AdaptedModel)
    format = format or ("peft" if pretrained else "safetensors")
    if format not in get_args(Format):
        raise ConfigError(
            f"unknown format '{format}'{meant(format, get_args(Format))}; known are {', '.join(get_args(Format))}"
        )
    if format == "peft" or (pretrained and format == "safetensors"):
        return export_adapter(run, target, client=client, merge=format != "peft")
    parts = parts_of(run.trained, client)
    run.trained.values_of(parts[0][1])
    network = run.trained.network
    reading = reading_of(run, network) if isinstance(network, AdaptedModel) else None

    def write(folder: Path) -> list[Exported]:
        return [_write(run, folder / name, number, format, reading) for name, number in parts]

    done = whole(target, write)
    return [Exported(target / name, e.client, e.head, e.bytes) for (name, _), e in zip(parts, done, strict=True)]


def _write(run: Run, folder: Path, client: int | None, format: Format, reading: Reading | None) -> Exported:
    folder.mkdir(exist_ok=True)
    if format == "safetensors":
        model = _portable(run, client)
        weights = write_tensors(model.model, model.noise, folder)
    else:
        weights = FORMATS[format](_traced(run, client), folder)
        if reading is not None:
            reading.write(folder)
    schema = travelling_schema(run.trained, client)
    (folder / CONFIG).write_text(json.dumps(about(run, client, format, schema), indent=2) + "\n", "utf-8")
    if schema is not None:
        (folder / SCHEMA).write_text(schema.to_json(), "utf-8")
    (folder / "README.md").write_text(card(run, client, format, schema, reading), "utf-8")
    return Exported(folder, client, "trained", weights.stat().st_size)


def _portable(run: Run, client: int | None) -> PortableModel:
    """The model from raw rows on; a table's are scaled as the schema says that goes with it."""
    model, schema = portable_model(run.trained, client), travelling_schema(run.trained, client)
    if schema is not None:
        model.format = replace(model.format, preprocess=schema.preprocess)
    return model


def _traced(run: Run, client: int | None) -> Traced:
    """The model from its inputs to what the task says, with inputs to try it on."""
    trained = run.trained
    if isinstance(trained.network, AdaptedModel):
        return traced_texts(run, trained.network, client)
    model = _portable(run, client)
    return Traced(model, model.names, trained.format.example(getattr(torch, graph_dtype(trained))))

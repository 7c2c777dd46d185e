"""Exported models read again."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from commonground.algorithms import Algorithm, make_algorithm
from commonground.data.formats import Given
from commonground.data.tables.features import ignored, known_features
from commonground.data.tables.objects import is_table_object, table_of
from commonground.data.tables.schema import TableSchema
from commonground.engine.network import build_network
from commonground.engine.portable import PortableModel
from commonground.engine.run import Run
from commonground.errors import ConfigError, DataError, ModelError, RunError, warn
from commonground.export.about import SCHEMA, read_about
from commonground.export.formats import NOISE, fixed_tensors
from commonground.models import tensors_of
from commonground.user_code import is_code

__all__ = ["ExportedModel", "load_exported", "table_inputs"]


@dataclass(frozen=True, eq=False)
class ExportedModel:
    """A model taken away from its run.

    Attributes:
        folder: where it was read.
        portable: from raw samples to what the task says.
        class_names: of the classes, targets or labels.
        schema: of a table.
    """

    folder: Path
    portable: PortableModel
    class_names: tuple[str, ...]
    schema: TableSchema | None = None

    @property
    def module(self) -> nn.Module:
        """The network, in evaluation mode; it takes samples that are scaled already, images with channels first."""
        return self.portable.model

    def predict(self, x: Given) -> npt.NDArray[np.float64]:
        """As :meth:`Run.predict <commonground.Run.predict>` of the same client; of a table, also a DataFrame. In
        the run's own number type: what the run computed in bf16 or tf32 differs by its rounding.

        Raises:
            DataError: a column is missing, a cell does not fit, or the samples are not of the training samples' form.
        """
        if is_table_object(x) and self.schema is not None:
            x = _rows_of(x, self.schema)
        return self.portable.predict(x, f"the model in '{self.folder}'", torch.device("cpu"))


def load_exported(
    folder: str | os.PathLike[str],
    *,
    model: nn.Module | None = None,
    algorithm: Algorithm | None = None,
    trust_code: bool = False,
) -> ExportedModel:
    """Read what :func:`export_model` wrote as safetensors.

    Args:
        folder: the folder.
        model: where the run was given a module of your own: one of the same architecture, whose weights do not matter.
        algorithm: where the run was given an algorithm of your own: the same one.
        trust_code: whether Python files that the folder names (``file.py:Class``) may be run.

    Raises:
        RunError: the folder holds no such model, or a file is damaged.
        ConfigError: its network cannot be built by name, or would be made by running a file.
        ModelError: the given module does not fit.
    """
    path = Path(folder)
    config, written, given_as_object, form, task, class_names = read_about(path)
    if written != "safetensors":
        raise ConfigError(f"'{path}' holds a model as {written}; its README.md says how that is loaded")
    for what, text, given in (("model", config.model, model), ("algorithm", config.algorithm, algorithm)):
        if given is None and is_code(str(text)) and not trust_code:
            raise ConfigError(
                f"'{path}' has the {what} '{text}', whose code would be run: if you trust that file, say "
                f"trust_code=True, or give {what}= itself"
            )
    if given_as_object and model is None:
        raise ConfigError(
            f"the network of '{path}', {config.model}, was given as an object: load it with load_exported(folder, "
            "model=…), a module of the same architecture"
        )
    algorithm = algorithm or make_algorithm(config.algorithm, config.options)
    network, _ = build_network(config, algorithm, form.shape, len(class_names), model, task)
    noise = _fill(network, path)
    portable = PortableModel(network, form, task, getattr(torch, config.dtype), noise)
    return ExportedModel(path, portable, class_names, _schema(path))


def table_inputs(folder: str | os.PathLike[str] | Run, rows: Any) -> npt.NDArray[np.float32]:
    """Raw rows of a table as what an exported model takes as ONNX or ``torch.export``, whose graph begins where columns
    have become numbers.

    Args:
        folder: of :func:`export_model`, in any format, or of a run, whose ``schema.json`` says how; or the run itself.
        rows: a pandas DataFrame with the table's columns, in any order.

    Returns:
        [rows, inputs], not scaled: the exported model does that.

    Raises:
        RunError: the folder holds no schema, or a damaged one.
        ConfigError: it is of a run whose clients scale by their own statistics; an exported model has its own inside.
        DataError: a column is missing, or a cell does not fit.
    """
    if isinstance(folder, Run):
        where, schema = folder.trained.where, folder.trained.schema
    else:
        where, schema = f"'{Path(folder)}'", _schema(Path(folder))
    if schema is None:
        raise RunError(f"{where} holds no {SCHEMA}; only models of tables have one")
    if schema.client_scales:
        raise ConfigError(f"{where} is of a run that scales by each client's own statistics; export a client's model")
    return _rows_of(rows, schema)


def _rows_of(frame: Any, schema: TableSchema) -> npt.NDArray[np.float32]:
    """A DataFrame's rows as inputs; what is strange in them is warned of."""
    raw = table_of(frame)
    rows, strange = known_features(raw, schema)
    for sentence in (*ignored(raw.names, schema), *strange):
        warn(sentence)
    return rows


def _schema(folder: Path) -> TableSchema | None:
    path = folder / SCHEMA
    try:
        return TableSchema.from_json(path.read_text("utf-8"), str(path)) if path.is_file() else None
    except (OSError, UnicodeDecodeError, DataError) as error:
        raise RunError(f"'{path}' is damaged: {str(error).splitlines()[0]}") from None


def _fill(network: nn.Module, folder: Path) -> Tensor | None:
    """Put the folder's weights into a network; the client's feature noise, if there is any."""
    try:
        saved = load_file(folder / "model.safetensors")
    except (OSError, SafetensorError) as error:
        raise RunError(f"the weights in '{folder}' cannot be read: {str(error).splitlines()[0]}") from None
    noise = saved.pop(NOISE, None)
    live, fixed = tensors_of(network), fixed_tensors(network)
    if {*saved} & {*fixed}:  # earlier versions wrote none, but the seed from which they were drawn
        live |= fixed
    for name in sorted({*saved} ^ {*live}):
        where = "the network has no" if name in saved else "the folder lacks the"
        raise ModelError(f"'{folder}' is of another network: {where} tensor '{name}'")
    with torch.no_grad():
        for name, value in live.items():
            if value.shape != saved[name].shape:
                raise ModelError(
                    f"'{folder}' is of another network: '{name}' has the shape {tuple(saved[name].shape)} there and "
                    f"{tuple(value.shape)} in the network"
                )
            value.copy_(saved[name])
    return noise

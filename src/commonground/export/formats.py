"""How a model's weights are written: safetensors, ONNX, or a program of ``torch.export``."""

from __future__ import annotations

import importlib
import logging
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from commonground.errors import ConfigError, ModelError
from commonground.extras import pip_install
from commonground.models import tensors_of
from commonground.models.groups import constants_of

__all__ = ["FORMATS", "NOISE", "Traced", "write_onnx", "write_program", "write_tensors"]

# What the feature noise is called beside a network's tensors, none of which can have a space in its name.
NOISE = "feature noise"

# Largest difference between an ONNX file's outputs and the model's, of what the outputs are in size.
TOLERANCE = 1e-5

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")  # as terminals are told them


@dataclass(frozen=True)
class Traced:
    """A model to be written as a graph.

    Attributes:
        module: called with :attr:`example`, one tensor per input, whose leading axis is the batch.
        names: of the inputs.
        example: inputs of two rows.
        varying: further axes of every input whose sizes may differ from call to call, such as a text's length, and the
            largest size of each.
    """

    module: nn.Module
    names: Sequence[str]
    example: tuple[Tensor, ...]
    varying: Mapping[int, int] = field(default_factory=dict)

    def dynamic(self) -> tuple[dict[int, Any], ...]:
        """The axes whose sizes are free, for every input."""
        further = {axis: torch.export.Dim(f"size_{axis}", min=2, max=most) for axis, most in self.varying.items()}
        free = {0: torch.export.Dim("rows", min=1)} | further
        return tuple(dict(free) for _ in self.example)


def fixed_tensors(network: nn.Module) -> dict[str, Tensor]:
    """The tensors of a network that no training changes, by name."""
    fixed = constants_of(network)
    return {name: value for name, value in network.state_dict().items() if name in fixed}


def write_tensors(network: nn.Module, noise: Tensor | None, folder: Path) -> Path:
    """``model.safetensors``: every parameter and buffer of the network by name, and the feature noise, if any; what no
    training changes, such as the base under LoRA, among them.
    """
    path = folder / "model.safetensors"
    tensors = tensors_of(network) | fixed_tensors(network) | ({} if noise is None else {NOISE: noise})
    save_file({name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}, path)
    return path


def write_program(model: Traced, folder: Path) -> Path:
    """``model.pt2``, which ``torch.export.load`` reads without any of this library.

    Raises:
        ModelError: the model cannot be written as a program.
    """
    path = folder / "model.pt2"
    with _told("a program of torch.export"), torch.no_grad():
        program = torch.export.export(model.module, model.example, dynamic_shapes=_shapes(model))
        program._example_inputs = None  # made-up samples are of no use to anybody
        torch.export.save(program, path)
        again = torch.export.load(path).module()
        _check(again(*model.example).numpy(), model)
    return path


def write_onnx(model: Traced, folder: Path) -> Path:
    """``model.onnx``, compared with the model by ONNX Runtime before it is handed out.

    Raises:
        ConfigError: the extra is not installed.
        ModelError: the model cannot be written as ONNX.
    """
    try:
        importlib.import_module("onnxscript")
        runtime: Any = importlib.import_module("onnxruntime")
    except ImportError:
        raise ConfigError(f"--format onnx needs the extra: {pip_install('onnx')}") from None
    path = folder / "model.onnx"
    with _told("ONNX"), torch.no_grad():
        torch.onnx.export(
            model.module,
            model.example,
            path,
            input_names=list(model.names),
            output_names=["prediction"],
            dynamic_shapes=_shapes(model),
            dynamo=True,
            external_data=False,
            verbose=False,
        )
        session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
        given = {name: value.numpy() for name, value in zip(model.names, model.example, strict=True)}
        _check(session.run(None, given)[0], model)
    return path


FORMATS: dict[str, Callable[[Traced, Path], Path]] = {"onnx": write_onnx, "torch": write_program}
"""Formats of graphs by name."""


def _shapes(model: Traced) -> Any:
    """The free axes, by the names of the module's arguments."""
    dynamic = model.dynamic()
    return {"samples": dynamic}


def _check(said: np.ndarray[Any, Any], model: Traced) -> None:
    with torch.no_grad():
        wanted = model.module(*model.example).numpy()
    off = float(np.abs(said - wanted).max(initial=0)) / max(1.0, float(np.abs(wanted).max(initial=0)))
    if not off <= TOLERANCE:
        raise ModelError(f"what was written differs from the model by {off:.1e} of its outputs' size")


def _cause(error: BaseException) -> str:
    """What was in the way, in a line: an exporter says it last, below its own words and their colours."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = (line.strip() for line in _COLOURS.sub("", str(error)).splitlines())
    return next(filter(None, lines), type(error).__name__)


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Exporters fail in many ways and talk much: one sentence, and quiet."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except (ConfigError, ModelError, OSError):
        raise
    except Exception as error:
        raise ModelError(
            f"the model cannot be written as {what} ({_cause(error)[:200]}); take --format safetensors"
        ) from error
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)

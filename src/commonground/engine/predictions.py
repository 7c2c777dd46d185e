"""What a run's models say of raw samples: class probabilities, numbers, outputs and representations."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from commonground.data.formats import Given
from commonground.data.inputs import Inputs
from commonground.data.tables.features import known_features
from commonground.data.tables.objects import is_table_object, table_of
from commonground.devices import resolve_device
from commonground.engine.portable import PortableModel, model_inputs
from commonground.engine.trained import Trained
from commonground.errors import ConfigError, ModelError
from commonground.generators import keyed_generators
from commonground.models.adapted_kinds import ClassifyingModel
from commonground.models.behaviour import held_generators
from commonground.models.heads import head_module, inputs_of
from commonground.user_code import failing_as

__all__ = [
    "device_of",
    "inputs_for",
    "outputs_of",
    "portable_model",
    "predictions_of",
    "representation_of",
    "stored_rows",
]


def predictions_of(trained: Trained, x: Given, client: int | None) -> npt.NDArray[np.float64]:
    """What a client's own model (None: the global one) says of raw samples [n, …] (stored as the training data: images
    channels last, values unscaled), as the run's task does: class probabilities [n, classes], numbers [n, targets], ….

    Args:
        trained: the run.
        x: the samples; where the data have several inputs, a mapping from their names to arrays; of a table also a
            DataFrame.
        client: its number.

    Raises:
        RunError: the feature noise cannot be read.
        DataError: names or shape of the samples differ from the training data's, or a value is not finite.
    """
    return trained.task.predict(outputs_of(trained, stored_rows(trained, x, client), client))


def outputs_of(trained: Trained, x: Given, client: int | None, whose: int | None = None) -> Tensor:
    """What a client's own model (None: the global one) returns for raw samples [n, …], on the host; ``whose`` as of
    :func:`portable_model`.
    """
    return _computed(trained, portable_model(trained, client, whose), x, client)


def representation_of(trained: Trained, x: Given, client: int | None) -> npt.NDArray[np.floating[Any]]:
    """What a client's own model (None: the global one) gives to its head for samples as of :func:`predictions_of`.

    Raises:
        ModelError: no single submodule of the model is its head.
    """
    x = stored_rows(trained, x, client)
    portable = portable_model(trained, client)
    head = None if trained.task.generative else head_module(portable.model, trained.groups)
    if head is None:
        raise ModelError(
            f"{trained.where} has no representation to show: no single submodule of its model, applied to every "
            "sample, is the head"
        )
    of_texts = portable.model if isinstance(portable.model, ClassifyingModel) else None
    with inputs_of(head) as given, nullcontext(given) if of_texts is None else of_texts.states_for(head) as states:
        said = _computed(trained, portable, x, client)
    shown = torch.cat(states)
    exact = trained.config.precision == "fp32" and trained.dtype.itemsize >= 4
    picks = of_texts is not None and any(one.ndim > 2 for one in given)
    if picks and not _answers_by(head, shown, said, 1e-3 if exact else 0.05):
        raise ModelError(
            f"{trained.where} has no representation to show: the head of {trained.config.model} is given the states of "
            "all tokens, and answers by more than one of them"
        )
    return shown.to("cpu", trained.dtype).numpy()


def _answers_by(head: torch.nn.Module, shown: Tensor, said: Tensor, error: float) -> bool:
    """Whether a head that is given all tokens' states says the same of one alone."""
    with torch.no_grad():
        again = head(shown.unsqueeze(1).to(next(head.parameters()).dtype)).reshape(said.shape).to(said)
    return torch.allclose(again, said, rtol=0, atol=error * float(said.abs().max()))


def portable_model(trained: Trained, client: int | None, whose: int | None = None) -> PortableModel:
    """A client's own model (None: the global one; see :meth:`Trained.model`) from raw samples to what the task says.

    In a run with feature noise, a client's samples are changed by its foreign image as they were in training; with no
    client they stay as they are.

    Args:
        trained: the run.
        client: its number.
        whose: the client whose samples are given, where the global model is asked.

    Raises:
        RunError: the feature noise cannot be read.
    """
    noise = trained.noise_of(client if whose is None else whose)
    model, precision = trained.model(client), trained.config.precision
    return PortableModel(model, trained.format, trained.task, trained.dtype, noise, precision)


def inputs_for(trained: Trained, x: Given, client: int | None = None) -> Inputs:
    """Raw samples as the network's inputs (:func:`~commonground.engine.portable.model_inputs`)."""
    return model_inputs(x, trained.format, trained.dtype, trained.noise_of(client), trained.where)


def stored_rows(trained: Trained, x: Given, client: int | None) -> Given:
    """Samples as they are stored: a table's rows, its columns taken by name; whatever else is given is left as it
    is.

    Raises:
        ConfigError: the run was not trained on a table.
        DataError: a column is missing or a cell does not fit.
    """
    if not is_table_object(x):
        return x
    if trained.schema is None:
        raise ConfigError(f"{trained.where} was not trained on a table, so that it knows no columns; give an array")
    rows, _ = known_features(table_of(x), trained.schema)
    trained.scale(rows, client)
    return rows


def device_of(trained: Trained) -> torch.device:
    """Where predictions are computed: the run's own device, or the CPU on a machine that does not have it."""
    try:
        return resolve_device(trained.config.device)
    except ConfigError:
        return torch.device("cpu")


def _computed(trained: Trained, portable: PortableModel, x: Given, client: int | None) -> Tensor:
    held = held_generators(portable.model)
    with (
        failing_as("the model's prediction failed"),
        keyed_generators(trained.config.seed, "predict", str(client), others=held),
    ):
        return portable.outputs(x, trained.where, device_of(trained))

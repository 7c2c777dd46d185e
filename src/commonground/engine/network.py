"""The network a configuration names, as its method extends it, with its parameter groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import nn

from commonground.adapters import load_adapter
from commonground.algorithms import Algorithm, make_algorithm, registry
from commonground.algorithms.federated_lora import FederatedLoRA
from commonground.algorithms.head_tuning import HeadTuning
from commonground.algorithms.local import LocalOnly
from commonground.config import RunConfig
from commonground.engine.given_by_hooks import what_is
from commonground.errors import ModelError
from commonground.models import Groups, available_models, build_model, groups_of, is_pretrained, keyed_weights, prepare
from commonground.tasks import CLASSIFICATION, Task
from commonground.user_code import failing_as, is_code

__all__ = ["base_model", "build_network", "named_groups", "named_model", "plain_algorithm", "plain_network"]


def base_model(
    config: RunConfig,
    shape: Sequence[int],
    classes: int,
    model: nn.Module | None = None,
    task: Task = CLASSIFICATION,
) -> nn.Module:
    """The model that a run's method is given, which may extend it; arguments as of :func:`build_network`."""
    if model is not None:
        return model
    assert config.model is not None
    options = dict(config.model_options)
    start = ""
    if is_pretrained(config.model):
        options |= {"generative": task.generative}
        start = options.pop("adapter", "")
    dtype = getattr(torch, config.dtype)
    model = build_model(config.model, shape, classes, seed=config.seed, options=options, dtype=dtype)
    if start:
        load_adapter(start, model)
    return model


def build_network(
    config: RunConfig,
    algorithm: Algorithm,
    shape: Sequence[int],
    classes: int,
    model: nn.Module | None = None,
    task: Task = CLASSIFICATION,
) -> tuple[nn.Module, Groups]:
    """The model a run trains, with its parameter groups.

    Args:
        config: names the model and its groups, every automatic setting resolved. The option ``adapter`` of a model
            ``hf:…`` is the folder of an adapter to start from, in peft's format; its rank, alpha, target modules and
            layers must be the model's (:func:`~commonground.adapters.load_adapter`).
        algorithm: may extend the model.
        shape: one sample's shape as the model sees it.
        classes: number of classes.
        model: a module to use in place of the named one.
        task: what the data are for, which a pretrained model has to know.
    """
    dtype = getattr(torch, config.dtype)
    model = base_model(config, shape, classes, model, task)
    groups = named_groups(config, model)
    with failing_as(f"the model cannot be extended for {algorithm.title}"), keyed_weights(config.seed, "extension"):
        extended = algorithm.extend_model(model, groups)
    if not isinstance(extended, nn.Module):
        raise ModelError(
            f"extend_model of {algorithm.title} gives {what_is(extended)} in place of a module; let it return the "
            "model that it is given, or another one"
        )
    # Anew: a method may also have made a part of the model constant.
    patterns = groups_of(extended) if extended is not model else _patterns(config, extended)
    groups = Groups(extended, patterns, local_statistics=config.batch_norm == "local")
    return prepare(extended, shape, dtype), groups


def named_model(config: RunConfig) -> bool:
    """Whether a configuration says how its model is built, be that by a file of a user's; else it was an object."""
    return config.model in available_models() or is_pretrained(config.model) or is_code(str(config.model))


def named_groups(config: RunConfig, model: nn.Module) -> Groups:
    """A model's groups before a method extends it."""
    return Groups(model, _patterns(config, model))


def _patterns(config: RunConfig, model: nn.Module) -> Mapping[str, Sequence[str]]:
    """Patterns of the groups' names: those that the configuration says, else the model's own."""
    said = {"body": config.body, "head": config.head}
    return {group: tuple(names.split(",")) for group, names in said.items() if names} or groups_of(model)


def plain_network(
    config: RunConfig, algorithm: Algorithm, shape: Sequence[int], classes: int, task: Task
) -> tuple[nn.Module, Groups]:
    """The network of a client that took no part: a body and a head (see :func:`plain_algorithm`); arguments as of
    :func:`build_network`.
    """
    return build_network(config, plain_algorithm(config, algorithm), shape, classes, task=task)


def plain_algorithm(config: RunConfig, algorithm: Algorithm) -> Algorithm:
    """The method that builds the network of a client that took no part: a body and a head, whatever else the run's own
    method puts into it.

    A federated LoRA method has put its factors into the body, and maybe more (FLoRA's merged updates), which stays; the
    head is the client's own.

    Args:
        config: the run's configuration.
        algorithm: the run's method, or the fine-tuning after it.
    """
    # By its name alone, so that no file of a user's is run here.
    if isinstance(algorithm, HeadTuning) and issubclass(registry.get(config.algorithm, Algorithm), FederatedLoRA):
        algorithm = make_algorithm(config.algorithm, config.options)
    return replace(algorithm, head="personal") if isinstance(algorithm, FederatedLoRA) else LocalOnly()

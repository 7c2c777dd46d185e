"""From a configuration to a run's setup: data, model and algorithm, checked against each other."""

from __future__ import annotations

import os
from collections.abc import Mapping
from copy import copy
from dataclasses import fields, replace
from typing import Any

import torch
from torch import nn

from commonground.algorithms import Algorithm, check_object, make_algorithm
from commonground.algorithms.federated_lora import FederatedLoRA
from commonground.ambient import as_usual
from commonground.config import RunConfig
from commonground.data import (
    FederatedDataset,
    add_feature_noise,
    available_sources,
    hold_out,
    kind_of,
    limit_samples,
    load_data,
)
from commonground.data.directory import data_directory
from commonground.data.glove import GLOVE
from commonground.data.model_inputs import check_fits
from commonground.data.normalization import normalize
from commonground.data.partition_texts import is_own_partition
from commonground.data.tables.objects import is_table_object
from commonground.data.tables.options import TableOptions
from commonground.engine.build import build_setup
from commonground.engine.clients.optimizers import OptimizerName
from commonground.engine.network import base_model, build_network
from commonground.engine.option_checks import check_in_vain, check_options, check_updates
from commonground.engine.own_metrics import check_metrics, metrics_of
from commonground.engine.private.examples import with_noise_found
from commonground.engine.private.settings import check_privacy, check_private_data, resolve_privacy
from commonground.engine.setup import Setup
from commonground.engine.warm_start import InitialWeights, start_for
from commonground.errors import ConfigError, ModelError
from commonground.models import (
    Groups,
    is_pretrained,
    start_of,
    vocab_size_of,
)
from commonground.models.adapted import AdaptedModel
from commonground.tasks import OwnLoss, OwnMetric, Rank
from commonground.user_code import check_code, check_takes, is_code, load_object

__all__ = [
    "check_objects",
    "checked_algorithm",
    "data_of",
    "named",
    "prepare_setup",
    "reading",
    "resolve",
]


def named(data: FederatedDataset | str | os.PathLike[str]) -> FederatedDataset | str:
    """Data as an object, or by their name; a path is one."""
    return os.fspath(data) if isinstance(data, os.PathLike) else data


def check_objects(data: object, model: object, settings: Mapping[str, Any]) -> None:
    """Refuse what is neither a name nor an object of the right kind, and settings that would read, split or build what
    is given as an object.

    Raises:
        ConfigError: says which and what it is.
    """
    if not isinstance(data, str | FederatedDataset):
        made = "; load_data(frame, client_column=…, target=…) makes one of a table" if is_table_object(data) else ""
        raise ConfigError(
            f"data must be a name or a FederatedDataset (see FederatedDataset.from_arrays), not a {type(data).__name__}"
            f"{made}"
        )
    if model is not None and not isinstance(model, str | nn.Module):
        raise ConfigError(f"model must be a name or an nn.Module object, not {model!r}")
    if isinstance(model, nn.Module) and settings.get("model_options"):
        options = settings["model_options"]
        raise ConfigError(f"model_options={options!r} build a model by name; this one is built already")
    if isinstance(data, FederatedDataset):
        for key in ("target", *(option.name for option in fields(TableOptions))):
            if settings.get(key) is not None:
                raise ConfigError(f"{key}={settings[key]!r} says how a table is read; this data set is read already")
        for key, own in (("clients", data.clients), ("classes_per_client", None), ("partition", None)):
            if settings.get(key) not in (None, own):
                raise ConfigError(f"{key}={settings[key]!r} splits a data set given by name; this one is split already")


def resolve(config: RunConfig, data: FederatedDataset, algorithm: Algorithm) -> RunConfig:
    """Fill in what was left to us: clients and feature noise as the data has them, model, optimizer and rate that suit
    it.
    """
    optimizer = _optimizer(config, data, algorithm)
    rate = data.format.usual_lr(optimizer, small=data.name == "digits" or len(data.sample_shape) == 1)
    momentum = algorithm.default_momentum
    return config.model_copy(
        update={
            "clients": data.clients,
            "feature_noise": 0.0 if data.noise is None else data.noise.strength,
            "model": config.model or _usual_model(config.data, data),
            "lr": config.lr or min(rate, data.task.highest_default_lr),
            "optimizer": optimizer,
            **({} if momentum is None or "momentum" in config.model_fields_set else {"momentum": momentum}),
            **resolve_privacy(config, data.clients, algorithm, int(data.train_sizes.sum())),
        }
    )


def _usual_model(name: str, data: FederatedDataset) -> str:
    """The model that is used when the user names none; the samples say it, since the name of data that are given as an
    object may be that of any file here.

    Raises:
        ConfigError: the data are texts.
    """
    if data.tokens:
        raise ConfigError(
            f"the data '{name}' are texts, for which there is no usual model: choose one, as in --model hf:roberta-base"
        )
    named = next((source.model for source in available_sources() if source.name == name), "")
    pictures = bool(data.about) and len(data.sample_shape) == 3  # read of files: how is known of no arrays
    return named or ("cnn" if pictures else "mlp")


def _with_vectors(config: RunConfig, data_dir: str | None) -> RunConfig:
    """The word vectors of the recurrent model are where the data are; whoever loads the run later is told so."""
    if config.model != "lstm" or data_dir is None or "embedding" in config.model_options:
        return config
    options = {**config.model_options, "embedding": str(data_directory(data_dir) / GLOVE)}
    return config.model_copy(update={"model_options": options})


def _check_length(config: RunConfig, data: FederatedDataset) -> None:
    """Refuse a length of texts that is not the one to which they were cut.

    Raises:
        ConfigError: says both.
    """
    cut = data.about.get("max_length")
    asked = config.model_options.get("max_length", cut)
    if cut is not None and is_pretrained(config.model) and asked != cut:
        raise ConfigError(
            f"model.max_length is {asked!r}, and the texts of {data.name} were cut to {cut} tokens when they were "
            "read: load_data(…, max_length=…) says it of them"
        )


def _check_places(config: RunConfig, data: FederatedDataset, network: nn.Module) -> None:
    """Refuse texts of more tokens than a pretrained model has places for, whatever its tokenizer says.

    Raises:
        ConfigError: says how many it has, and how texts are cut to them.
    """
    most = network.places if isinstance(network, AdaptedModel) and data.tokens else None
    longest = max((int(x[:, 0, 1].max(initial=0)) for x in (data.x_train, data.x_test)), default=0) if most else 0
    if most is not None and longest > most:
        raise ConfigError(
            f"the texts of {data.name} have up to {longest} tokens, and the model '{config.model}' reads at most "
            f"{most}: cut them with --set model.max_length={most}"
        )


def _optimizer(config: RunConfig, data: FederatedDataset, algorithm: Algorithm) -> OptimizerName:
    """The run's optimizer: what suits the samples, for texts AdamW.

    A method whose step is SGD keeps it, and so does who gives a momentum, which is SGD's.
    """
    if config.optimizer is not None:
        return config.optimizer
    plain = algorithm.needs_sgd or "momentum" in config.model_fields_set
    return "sgd" if plain else data.format.usual_optimizer


def checked_algorithm(config: RunConfig, algorithm: Algorithm | None = None) -> Algorithm:
    """The method of a configuration, after what its settings alone make impossible or vain is refused.

    Args:
        config: the run's configuration.
        algorithm: an object to use in place of the named one.

    Raises:
        ConfigError: there is no such method or hyperparameter, or a setting that it does not go with.
    """
    if algorithm is None:
        algorithm = make_algorithm(config.algorithm, config.options)
    else:
        check_object(algorithm)
    check_in_vain(config, algorithm)
    check_options(config, algorithm)
    check_privacy(config, algorithm)
    if config.finetune != "head" and not config.finetune_epochs:
        raise ConfigError(
            f"--finetune {config.finetune} says what fine-tuning trains, and there is none; add --finetune-epochs 10, "
            "or leave it out"
        )
    if not isinstance(algorithm, FederatedLoRA):  # of these, it is the network that decides
        _check_global_model(config, algorithm)
    if config.finetune_epochs and config.batch_norm == "local":
        raise ConfigError(
            f"--finetune-epochs {config.finetune_epochs} needs one global model, and with --batch-norm local there is "
            "none: every client has BatchNorm statistics of its own"
        )
    return algorithm


def _check_global_model(config: RunConfig, algorithm: Algorithm) -> None:
    """Refuse to fine-tune where there is no global model."""
    if config.finetune_epochs and not algorithm.has_global_model:
        raise ConfigError(
            f"--finetune-epochs {config.finetune_epochs} needs a method with one global model; {algorithm.title} has "
            "none"
        )


def _check_tuned(config: RunConfig, algorithm: Algorithm, groups: Groups) -> None:
    """Refuse fine-tuning that would train nothing, once the network is known."""
    _check_global_model(config, algorithm)
    if config.finetune_epochs and not groups.trainable(config.finetune):
        raise ConfigError(
            f"--finetune-epochs {config.finetune_epochs} trains each client's head, and in {algorithm.title} on this "
            "model there is no head to tune; take --finetune all"
        )


@as_usual()
def prepare_setup(
    config: RunConfig,
    data: FederatedDataset | None = None,
    model: nn.Module | None = None,
    algorithm: Algorithm | None = None,
    *,
    loss: OwnLoss | None = None,
    metrics: Mapping[str, OwnMetric] | None = None,
    data_dir: str | None = None,
) -> Setup:
    """Load what a configuration names and check that it fits together.

    Args:
        config: the run's configuration.
        data, model, algorithm, loss, metrics: objects to use in place of what the configuration names.
        data_dir: folder of the data files.
    """
    algorithm = checked_algorithm(config, algorithm)
    if isinstance(algorithm, FederatedLoRA):
        algorithm = copy(algorithm)  # whether its network has a head, which it notes, is a matter of this run alone
    start = start_for(config, model)
    config = start.fill(config)
    data = data_of(config, start, data, data_dir)
    check_private_data(config, algorithm, data)
    shared = data.few_rows.get("how") == "shared"
    if shared and not algorithm.has_global_model:
        raise ConfigError(
            f"--few-rows shared serves clients with few rows by the global model, and {algorithm.title} has none; take "
            "--few-rows pool, or a method such as fedavg"
        )
    if shared and data.schema is not None and data.schema.client_scales:
        raise ConfigError(
            "--few-rows shared serves clients with few rows by the global model, and with --scaling client it knows no "
            "scales of theirs; take --few-rows pool, or another --scaling"
        )
    metrics = metrics_of(config.metric) if metrics is None else metrics
    check_metrics(metrics, data.task)
    Rank.of(config.rank_by, data.task, metrics)  # refuses what there is not
    check_updates(config, data.clients)
    check_fits(data, getattr(torch, config.dtype))
    federation = config.federation(data.clients)
    config = _with_vectors(resolve(config, data, algorithm), data_dir)
    _check_length(config, data)
    if model is None and data.tokens != is_pretrained(config.model):
        why = ("cannot read texts; choose one as in --model hf:roberta-base", f"reads texts, and {data.name} is none")
        raise ConfigError(f"the model '{config.model}' {why[is_pretrained(config.model)]}")
    own = model is not None or is_code(str(config.model))
    model = base_model(config, data.format.shape, data.classes, model, data.task)
    begun = start.put_into(model, config, data)
    first = start_of(model) if own or begun is not None else None
    network, groups = build_network(config, algorithm, data.format.shape, data.classes, model, data.task)
    _check_tuned(config, algorithm, groups)
    vocabulary = vocab_size_of(network)
    if vocabulary is not None and data.vocabulary > vocabulary:
        raise ModelError(
            f"the tokenizer of {data.name} gives token {data.vocabulary - 1}, but the model '{config.model}' knows "
            f"only {vocabulary} tokens"
        )
    _check_places(config, data, network)
    setup = build_setup(config, data, network, groups, algorithm, first, _own_loss(config, loss), metrics)
    return with_noise_found(replace(setup, init_from=begun), federation)


def data_of(
    config: RunConfig, start: InitialWeights, data: FederatedDataset | None = None, data_dir: str | None = None
) -> FederatedDataset:
    """The clients' data as a run takes them: read, dealt, cut, normalised, with noise and with rows held out.

    Args:
        config: the run's configuration.
        start: how the run begins, which may say how data are read.
        data: read already, in place of what the configuration names.
        data_dir: folder of the data files.

    Raises:
        ConfigError: the data are for another task.
    """
    if data is None:
        # A column of the data knows its clients; otherwise the papers' number, or what suits the small digits.
        natural = kind_of(config.data).partition if config.classes_per_client is None else ""
        by_column = config.client_column is not None or (config.partition or natural).startswith("column")
        own = is_code(config.data) or is_own_partition(config.partition)
        usual = None if by_column or own else 20 if config.data == "digits" else 100
        data = load_data(
            config.data,
            config.clients or usual,
            classes_per_client=config.classes_per_client,
            partition=config.partition,
            seed=config.seed,
            data_dir=data_dir,
            label=config.target,
            task=config.task,
            **config.table_settings(),
            **reading(config),
            **start.reading(config),
        )
    data = start.as_read(data)
    if config.task not in (None, data.task.name):
        raise ConfigError(f"--task {config.task} is not what the data are for, which is {data.task.name}")
    if config.train_samples is not None:
        data = limit_samples(data, "train", config.train_samples, config.seed, by_class=config.draws_by_class)
    if config.test_samples is not None:
        data = limit_samples(data, "test", config.test_samples, config.seed)
    if config.normalize is not None:
        data = normalize(data, config.normalize)
    if config.feature_noise and (data.noise is None or data.noise.strength != config.feature_noise):
        data = add_feature_noise(data, config.feature_noise, config.seed)
    if config.validation_fraction and data.validation_index is None:
        data = hold_out(data, config.validation_fraction, config.seed, by_class=config.draws_by_class)
    return data


def _own_loss(config: RunConfig, given: OwnLoss | None) -> OwnLoss | None:
    """The user's loss, given as an object or named by the configuration; None if there is none.

    Raises:
        ConfigError: there is no such function, it takes something else, or it was given as an object.
    """
    if given is None and config.loss is None:
        return None
    name = str(config.loss)
    if given is None:
        check_code(name, "loss", "loss=f")
        given = load_object(name, "loss", "function")
    if not callable(given):
        raise ConfigError(f"the loss '{name}' names a {type(given).__name__}, not a function")
    check_takes(given, f"the loss '{name}'", "outputs", "targets")
    return given


def reading(config: RunConfig, data: str | None = None) -> dict[str, Any]:
    """How texts become tokens: by the model's own tokenizer; arguments of :func:`load_data`.

    Args:
        config: names the model.
        data: a name, if other data than the configuration's are meant.
    """
    data = data or config.data
    if not (is_pretrained(config.model) and (is_code(data) or kind_of(data).takes_tokenizer)):
        return {}
    return {"tokenizer": config.model, "max_length": int(config.model_options.get("max_length", 128))}

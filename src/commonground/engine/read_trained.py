"""Reading from a run's folder what it has trained."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from commonground.algorithms import Algorithm, make_algorithm
from commonground.algorithms.head_tuning import tuning
from commonground.config import RunConfig
from commonground.data.formats import read_format
from commonground.engine.network import base_model, build_network, named_model
from commonground.engine.own_code import code_of
from commonground.engine.state.checkpoint import Checkpoint
from commonground.engine.state.digests import digest
from commonground.engine.state.folder import SCHEMA, START, RunFolder
from commonground.engine.state.split_file import read_task
from commonground.engine.trained import Trained
from commonground.errors import ConfigError, RunError, warn
from commonground.models import Groups, base_sha256_of, restored
from commonground.tasks import tasks
from commonground.user_code import is_code, load_object, untrusted

__all__ = ["read_trained", "weights_in"]


def read_trained(
    folder: RunFolder,
    *,
    model: nn.Module | None = None,
    algorithm: Algorithm | None = None,
    trust_code: bool = False,
) -> Trained:
    """What the run in a folder has trained so far.

    Args:
        folder: of the run.
        model, algorithm: objects in place of what the configuration names.
        trust_code: whether Python files that the configuration names may be run.

    Raises:
        RunError: it has no checkpoint yet, or a file is damaged.
        ConfigError: the configuration names what cannot be made by name, or a Python file that is not trusted.
        ModelError: the given model does not fit.
    """
    path, config, split = folder.path, folder.config(), folder.split()
    if config.model is None or config.lr is None:
        raise RunError(f"'{path / 'config.toml'}' is damaged: it lacks the model or the learning rate")
    _check_code(path, config, model, algorithm, trust_code)
    checkpoint, best = _checkpoint(folder, config)
    fixed = ("split.json", SCHEMA, START)  # which are read below
    folder.check_files({name: checkpoint.files[name] for name in fixed if name in checkpoint.files})
    if algorithm is None:
        algorithm = make_algorithm(config.algorithm, config.options)
    elif not isinstance(algorithm, Algorithm):
        raise ConfigError(f"algorithm must be an Algorithm object, such as FedRep(), not {algorithm!r}")
    else:
        _check_same(path, config, algorithm)
    if trust_code and split["task"] not in tasks and is_code(config.data):
        load_object(config.data, "data", "function")  # where a task of the user's own may be defined
    network, groups = _network(folder, config, split, algorithm, model)
    _check_whole(folder, config, split, checkpoint, best)
    _check_same_weights(path, config, network, checkpoint)
    tuned = config.finetune_epochs > 0 and folder.finished
    return Trained(
        path,
        config,
        tuning(config.finetune, config.finetune_epochs) if tuned else algorithm,
        network,
        groups,
        checkpoint.shared,
        len(split["train"]),
        {name: value for name, value in split.items() if name not in ("train", "test")},
        checkpoint,
        model is not None,
        folder.schema() if SCHEMA in checkpoint.files else None,
        trusted=trust_code,
    )


def _network(
    folder: RunFolder, config: RunConfig, split: Mapping[str, Any], algorithm: Algorithm, model: nn.Module | None
) -> tuple[nn.Module, Groups]:
    """The run's network with its initial weights.

    Raises:
        ConfigError: a module is needed and none is given, or the other way round.
        ModelError: the given one does not fit.
    """
    start, shape, task = folder.start(), read_format(split).shape, read_task(split)
    if start is not None:
        if model is None:
            if not named_model(config):
                raise ConfigError(
                    f"the model of the run in '{folder.path}', {config.model}, was given as an object: load it with "
                    "load_run(folder, model=…), a module of the same architecture"
                )
            model = base_model(config, shape, split["classes"], task=task)
        model = restored(model, start, f"the run in '{folder.path}'")
    elif model is not None:
        raise ConfigError(
            f"the model of the run in '{folder.path}' is {config.model}, which is built by name; give none"
        )
    return build_network(config, algorithm, shape, split["classes"], model, task)


def _check_whole(
    folder: RunFolder, config: RunConfig, split: Mapping[str, Any], checkpoint: Checkpoint, best: int | None
) -> None:
    """Refuse a folder whose files are not of one run, or not of its end if it is finished.

    Raises:
        RunError: says which.
    """
    if checkpoint.totals["data_fingerprint"] != split["fingerprint"]:
        raise RunError(f"the checkpoint in '{folder.path}' belongs to a run on other data than split.json describes")
    folder.check_config(checkpoint.settings)
    folder.rounds.check(checkpoint.round, checkpoint.files["rounds.jsonl"])
    if folder.finished and best is None and checkpoint.round < config.rounds:
        raise RunError(
            f"the run in '{folder.path}' is finished, but its newest checkpoint is of round {checkpoint.round}; "
            "--resume repeats the rounds after it"
        )


def _check_same_weights(path: Path, config: RunConfig, network: nn.Module, checkpoint: Checkpoint) -> None:
    """Refuse other pretrained weights than the run began with; of other code of the user's own there is a warning.

    Raises:
        RunError: they are others.
    """
    now = code_of(config, network)
    for file, before in (checkpoint.totals.get("code") or {}).items():
        if now.get(file, before) != before:
            warn(
                f"'{file}' is another one than when the run in '{path}' was trained with it, and its models may be too"
            )
    if base_sha256_of(network) != checkpoint.totals.get("base_sha256"):
        raise RunError(f"the run in '{path}' started from other pretrained weights than {config.model} has now")


def weights_in(folder: RunFolder) -> str:
    """The digest of the weights that a folder holds now (:attr:`Trained.weights_digest`).

    Raises:
        RunError: as of :func:`read_trained`.
    """
    checkpoint, _ = _checkpoint(folder, folder.config())
    return digest(checkpoint.shared)


def _checkpoint(folder: RunFolder, config: RunConfig) -> tuple[Checkpoint, int | None]:
    """The one that a run is read from, and the best round if that is the last one's no more.

    Raises:
        RunError: there is none.
    """
    finished = folder.finished
    best = (folder.summary() or {}).get("early_stopping", {}).get("best_round") if finished else None
    kept = None if best is None else folder.checkpoints.name_of(best)
    checkpoint = folder.load("finetuned.safetensors" if config.finetune_epochs > 0 and finished else kept)
    if checkpoint is None and finished:
        raise RunError(f"the run in '{folder.path}' is finished, but its checkpoint is gone, and its models with it")
    if checkpoint is None:
        raise RunError(f"the run in '{folder.path}' has no checkpoint yet; let it run, or continue it with --resume")
    return checkpoint, best


_KEPT_ELSEWHERE = object()  # in place of a field that a user's class keeps under another name


def _check_same(path: Path, config: RunConfig, algorithm: Algorithm) -> None:
    """Refuse an object that is not the run's algorithm.

    Raises:
        ConfigError: names what differs.
    """
    if algorithm.name != config.algorithm and not is_code(config.algorithm):
        raise ConfigError(f"the run in '{path}' was trained by {config.algorithm}, and not by {algorithm.name}")
    try:
        before: Algorithm | None = type(algorithm)(**config.options)  # which may change what it is given
    except Exception:  # a user's code, which may expect what no file holds
        before = None
    for name, usual in type(algorithm).options().items():
        was = config.options.get(name, usual) if before is None else getattr(before, name, _KEPT_ELSEWHERE)
        now = getattr(algorithm, name, _KEPT_ELSEWHERE)
        if name not in config.options and now is None:  # which no file holds either
            continue
        if _in_file(was) and _in_file(now) and _plain(was) != _plain(now):
            raise ConfigError(
                f"the run in '{path}' was trained by {algorithm.title} with {name}={was!r}, and the algorithm that is "
                f"given has {now!r}"
            )


def _in_file(value: Any) -> bool:
    """Whether a file holds the value as it is; what it does not hold, such as a path, has no one form to compare."""
    if isinstance(value, Mapping):
        return all(_in_file(each) for each in value.values())
    if isinstance(value, list | tuple):
        return all(_in_file(each) for each in value)
    return value is None or isinstance(value, bool | int | float | str)


def _plain(value: Any) -> Any:
    """The value as a file gives it back; NaN is like NaN."""
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return "nan" if value != value else value


def _check_code(
    path: Path, config: RunConfig, model: nn.Module | None, algorithm: Algorithm | None, trusted: bool
) -> None:
    """Refuse to run a Python file that a folder names, unless the user wants it."""
    for what, text, given in (("model", config.model, model), ("algorithm", config.algorithm, algorithm)):
        if given is None and not trusted and is_code(str(text)):
            raise untrusted(f"the run in '{path}'", what, str(text), f"give {what}=… itself")

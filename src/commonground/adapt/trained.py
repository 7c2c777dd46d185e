"""A finished run as models: the shared tensors, and each client's own model."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from commonground.algorithms import Algorithm, Tensors, make_algorithm
from commonground.algorithms.head_tuning import HeadTuning
from commonground.config import RunConfig
from commonground.data import Preprocess
from commonground.data.inputs import InputFormat, Inputs
from commonground.engine.prepare import build_network
from commonground.engine.setup import client_model, client_start
from commonground.engine.state.checkpoint import Checkpoint
from commonground.engine.state.client import ClientStates
from commonground.engine.state.folder import NOISE, RunFolder
from commonground.engine.state.store import PersonalStore
from commonground.errors import ConfigError, DataError, RunError
from commonground.models import Groups, base_sha256_of, call, constants_of, tensors_of
from commonground.tasks import Task, tasks

__all__ = ["TrainedRun", "load_run"]


@dataclass(frozen=True)
class TrainedRun:
    """A run's configuration, tensors and clients, read from its folder.

    Attributes:
        path: the folder.
        config: every setting.
        algorithm: the method, or head fine-tuning if the run ended with it.
        model: the network with initial weights.
        groups: its parameter groups.
        shared: the server's final tensors.
        split: what ``split.json`` says of the data.
    """

    path: Path
    config: RunConfig
    algorithm: Algorithm
    model: nn.Module
    groups: Groups
    shared: Tensors
    split: dict[str, Any]
    _checkpoint: Checkpoint

    @property
    def clients(self) -> int:
        """Number of clients that trained."""
        return len(self.split["train"])

    def client(self, name: str | int) -> int:
        """A client's number, by its name or number.

        Raises:
            ConfigError: there is no such client.
        """
        names = self.split["client_names"] or [str(c) for c in range(self.clients)]
        if str(name) in names:
            return int(names.index(str(name)))
        if str(name).isdecimal() and int(name) < self.clients:
            return int(name)
        raise ConfigError(
            f"the run in '{self.path}' has no client '{name}'; it has {self.clients}, from '{names[0]}' to "
            f"'{names[-1]}'"
        )

    def own(self, client: int) -> Tensors:
        """A client's personal tensors and state, by name."""
        if self.config.engine != "messages":
            return self._store.read(client)
        tuned = isinstance(self.algorithm, HeadTuning)
        folder = self.path / ("finetuning" if tuned else "") / "clients" / f"client-{client}"
        done = self._checkpoint.round + tuned  # fine-tuning is one round more, in which all take part
        last = done if tuned else int(self._checkpoint.clients["heard"][client])
        newest = ClientStates(folder, client).newest(done + 1, last if self._start else 0)
        return self._start if newest is None else newest

    @cached_property
    def _start(self) -> Tensors:
        """A client's personal tensors and state before its first round."""
        initial = {name: value.detach() for name, value in tensors_of(self.model).items()}
        return client_start(self.groups, self.algorithm, initial)

    @cached_property
    def _store(self) -> PersonalStore:
        """All clients' personal tensors (which ``messages`` keeps in folders of the clients' own), read one by one."""
        store = PersonalStore(self.clients, self._start)
        store.load(self._checkpoint.personal)
        return store

    @property
    def has_global_model(self) -> bool:
        """Whether the shared tensors are a whole model; without BatchNorm statistics they are not."""
        return self.algorithm.has_global_model and not self.groups.local_statistics

    def shared_model(self) -> Tensors:
        """The shared tensors that belong to the model (not what else travels)."""
        return {name: value for name, value in self.shared.items() if name in tensors_of(self.model)}

    def body(self) -> Tensors:
        """The body for a client that never took part: what is shared of it, and the clients' mean of the rest.

        Raises:
            ConfigError: the method shares nothing.
        """
        if not self.shared:
            raise ConfigError(f"{self.algorithm.title} shares no body that new clients could use")
        body: Tensors = {}
        names = self.groups.whole("body")
        local = [name for name in names if name not in self.shared]
        own = [self.own(client) for client in range(self.clients)] if local else []
        for name in names:
            body[name] = torch.stack([o[name] for o in own]).mean(0) if name in local else self.shared[name]
        return body

    @cached_property
    def task(self) -> Task:
        """What the data were for."""
        return _task(self.split)

    @cached_property
    def format(self) -> InputFormat:
        """How raw samples become the model's inputs."""
        return _format(self.split)

    @property
    def reads_text(self) -> bool:
        """Whether the model's inputs are texts."""
        return str(self.config.model).startswith("hf:")

    def values_of(self, client: int | None) -> Tensors:
        """The model's tensors that a client's own model (None: the global one) has, by name; a global model lacks those
        that every client has of its own.
        """
        values = dict(self.shared)
        if client is not None:
            values |= client_model(self.groups, self.algorithm, self.shared, self.own(client))
        return {name: values[name] for name in tensors_of(self.model) if name in values}

    def model_of(self, client: int | None) -> nn.Module:
        """A copy of the network with a client's own weights (None: the global model), in evaluation mode. Weights that
        never change are not copied.

        Raises:
            ConfigError: the global model is asked of a method that has none.
        """
        values = self.values_of(client)
        whole = values.keys() >= tensors_of(self.model).keys()
        if client is None and not (self.has_global_model or whole):
            why = " with BatchNorm statistics of the clients' own" if self.groups.local_statistics else ""
            raise ConfigError(f"{self.algorithm.title}{why} has no global model; name a client")
        held = self.model.state_dict(keep_vars=True)
        model = copy.deepcopy(self.model, {id(held[name]): held[name] for name in constants_of(self.model)})
        live = tensors_of(model)
        with torch.no_grad():
            for name, tensor in live.items():
                tensor.copy_(values[name])
        return model.eval()

    @cached_property
    def _noise(self) -> Tensor | None:
        """The clients' foreign images [clients, …], stored as the samples are; None in a run without feature noise."""
        if not self.config.feature_noise:
            return None
        images = RunFolder(self.path).noise()
        if tuple(images.shape) != (self.clients, *self.split["sample_shape"]):
            raise RunError(f"the feature noise in '{self.path}' does not fit the run's {self.clients} clients")
        RunFolder(self.path).check_files({NOISE: self._checkpoint.files[NOISE]})
        return images

    def inputs(self, x: npt.NDArray[Any], client: int | None = None) -> Inputs:
        """Raw samples [n, …] (stored as the training data: images channels last, values unscaled) as model inputs.

        In a run with feature noise, a client's samples are changed by its foreign image as they were in training; with
        no client they stay as they are.

        Raises:
            RunError: the feature noise cannot be read.
            DataError: their shape differs from the training data's, or a value is not finite.
        """
        shape = tuple(self.split["sample_shape"])
        if x.shape[1:] != shape and x.ndim >= 2 and int(np.prod(x.shape[1:])) == int(np.prod(shape)):
            x = x.reshape(len(x), *shape)
        if x.shape[1:] != shape:
            raise DataError(f"samples of shape {x.shape[1:]} were given, but the run was trained on {shape}")
        dtype = getattr(torch, self.config.dtype)
        stored = self.format.tensors(np.ascontiguousarray(x))
        for rows in stored.values():
            if not bool(torch.isfinite(rows).all()):
                bad = int((~torch.isfinite(rows)).flatten(1).any(1).nonzero()[0])
                raise DataError(f"sample {bad} has a value that is not finite")
        noise: Tensor | None = None
        if client is not None and self._noise is not None:
            noise = self._noise[client].to(dtype) * self.format.preprocess.scale * self.config.feature_noise
        return self.format.arrange(self.format.make(stored, dtype, noise))

    def predict(self, x: npt.NDArray[Any], client: int | None) -> npt.NDArray[np.float64]:
        """What a client's own model (None: the global one) says of raw samples [n, …], as the run's task does: class
        probabilities [n, classes], numbers [n, targets], ….
        """
        with torch.no_grad():
            output: Tensor = call(self.model_of(client), self.inputs(x, client))
        return self.task.predict(output)


def _task(split: Mapping[str, Any]) -> Task:
    """The task that ``split.json`` names, with its settings."""
    settings = {name: tuple(v) if isinstance(v, list) else v for name, v in split["task_settings"].items()}
    return tasks[split["task"]](**settings)


def _format(split: Mapping[str, Any]) -> InputFormat:
    """How ``split.json`` says that samples become inputs."""
    p = split["preprocess"]
    return InputFormat(
        tuple(split["sample_shape"]), split["inputs"], Preprocess(p["scale"], tuple(p["mean"]), tuple(p["std"]))
    )


def load_run(path: str | Path) -> TrainedRun:
    """Read a run's folder.

    Raises:
        RunError: there is no run, it has no checkpoint yet, or a file is damaged.
        ConfigError: its model was given as a Python object and cannot be built by name.
    """
    folder = RunFolder(Path(path))
    if not folder.exists:
        raise RunError(f"'{path}' holds no run (it has no config.toml)")
    config, split = folder.config(), folder.split()
    if config.model is None or config.lr is None:
        raise RunError(f"'{Path(path) / 'config.toml'}' is damaged: it lacks the model or the learning rate")
    algorithm = make_algorithm(config.algorithm, config.options)
    model, groups = build_network(config, algorithm, _format(split).shape, split["classes"], task=_task(split))
    checkpoint = folder.load("finetuned.safetensors") if config.finetune_epochs else folder.load()
    if checkpoint is None:
        raise RunError(f"the run in '{path}' has no checkpoint yet; let it run, or continue it with --resume")
    if checkpoint.totals["data_fingerprint"] != split["fingerprint"]:
        raise RunError(f"the checkpoint in '{path}' belongs to a run on other data than split.json describes")
    folder.check_config(checkpoint.settings)
    folder.check_files({"split.json": checkpoint.files["split.json"]})
    if folder.summary() is not None and checkpoint.round < config.rounds:
        raise RunError(
            f"the run in '{path}' is finished, but its newest checkpoint is of round {checkpoint.round}; --resume "
            "repeats the rounds after it"
        )
    if base_sha256_of(model) != checkpoint.totals.get("base_sha256"):
        raise RunError(f"the run in '{path}' started from other pretrained weights than {config.model} has now")
    if config.finetune_epochs:
        algorithm = HeadTuning(config.finetune_epochs)
    return TrainedRun(folder.path, config, algorithm, model, groups, checkpoint.shared, split, checkpoint)

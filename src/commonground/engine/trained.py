"""What a run has trained: the shared tensors and each client's own model, in memory or read from the run's folder."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from commonground.algorithms import Algorithm, Tensors
from commonground.algorithms.head_tuning import HeadTuning, ModelTuning
from commonground.config import RunConfig
from commonground.data import FederatedDataset
from commonground.data.formats import InputFormat, read_format
from commonground.data.sources.glue import TASKS
from commonground.data.tables.scale import scaled_as
from commonground.data.tables.schema import TableSchema
from commonground.engine.added import FOLDER as ADDED
from commonground.engine.added import AddedClients
from commonground.engine.client_tensors import client_model, client_start, in_order, places_of
from commonground.engine.known_clients import KnownClients
from commonground.engine.network import plain_network
from commonground.engine.state.checkpoint import Checkpoint
from commonground.engine.state.client import ClientStates
from commonground.engine.state.digests import digest
from commonground.engine.state.folder import NOISE, RunFolder
from commonground.engine.state.split_file import read_task
from commonground.engine.state.store import PersonalStore
from commonground.errors import ConfigError, DataError, RunError
from commonground.models import (
    Groups,
    constants_of,
    is_pretrained,
    reset_counters,
    tensors_of,
)
from commonground.models.adapted import AdaptedModel
from commonground.name_lists import names_in
from commonground.tasks import Task
from commonground.user_code import failing_as, is_code, untrusted

__all__ = ["States", "Trained"]

BYTES_AT_ONCE = 1 << 28  # of clients' tensors that are read together

States = Callable[[int], Tensors]
"""From a client's number to its personal tensors and state, by name; not to be changed in place."""


@dataclass(frozen=True, eq=False)
class Trained:
    """A run's configuration, tensors and clients.

    The clients' state is read client by client: from the engine that trained them, or from the run's checkpoint.

    Attributes:
        path: the run's folder, if it has one.
        config: every setting.
        algorithm: the method, or head fine-tuning if the run ended with it.
        network: the network with initial weights.
        groups: its parameter groups.
        shared: the server's final tensors.
        clients: number of clients that trained.
        split: what ``split.json`` says of the data, but for the clients' samples of each class.
        given: whether the network was made from a module, so that it cannot be built anew by name.
        schema: of a table, what its columns are.
        trusted: whether Python files that the configuration names may be run.
    """

    path: Path | None
    config: RunConfig
    algorithm: Algorithm
    network: nn.Module
    groups: Groups
    shared: Tensors = field(repr=False)
    clients: int
    split: dict[str, Any] = field(repr=False)
    _kept: States | Checkpoint = field(repr=False)
    given: bool = False
    schema: TableSchema | None = field(default=None, repr=False)
    _images: Tensor | None = field(default=None, repr=False)  # of feature noise, if they are in memory
    trusted: bool = True

    @property
    def where(self) -> str:
        """What to call the run in a message."""
        return "this run" if self.path is None else f"the run in '{self.path}'"

    def check_trusted(self, what: str, text: str | None, otherwise: str) -> None:
        """Refuse to run a Python file that the configuration names, unless the user wants it.

        Args:
            what, text: the setting's name and value.
            otherwise: what can be given in its place, as the end of a sentence.

        Raises:
            ConfigError: names the file.
        """
        if not self.trusted and is_code(text or ""):
            raise untrusted(self.where, what, str(text), otherwise)

    @cached_property
    def known(self) -> KnownClients:
        """Its clients by name and number."""
        few = self.split.get("few_clients", {}) if self.schema is None else self.schema.few_rows
        return KnownClients(self.where, self.clients, self.split["client_names"] or (), self.added.names, few)

    def only_client(self, lacks: str = "") -> int:
        """The client that is meant where nobody says whose model to ask: there is no other.

        Args:
            lacks: what would have said it.

        Raises:
            ConfigError: there are others.
        """
        if len(self.known.names) == 1:
            return 0
        ask = (
            "give either --client ID or --global"
            if self.has_global_model
            else f"give --client ID ({self.algorithm.title} has no global model)"
        )
        raise ConfigError(f"{lacks}; {ask}" if lacks else ask)

    @property
    def one_for_all(self) -> bool:
        """Whether every client's own model is the global one, so that nobody has to say whose is asked."""
        same = self.has_global_model and not self.algorithm.has_personal_model and not self.config.feature_noise
        return same and len(self.known.names) == self.clients

    @cached_property
    def added(self) -> AddedClients:
        """Clients that were added to the run in its folder (:func:`~commonground.adapt.keep_clients`)."""
        if self.path is None or not (self.path / ADDED).is_dir():
            return AddedClients(self.weights_digest)
        return AddedClients.read(self.path, self.weights_digest)

    def read_added_again(self) -> AddedClients:
        """The added clients as the folder has them now: others may have added some, or this process by another run."""
        for name in ("added", "known"):
            vars(self).pop(name, None)
        return self.added

    @property
    def weights_digest(self) -> str:
        """sha256 of the server's tensors, to which heads of added clients belong."""
        return digest(self.shared)

    def own(self, client: int) -> Tensors:
        """A client's personal tensors and state, by name.

        Raises:
            ConfigError: it is on the client's own host, from which the server is not sent it.
        """
        if not isinstance(self._kept, Checkpoint):
            return self._kept(client)
        assert self.path is not None
        if self.split.get("described") and self._start:
            raise ConfigError(
                f"what is personal of {self.known.for_people(client)} of {self.where} is on the client's own host, and "
                "so is its model: in the folder 'models' there, which is asked as this one is"
            )
        if self.config.engine != "messages":
            return self._store.read(client)
        tuned = isinstance(self.algorithm, HeadTuning)
        folder = self.path / ("finetuning" if tuned else "") / "clients" / f"client-{client}"
        # Clients are tuned as if no run ended early.
        last = self.config.rounds + 1 if tuned else int(self._kept.clients["heard"][client])
        kept = ClientStates(folder, client).after(max(0, last)) if self._start else None
        return self._start if kept is None else kept

    @cached_property
    def _start(self) -> Tensors:
        """A client's personal tensors and state before its first round."""
        initial = {name: value.detach().cpu() for name, value in tensors_of(self.network).items()}
        return client_start(self.groups, self.algorithm, initial)

    @cached_property
    def _store(self) -> PersonalStore:
        """All clients' personal tensors (which ``messages`` keeps in folders of the clients' own), read one by one."""
        assert isinstance(self._kept, Checkpoint)
        store = PersonalStore(self.clients, self._start)
        store.load(self._kept.personal)
        return store

    @property
    def has_global_model(self) -> bool:
        """Whether the shared tensors are a whole model; without BatchNorm statistics they are not."""
        return self.algorithm.has_global_model and not self.groups.local_statistics

    def shared_model(self) -> Tensors:
        """The shared tensors that belong to the model (not what else travels)."""
        return {name: value for name, value in self.shared.items() if name in tensors_of(self.network)}

    def body(self) -> Tensors:
        """The body for a client that never took part: what is shared of it, and the clients' mean of the rest.

        Raises:
            ConfigError: the method shares nothing that is trained.
        """
        if not any(name in self.shared for name in self.groups.trainable("all")):
            if self.config.finetune_epochs and isinstance(self.algorithm, ModelTuning):
                raise ConfigError(
                    f"{self.where} ended with --finetune all, after which new clients have no body to start from; "
                    "train with --finetune head"
                )
            raise ConfigError(f"{self.algorithm.title} shares no body that new clients could use")
        known = {**self._means, **self.shared}
        return {name: known[name] for name in self.groups.whole("body")}

    @cached_property
    def _means(self) -> Tensors:
        """Of the body's tensors that are not shared, the clients' means."""
        local = [name for name in self.groups.whole("body") if name not in self.shared]
        sums: Tensors = {}
        size = max(1, BYTES_AT_ONCE // max(1, sum(value.nbytes for value in self._start.values())))
        for start in range(0, self.clients if local else 0, size):
            clients = range(start, min(self.clients, start + size))
            own = self._own_of(clients)
            if len(clients) == self.clients:
                return {name: own[name].mean(0) for name in local}
            for name in local:
                part = own[name].double().sum(0)
                sums[name] = sums[name] + part if name in sums else part
        return {name: (value / self.clients).to(self._start[name].dtype) for name, value in sums.items()}

    def _own_of(self, clients: Sequence[int]) -> Tensors:
        """As :meth:`own`, of several clients, stacked."""
        if isinstance(self._kept, Checkpoint) and self.config.engine != "messages" and not self.split.get("described"):
            return self._store.read_several(clients)
        each = [self.own(client) for client in clients]
        return {name: torch.stack([own[name] for own in each]) for name in each[0]}

    @cached_property
    def task(self) -> Task:
        """What the data were for."""
        return read_task(self.split)

    @cached_property
    def format(self) -> InputFormat:
        """How raw samples become the model's inputs."""
        return read_format(self.split)

    @property
    def remark(self) -> str:
        """What has to be known of the clients' own models where they are not those whose figures the run reports."""
        if not self.algorithm.personalizes:
            return ""
        return (
            f"{self.algorithm.title} trains each client's model once more before a test and forgets that: here are the "
            "models before it, whose figures are not those of clients.csv"
        )

    @property
    def reads_text(self) -> bool:
        """Whether the model's inputs are texts."""
        return is_pretrained(self.config.model)

    @property
    def text_columns(self) -> tuple[str, ...]:
        """The column of texts that the run was trained on, or the two of pairs; empty where that is not known."""
        told = names_in(self.config.text_column) or tuple(self.split.get("text_columns", ()))
        glue = TASKS.get(self.config.data)
        return told if told or glue is None else (glue.first[0], *glue.second[:1])

    @property
    def longest_text(self) -> int:
        """Most tokens of a text that are read: those to which the run's texts were cut, where that is known, and no
        more than its model, one of ``hf:``, has places for.
        """
        network = self.network
        assert isinstance(network, AdaptedModel)
        return min(int(self.split.get("max_length", network.longest)), network.longest)

    def check_texts(self, columns: int, origin: str) -> None:
        """Refuse pairs of texts where the run was trained on single ones, and the other way round.

        Args:
            columns: of texts, 1 or 2.
            origin: of the texts, for messages.

        Raises:
            DataError: says what they are.
        """
        kinds = {1: "single texts", 2: "pairs of texts"}
        if (own := len(self.text_columns)) and own != columns:
            raise DataError(
                f"{origin} holds {kinds[columns]}, but the run was trained on {kinds[own]} "
                f"({', '.join(self.text_columns)})"
            )

    def values_of(self, client: int | None) -> Tensors:
        """The model's tensors that a client's own model (None: the global one) has, by name; a global model lacks those
        that every client has of its own.
        """
        if client is not None and client >= self.clients:
            return self._added_values(client - self.clients)
        values = dict(self.shared)
        if client is not None:
            shared, own = in_order(self.shared, self._places), in_order(self.own(client), self._places)
            values |= client_model(self.groups, self.algorithm, shared, own)
        return {name: values[name] for name in tensors_of(self.network) if name in values}

    @cached_property
    def _places(self) -> dict[str, int]:
        """The order of the model's tensors and of those that the method declares, as the engines have them."""
        model = tensors_of(self.network)
        common = {name: value for name, value in model.items() if name not in self.groups.local_statistics}
        return places_of([*model, *self.algorithm.server_state(common), *self.algorithm.client_state(common)])

    def _added_values(self, number: int) -> Tensors:
        """As :meth:`values_of`, for a client that was added later: the run's body and its head."""
        if self.added.weights != self.weights_digest:
            raise ConfigError(
                f"'{self.added.names[number]}' was added to {self.where} before its last rounds, and its head fits the "
                "body no more; add it again (commonground adapt --keep)"
            )
        if not all(segment.path.is_file() for segment in self.added.segments):
            raise RunError(
                f"clients that are kept in {self.where} have got new heads, or have left it, since it was read: read "
                "it again (load_run)"
            )
        return {**self.body(), **self.added.head(number)}

    def model(self, client: int | None) -> nn.Module:
        """A copy of the network with a client's own weights (None: the global model), in evaluation mode. Weights that
        never change are not copied.

        Raises:
            ConfigError: the global model is asked of a method that has none.
        """
        values = self.values_of(client)
        whole = values.keys() >= tensors_of(self.network).keys()
        if client is None and not (self.has_global_model or whole):
            why = " with BatchNorm statistics of the clients' own" if self.groups.local_statistics else ""
            before = "model" if isinstance(self.algorithm, ModelTuning) else "head"
            more = f" (the {before} before it is not kept)" if isinstance(self.algorithm, HeadTuning) else ""
            raise ConfigError(f"{self.algorithm.title}{why} has no global model; name a client{more}")
        network = self.network if client is None or client < self.clients else self._plain_network
        held = network.state_dict(keep_vars=True)
        memo: dict[int, Any] = {id(held[name]): held[name] for name in constants_of(network)}
        with failing_as("the model cannot be copied (copy.deepcopy)"):
            model = copy.deepcopy(network, memo)
        live = tensors_of(model)
        with torch.no_grad():
            for name, tensor in live.items():
                tensor.copy_(values[name])
            reset_counters(model)
        return model.eval()

    @cached_property
    def _plain_network(self) -> nn.Module:
        """The network of clients that were added later, which have a body and a head and nothing else."""
        return plain_network(self.config, self.algorithm, self.format.shape, self.split["classes"], self.task)[0]

    @property
    def in_files(self) -> bool:
        """Whether the clients' tensors are read from a checkpoint."""
        return isinstance(self._kept, Checkpoint)

    def in_memory(self) -> Trained:
        """The same with all tensors in plain mappings: no engine, no files."""
        own = {client: self.own(client) for client in range(self.clients)}
        return replace(self, path=None, _kept=own.__getitem__, _images=self._noise)

    @property
    def dtype(self) -> torch.dtype:
        """The number type of the model."""
        dtype: torch.dtype = getattr(torch, self.config.dtype)
        return dtype

    def noise_of(self, client: int | None) -> Tensor | None:
        """What is subtracted from a client's samples after scaling, in a run with feature noise."""
        if client is None or client >= self.clients or self._noise is None:
            return None
        return self._noise[client].to(self.dtype) * self.format.preprocess.scale * self.config.feature_noise

    @cached_property
    def _noise(self) -> Tensor | None:
        """The clients' foreign images [clients, …], stored as the samples are; None in a run without feature noise."""
        if not self.config.feature_noise:
            return None
        if self._images is not None:
            return self._images
        assert self.path is not None
        if isinstance(self._kept, Checkpoint):
            RunFolder(self.path).check_files({NOISE: self._kept.files[NOISE]})
        images = RunFolder(self.path).noise()
        if tuple(images.shape) != (self.clients, *self.split["sample_shape"]):
            raise RunError(f"the feature noise in '{self.path}' does not fit the run's {self.clients} clients")
        return images

    def scale(self, rows: npt.NDArray[np.float32], client: int | None) -> None:
        """Scale a table's encoded rows in place where every client has statistics of its own (``--scaling client``);
        elsewhere the model does so.

        Raises:
            ConfigError: no client is named where each has its own.
        """
        if self.schema is None or not self.schema.client_scales:
            return
        if client is None:
            raise ConfigError(f"{self.where} scales by each client's own statistics; a global model has none")
        scaled_as(self.schema, rows, self.scale_of(client))

    def scale_of(self, client: int) -> Mapping[str, Any]:
        """Mean and deviation of a client's numbers (``--scaling client``), of one that was added as well."""
        assert self.schema is not None
        scales = self.schema.client_scales if client < self.clients else self.added.scales
        found: Mapping[str, Any] = scales[self.known.names[client]]
        return found

    def as_read(self, data: FederatedDataset) -> FederatedDataset:
        """Data as this run's model takes them: scaled as in training, and numbers that are predicted in their units.

        Raises:
            DataError: a table was read with other columns, categories or fills than the run's.
        """
        own, schema = self.schema, data.schema
        if own is not None and schema is not None and not schema.reads_as(own):
            raise DataError(
                f"{data.name} was read with other columns or fills than {self.where} knows; read it as the run reads "
                "its table: load_data(…, schema=run.trained.schema)"
            )
        same = data.task.name == self.task.name and data.classes == self.split["classes"]
        # Bytes and fractions of them are each scaled their own way.
        stored_alike = data.preprocess.scale == self.format.preprocess.scale
        preprocess = self.format.preprocess if stored_alike else data.preprocess
        origin = replace(data.origin, relearn=None)  # whatever rows are taken, they are read as the run's
        return replace(data, preprocess=preprocess, task=self.task if same else data.task, origin=origin)

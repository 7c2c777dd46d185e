"""How a run begins: with what its seed draws, or with the weights of a finished run or of a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from commonground.config import RunConfig
from commonground.data import FederatedDataset
from commonground.data.tables.read import is_table
from commonground.engine.network import named_groups, named_model
from commonground.engine.read_trained import read_trained
from commonground.engine.state.digests import digest
from commonground.engine.state.folder import RunFolder
from commonground.engine.trained import Trained
from commonground.errors import ConfigError, ModelError
from commonground.models import aliases_of, is_pretrained
from commonground.suggest import meant
from commonground.tasks import tasks
from commonground.user_code import is_code

__all__ = ["FromFile", "FromRun", "InitialWeights", "start_for"]


class InitialWeights:
    """How a run begins: of itself, with what its seed draws."""

    def fill(self, config: RunConfig) -> RunConfig:
        """A configuration with what the beginning says of the model and the data, where it does not say it itself."""
        return config

    def reading(self, config: RunConfig) -> dict[str, Any]:
        """How data are read; arguments of :func:`~commonground.data.load_data`."""
        return {}

    def as_read(self, data: FederatedDataset) -> FederatedDataset:
        """Data as the model takes them that the run begins with."""
        return data

    def put_into(self, model: nn.Module, config: RunConfig, data: FederatedDataset) -> dict[str, str] | None:
        """Give a model, in place, the weights that it begins with.

        Args:
            model: as it is before a method extends it.
            config: says its groups.
            data: what the model is for.

        Returns:
            What a run's summary says of the weights, where they are others'.
        """
        return None


@dataclass(frozen=True, eq=False)
class FromFile(InitialWeights):
    """A run that begins with the tensors of a file.

    Attributes:
        source: the file, or a run's folder.
        tensors: by name, of the model as it is before a method extends it.
    """

    source: str
    tensors: Mapping[str, Tensor] = field(repr=False)

    def put_into(self, model: nn.Module, config: RunConfig, data: FederatedDataset) -> dict[str, str]:
        """See :meth:`Start.put_into`.

        The body has to be there; a head only begins with what is there if it is for the same classes (targets, labels).

        Raises:
            ModelError: a tensor of the body is missing or of another shape, or a file has one that is not the model's.
        """
        own, groups = model.state_dict(), named_groups(config, model)
        head = set(groups.whole("head"))
        for name in groups.whole("body"):
            if name not in self.tensors:
                raise ModelError(f"'{self.source}' has no weights for '{name}', of the model's body{self._kind}")
        self._check_more(own)
        fits = self._same_answers(data) and all(
            name in self.tensors and self.tensors[name].shape == own[name].shape for name in head
        )
        taken = {name: value for name, value in self.tensors.items() if name in own and (fits or name not in head)}
        for name, value in taken.items():
            if value.shape != own[name].shape:
                here, there = (" × ".join(map(str, each.shape)) or "a number" for each in (own[name], value))
                raise ModelError(f"the model's tensor '{name}' is {here}, and that of '{self.source}' is {there}")
            if value.is_floating_point() and not bool(value.isfinite().all()):
                raise ModelError(f"'{self.source}' has weights that are no finite numbers: '{name}'")
        # A tensor that a module holds under several names is known by the first of them, and loaded under each.
        first = aliases_of(model)
        model.load_state_dict({name: taken.get(first.get(name, name), value) for name, value in own.items()})
        told = "none" if not head else "the same" if fits else "drawn anew"
        return {"from": self.source, "sha256": digest(taken), "head": told}

    @property
    def _kind(self) -> str:
        """Of what model the tensors are, where that is known."""
        return ""

    def _check_more(self, own: Mapping[str, Tensor]) -> None:
        for name in self.tensors:
            if name not in own:
                raise ModelError(f"'{self.source}' has a tensor {name!r}, and the model has none{meant(name, own)}")

    def _same_answers(self, data: FederatedDataset) -> bool:
        """Whether a head is for what the data ask, as far as anybody can tell."""
        return True


@dataclass(frozen=True, eq=False)
class FromRun(FromFile):
    """A run that begins with what another has trained.

    Attributes:
        trained: by the other.
    """

    trained: Trained = field(repr=False)

    def fill(self, config: RunConfig) -> RunConfig:
        """With the other run's model, and the clients' column of its table; see :meth:`Start.fill`.

        Raises:
            ConfigError: the configuration says of the table what the other run says.
        """
        run = self.trained
        known: dict[str, Any] = {}
        if config.model is None:
            known |= {"model": run.config.model, "model_options": {**run.config.model_options, **config.model_options}}
            known |= {} if config.body or config.head else {"body": run.config.body, "head": run.config.head}
        if run.schema is not None and is_table(config.data):
            for name in ("scaling", "drop"):
                if getattr(config, name) is not None:
                    raise ConfigError(
                        f"--{name} says how a table's columns become inputs, and --init-from {self.source} says that "
                        "already: they are read as in that run; leave one of the two out"
                    )
            if not (config.client_column or config.partition or config.classes_per_client or config.clients):
                known["client_column"] = run.schema.client_column
        return config.model_copy(update=known)

    def reading(self, config: RunConfig) -> dict[str, Any]:
        """A table by the other run's columns, categories and scales; see :meth:`Start.reading`."""
        schema = self.trained.schema if is_table(config.data) else None
        return {} if schema is None else {"schema": schema}

    def as_read(self, data: FederatedDataset) -> FederatedDataset:
        """See :meth:`Start.as_read`.

        Raises:
            DataError: samples of another form than the other run's, or a table that was read otherwise.
        """
        self.trained.format.check_like(data.format, data.name, self.trained.where)
        # Other targets have other units, in which the run's scales would be wrong.
        read = self.trained.as_read(data)
        return read if self._same_answers(data) else replace(read, task=data.task)

    @property
    def _kind(self) -> str:
        return f" (there it is {self.trained.config.model}, trained by {self.trained.algorithm.title})"

    def _check_more(self, own: Mapping[str, Tensor]) -> None:
        """Nothing: a method may have trained more than the model, such as heads of its own."""

    def _same_answers(self, data: FederatedDataset) -> bool:
        """By task, classes, and a table's columns."""
        columns = {schema.targets for schema in (self.trained.schema, data.schema) if schema is not None}
        told = self.trained.task.name, self.trained.split["class_names"]
        return told == (data.task.name, list(data.class_names)) and len(columns) < 2


def start_for(config: RunConfig, model: nn.Module | None = None) -> InitialWeights:
    """How a run begins, by its configuration's ``init_from``: of another run with what its clients share, and of the
    body, where that is personal, their mean.

    Args:
        config: of the run that begins; a Python file that it names may be run for the other as well.
        model: the user's module that it is given, if it is; the other run may have been given such a one.

    Raises:
        ConfigError: there is neither a folder nor a file; or the run adapts a pretrained model, shares no body, or
            would run another file.
        RunError: the run has no weights yet, or a file is damaged.
    """
    if (source := config.init_from) is None:
        return InitialWeights()
    path = Path(source).expanduser()
    if is_pretrained(config.model):
        raise ConfigError(
            "--init-from is for models that are trained whole; one that adapts pretrained weights begins with an "
            "adapter: --set model.adapter=FOLDER"
        )
    if path.suffix == ".safetensors" and path.is_file():
        try:
            return FromFile(source, load_file(path))
        except (OSError, SafetensorError) as error:
            raise ConfigError(f"the initial weights '{source}' cannot be read: {error}") from None
    folder = RunFolder(path)
    if not folder.exists:
        raise ConfigError(f"--init-from '{source}' is neither a run's folder nor a file .safetensors")
    other = folder.config()
    if is_pretrained(other.model):
        raise ConfigError(
            f"the run in '{source}' adapts a pretrained model; others begin with its adapter: commonground export "
            f"{source}, then --set model.adapter=FOLDER"
        )
    if not folder.finished:
        raise ConfigError(f"the run in '{source}' is not finished; let it end, or continue it with --resume")
    # A file that made the data is run for a task that only it knows.
    known = folder.split()["task"] in tasks
    for what in ("model", "algorithm", *(() if known else ("data",))):
        if is_code(code := str(getattr(other, what))) and getattr(config, what) != code:
            raise ConfigError(
                f"the run in '{source}' has the {what} '{code}', whose code would be run; if you trust that file, take "
                f"it here as well"
            )
    given = None if folder.start() is None or named_model(other) else model
    trained = read_trained(folder, model=given, trust_code=True)
    return FromRun(source, {**trained.body(), **trained.shared_model()}, trained)

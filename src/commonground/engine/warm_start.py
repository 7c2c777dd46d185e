"""Training that begins with the weights of a finished run, or of a file, in place of random ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from commonground.config import RunConfig
from commonground.data import FederatedDataset
from commonground.data.tables.read import is_table
from commonground.engine.network import named_model
from commonground.engine.read_trained import read_trained
from commonground.engine.state.digests import digest
from commonground.engine.state.folder import RunFolder
from commonground.engine.trained import Trained
from commonground.errors import ConfigError, ModelError
from commonground.models import Groups, aliases_of, is_pretrained, own_copy
from commonground.suggest import meant
from commonground.tasks import tasks
from commonground.user_code import is_code

__all__ = ["WarmStart", "warm_start"]


@dataclass(frozen=True, eq=False)
class WarmStart:
    """Where weights begin.

    Attributes:
        source: the run's folder, or the file.
        tensors: by name, of the model as it is before a method extends it.
        trained: the finished run whose they are; None for those of a file.
    """

    source: str
    tensors: Mapping[str, Tensor] = field(repr=False)
    trained: Trained | None = field(default=None, repr=False)

    def fill(self, config: RunConfig) -> RunConfig:
        """A configuration with the run's model, where it names none, and the clients' column of its table.

        Raises:
            ConfigError: it says of the table what the run says.
        """
        run = self.trained
        if run is None:
            return config
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
        """How a table is read: as the run's was; arguments of :func:`~commonground.data.load_data`."""
        schema = None if self.trained is None or not is_table(config.data) else self.trained.schema
        return {} if schema is None else {"schema": schema}

    def as_read(self, data: FederatedDataset) -> FederatedDataset:
        """Data as the run's model takes them.

        Raises:
            DataError: samples of another form than the run's, or a table that was read otherwise.
        """
        if self.trained is None:
            return data
        self.trained.format.check_like(data.format, data.name, self.trained.where)
        # Other targets have other units, in which the run's scales would be wrong.
        read = self.trained.as_read(data)
        return read if self._same_targets(data) else replace(read, task=data.task)

    def put_into(self, model: nn.Module, groups: Groups, data: FederatedDataset) -> tuple[nn.Module, dict[str, str]]:
        """A copy of a model with these weights, and what a run's summary says of them.

        The body has to be there; a head only begins with what is there if it is for the same classes (targets, labels).

        Args:
            model: as it is before a method extends it.
            groups: its groups.
            data: what the model is for.

        Raises:
            ModelError: a tensor of the body is missing or of another shape, or a file has one that is not the model's.
        """
        own, head = model.state_dict(), set(groups.whole("head"))
        self._check_names(own, groups.whole("body"))
        fits = self._head_fits(own, head, data)
        taken = {name: value for name, value in self.tensors.items() if name in own and (fits or name not in head)}
        for name, value in taken.items():
            if value.shape != own[name].shape:
                here, there = (" × ".join(map(str, each.shape)) or "a number" for each in (own[name], value))
                raise ModelError(f"the model's tensor '{name}' is {here}, and that of '{self.source}' is {there}")
            if value.is_floating_point() and not bool(value.isfinite().all()):
                raise ModelError(f"'{self.source}' has weights that are no finite numbers: '{name}'")
        model = own_copy(model)
        # A tensor that a module holds under several names is known by the first of them, and loaded under each.
        first = aliases_of(model)
        model.load_state_dict({name: taken.get(first.get(name, name), value) for name, value in own.items()})
        told = "none" if not head else "the same" if fits else "drawn anew"
        return model, {"from": self.source, "sha256": digest(taken), "head": told}

    def _check_names(self, own: Mapping[str, Tensor], body: Sequence[str]) -> None:
        """Refuse what lacks a part of the body, and a file with more than the model has (of a run more may travel)."""
        run = self.trained
        kind = "" if run is None else f" (there it is {run.config.model}, trained by {run.algorithm.title})"
        for name in body:
            if name not in self.tensors:
                raise ModelError(f"'{self.source}' has no weights for '{name}', of the model's body{kind}")
        for name in self.tensors if run is None else ():
            if name not in own:
                raise ModelError(f"'{self.source}' has a tensor {name!r}, and the model has none{meant(name, own)}")

    def _same_targets(self, data: FederatedDataset) -> bool:
        """Whether what is predicted is the same as far as anybody can tell: task, classes, and a table's columns."""
        if self.trained is None:
            return True
        columns = {schema.targets for schema in (self.trained.schema, data.schema) if schema is not None}
        told = self.trained.task.name, self.trained.split["class_names"]
        return told == (data.task.name, list(data.class_names)) and len(columns) < 2

    def _head_fits(self, own: Mapping[str, Tensor], head: set[str], data: FederatedDataset) -> bool:
        """Whether all of a head is there, for the same answers."""
        if not self._same_targets(data):
            return False
        return all(name in self.tensors and self.tensors[name].shape == own[name].shape for name in head)


def warm_start(source: str, config: RunConfig, model: nn.Module | None = None) -> WarmStart:
    """The weights that a run's folder, or a file, has for others to begin with: of a run what its clients share, and
    of the body, where that is personal, their mean.

    Args:
        source: the folder or file.
        config: of the run that begins; a Python file that it names may be run for the other as well.
        model: the user's module that it is given, if it is; the other run may have been given such a one.

    Raises:
        ConfigError: it is neither; or the run adapts a pretrained model, shares no body, or would run another file.
        RunError: the run has no weights yet, or a file is damaged.
    """
    path = Path(source).expanduser()
    if is_pretrained(config.model):
        raise ConfigError(
            "--init-from is for models that are trained whole; one that adapts pretrained weights begins with an "
            "adapter: --set model.adapter=FOLDER"
        )
    if path.suffix == ".safetensors" and path.is_file():
        try:
            return WarmStart(source, load_file(path))
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
    return WarmStart(source, {**trained.body(), **trained.shared_model()}, trained)

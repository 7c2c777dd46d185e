"""One typed configuration of a run, read from TOML and flags and saved with every run."""

from __future__ import annotations

import dataclasses
import math
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from commonground.access import reason
from commonground.errors import ConfigError, one_sentence
from commonground.name_lists import listed
from commonground.ranges import check_number
from commonground.registration import is_ours
from commonground.schedules import Schedule
from commonground.suggest import meant, nearest

__all__ = ["OF_DATA", "RunConfig", "one_sentence", "with_usual_names"]

OF_DATA = (
    "data", "clients", "classes_per_client", "partition", "train_samples", "test_samples", "normalize", "target",
    "client_column", "feature_noise", "task", "drop", "text_column", "kinds", "separator", "encoding", "scaling",
    "few_rows", "min_rows", "split_column", "time_column", "group_column", "test_share", "test_seed",
    "missing_target", "missing_client", "image_size",
)  # fmt: skip
"""Settings that say what the data are and how they are read and divided: over a network each client's own matter."""


_NUMBERS = (int, int | None, float, float | None)


class RunConfig(BaseModel):
    """Everything a run's numbers depend on, and how it is carried out.

    Every field is a flag of ``commonground train`` (underscores become dashes) and a key of ``config.toml``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    algorithm: str = "fedrep"
    options: dict[str, Any] = Field({}, description="hyperparameters of the algorithm (--set name=value)")
    data: str = Field(
        "digits",
        description="a data set's name, the path of a table or of a folder of pictures, hf:NAME, or file.py:function",
    )
    clients: int | None = Field(
        None, ge=1, description="number of clients (default: 20 for digits, else 100; what file.py says)"
    )
    task: str | None = Field(
        None, description="what a table is for: classification, regression or multilabel (default: classification)"
    )
    target: str | None = Field(
        None, description="a table's column to predict, or several, separated by commas (default: label)"
    )
    client_column: str | None = Field(
        None,
        description="a table's column that says whose a row is (column:NAME); file: each file of a folder",
    )
    drop: str | None = Field(None, description="a table's columns to leave out, separated by commas")
    text_column: str | None = Field(None, description="a table's column of texts, or two, for a model hf:NAME")
    kinds: str | None = Field(
        None, description="what columns hold where it is not as it looks: NAME=category,NAME=date:%d.%m.%Y,…"
    )
    separator: str | None = Field(
        None, description="between a table's cells: one character, comma, semicolon, tab, pipe"
    )
    encoding: str | None = Field(None, description="of a table's file, such as latin-1; both are found by themselves")
    scaling: str | None = Field(
        None,
        description="a table's numbers: by pooled statistics of all clients (default), client, none, or "
        "bounds:NAME=LOW:HIGH,…",
    )
    few_rows: Literal["keep", "pool", "shared", "drop"] | None = Field(
        None,
        description="clients with few rows: keep, pool (one client of all), shared (only the global model), or drop",
    )
    min_rows: int | None = Field(None, ge=2, description="rows below which a client has few (default: 2)")
    split_column: str | None = Field(None, description="a table's column of train and test (default: split)")
    time_column: str | None = Field(None, description="a table's column by which each client's last rows are test rows")
    group_column: str | None = Field(None, description="a table's column whose equal rows are not split")
    test_share: float | None = Field(
        None, gt=0, lt=1, description="share of a table's rows that is held out (default: 0.25)"
    )
    test_seed: int | None = Field(
        None,
        ge=0,
        description="seed of which rows are held out, whatever the run's is (default: the run's; over a network 0)",
    )
    missing_target: Literal["refuse", "drop"] | None = Field(
        None, description="a table's rows without a target: refuse the table (default), or drop them and say how many"
    )
    missing_client: Literal["refuse", "drop"] | None = Field(
        None, description="a table's rows without a client: refuse the table (default), or drop them and say how many"
    )
    image_size: str | None = Field(
        None, description="what the pictures of a folder are resized to: 32, or HEIGHTxWIDTH (default: their one size)"
    )
    classes_per_client: int | None = Field(None, ge=1, description="classes per client: a split by shards")
    partition: str | None = Field(
        None,
        description="iid, shards, labels, dirichlet:ALPHA, lognormal, features:H, column:NAME, or file.py:function of "
        "your own",
    )
    feature_noise: float = Field(
        0.0, ge=0, description="how much of another client's image is subtracted from all samples"
    )
    normalize: Literal["imagenet", "cifar10", "cifar100", "none"] | None = Field(
        None, description="whose channel means and deviations images are normalised by (default: the data set's own)"
    )
    train_samples: int | None = Field(None, ge=1, description="keep only so many training samples per client")
    test_samples: int | None = Field(None, ge=1, description="keep only so many test samples per client")
    # The values of data.augment.Augment: a shell that completes options is not to wait for PyTorch, which it imports.
    augment: Literal["none", "flip", "crop", "flip-crop"] = Field(
        "none", description="random changes of training images: none, flip, crop or flip-crop"
    )
    model: str | None = Field(
        None,
        description="linear, mlp, cnn, resnet18, lstm, low-rank, hf:NAME_OR_FOLDER or file.py:Class; by default what "
        "suits the data",
    )
    model_options: dict[str, Any] = Field({}, description="options of the model (--set model.name=value)")
    body: str | None = Field(None, description="name patterns of the body, separated by commas")
    head: str | None = Field(None, description="name patterns of the head, separated by commas")
    batch_norm: Literal["averaged", "local"] = Field(
        "averaged", description="statistics of BatchNorm layers: averaged with the model, or kept by each client"
    )
    init_from: str | None = Field(
        None,
        description="initial weights: what the clients of a finished run share (its folder, whose table is then read "
        "as there), or a file .safetensors",
    )
    rounds: int = Field(30, ge=1, description="communication rounds T")
    participation: float = Field(1.0, gt=0, le=1, description="share r of the clients in each round")
    local_epochs: int = Field(1, ge=0, description="local epochs E (for FedRep those of the body)")
    local_steps: int | None = Field(None, ge=1, description="mini-batch steps in a round, in place of local epochs")
    batch_size: int = Field(10, ge=1, description="samples in a mini-batch B")
    lr: float | None = Field(None, gt=0, description="learning rate; by default what suits the data")
    optimizer: Literal["sgd", "adam", "adamw"] | None = Field(
        None,
        description="of local training, fresh in every round (default: adamw for models hf:…, else sgd)",
    )
    head_lr: float | None = Field(None, gt=0, description="learning rate of the head, in place of --lr")
    body_lr: float | None = Field(None, gt=0, description="learning rate of the body, in place of --lr")
    warmup: int = Field(
        0,
        ge=0,
        description="rounds in which the learning rate rises in equal steps to its full height, or to what "
        "--lr-schedule makes of it",
    )
    clip_norm: float | None = Field(None, gt=0, description="largest L2 norm of a client's gradient at a step")
    momentum: float = Field(0.5, ge=0, lt=1, description="momentum of sgd, fresh in every round")
    betas: str | None = Field(
        None, description="of adam and adamw, as in torch.optim: BETA1,BETA2 (default: 0.9,0.999)"
    )
    eps: float | None = Field(None, gt=0, description="of adam and adamw, as in torch.optim (default: 1e-8)")
    weight_decay: float = Field(0.0, ge=0, description="L2 penalty added to gradients; of adamw, apart from them")
    no_decay_bias: bool = Field(False, description="weight decay spares biases and scales (vectors of the model)")
    class_weights: str | None = Field(
        None, description="of classes in the loss: balanced (by the clients' training rows, added up) or W0,W1,…"
    )
    loss: str | None = Field(
        None, description="file.py:function of (output, target) that gives one loss per row, in place of the task's"
    )
    lr_schedule: str = Field("constant", description="constant, cosine, exponential:GAMMA or halve:0.5,0.75")
    weighting: Literal["uniform", "samples"] = Field("uniform", description="how updates are averaged")
    aggregate: str = Field(
        "mean",
        description="how updates are combined: mean, or against false ones median, trimmed:SHARE, krum:F, "
        "multi-krum:F:M, bulyan:F, clip:LENGTH",
    )
    server_optimizer: Literal["none", "momentum", "adam"] = Field(
        "none", description="how the server applies a round's change: at once, FedAvgM or FedAdam"
    )
    server_lr: float = Field(1.0, gt=0, description="step of the server optimiser")
    server_momentum: float = Field(0.9, ge=0, lt=1, description="momentum (beta 1) of the server optimiser")
    server_beta2: float = Field(0.99, ge=0, lt=1, description="second-moment decay of FedAdam")
    server_epsilon: float = Field(1e-3, gt=0, description="degree of adaptivity of FedAdam (tau)")
    dp: Literal["client", "example"] | None = Field(
        None,
        description="differential privacy of clients: cut what each sends, and add noise; or of single examples: the "
        "same in every step of training",
    )
    dp_clip: float | None = Field(
        None,
        gt=0,
        description="largest L2 norm of a client's change, over all tensors (adaptive: the first; 0.1), or of an "
        "example's gradient",
    )
    dp_noise: float | None = Field(
        None, gt=0, description="standard deviation of the noise, as a multiple of --dp-clip"
    )
    dp_epsilon: float | None = Field(None, gt=0, description="in place of --dp-noise: find the noise for this epsilon")
    dp_delta: float | None = Field(
        None, gt=0, lt=1, description="delta at which epsilon is told (default: 1/clients^1.1, or 1/examples^1.1)"
    )
    dp_where: Literal["server", "client"] | None = Field(
        None, description="who adds the noise: server, to the mean (default), or client, before anything leaves it"
    )
    dp_adaptive_clip: float | None = Field(
        None, gt=0, lt=1, description="let --dp-clip follow this quantile of the changes' norms, such as 0.5"
    )
    dp_secret_noise: bool = Field(
        False, description="noise from a secret of the operating system, not from the seed: nobody can draw it again"
    )
    finetune_epochs: int = Field(
        0, ge=0, description="epochs of fine-tuning on each client, after the last round (+FT)"
    )
    finetune: Literal["head", "all"] = Field(
        "head", description="what --finetune-epochs trains: the head on a fixed body, or the whole model"
    )
    engine: Literal["auto", "serial", "processes", "batched", "messages", "ray"] = Field(
        "auto", description="how to compute"
    )
    workers: int | None = Field(None, ge=1, description="worker processes (default: one per core)")
    ray_address: str | None = Field(
        None, description="Ray cluster of --engine ray: HOST:PORT, or auto (default: a Ray of this run's own)"
    )
    threads: int = Field(
        1, ge=1, le=1024, description="threads of each worker; another number gives numbers with other last bits"
    )
    device: str = Field("auto", description="what computes: auto, cpu, cuda, cuda:NUMBER or mps")
    precision: Literal["fp32", "tf32", "bf16"] = Field(
        "fp32", description="of convolutions and matrix products; weights, momentum and averages stay fp32"
    )
    dtype: Literal["float32", "float64"] = Field(
        "float32", description="number type of weights and of what is computed; tables hold single precision"
    )
    seed: int = Field(0, ge=0, description="seed of every draw")
    eval_every: int = Field(1, ge=1, description="evaluate every K rounds (and after the last)")
    eval_last: int = Field(0, ge=0, description="evaluate each of the last K rounds as well")
    validation_fraction: float = Field(
        0.0, ge=0, lt=1, description="share of each client's training rows that is held out to judge rounds by"
    )
    early_stopping: int | None = Field(
        None,
        ge=1,
        description="end after so many tests on validation rows without a better one; the best is kept",
    )
    metric: str | None = Field(
        None,
        description="file.py:function of (targets, predictions) that gives one number, or one per row: a metric of "
        "your own beside the task's, or several, separated by commas",
    )
    rank_by: str | None = Field(
        None,
        description="metric by which rounds are kept (early stopping), candidates chosen and methods ranked (default: "
        "the task's first); one of your own as NAME or NAME:lower",
    )
    worst_min_rows: int = Field(
        1, ge=1, description="test rows that a client needs to be among those of whom the worst tenth is told"
    )
    metrics: Literal["basic", "full"] = Field(
        "basic", description="full: neural collapse, body angles, accuracy before and after local training, as well"
    )
    eval_clients: int | None = Field(
        None, ge=1, description="clients evaluated during training; by default all, or a panel when over 2,000"
    )
    final_eval_clients: int | None = Field(
        None,
        ge=1,
        description="clients of the last test, drawn by the seed, where rounds are tested on some; default all",
    )

    @field_validator("*", mode="before")
    @classmethod
    def _numbers_are_no_truth_values(cls, value: object, info: ValidationInfo) -> object:
        if isinstance(value, bool) and cls.model_fields[info.field_name or ""].annotation in _NUMBERS:
            raise ValueError("a number is needed, not a truth value")
        return value

    @field_validator("init_from", mode="before")
    @classmethod
    def _path(cls, value: object) -> object:
        return os.fspath(value) if isinstance(value, os.PathLike) else value

    @field_validator("class_weights", mode="before")
    @classmethod
    def _weights(cls, value: object) -> object:
        return ",".join(map(str, value)) if isinstance(value, list | tuple) else value

    @field_validator("loss", mode="before")
    @classmethod
    def _loss_by_name(cls, value: object) -> object:
        if callable(value):
            raise ValueError("is a function, which train(…, loss=f) takes; elsewhere write it as file.py:function")
        return value

    @field_validator("metrics", mode="before")
    @classmethod
    def _own_metrics_elsewhere(cls, value: object) -> object:
        if isinstance(value, Mapping) or callable(value):
            raise ValueError(
                "holds functions, which train(…, metrics={name: f}) takes; elsewhere write metric=file.py:f"
            )
        if isinstance(value, str) and ".py:" in value:
            raise ValueError("metrics of your own by name are metric=file.py:f; this is basic or full")
        return value

    @field_validator("betas", mode="before")
    @classmethod
    def _two_betas(cls, value: object) -> object:
        if value is None:
            return None
        parts = value if isinstance(value, list | tuple) else re.split("[,:]", str(value))
        try:
            betas = [float(part) for part in parts]
        except (TypeError, ValueError):
            betas = []
        if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"{value!r} is not two numbers from 0 to below 1, such as 0.9,0.999")
        return ",".join(map(repr, betas))

    @field_validator("class_weights")
    @classmethod
    def _weights_are_numbers(cls, value: str | None) -> str | None:
        try:
            numbers = [] if value in (None, "balanced") else [float(part) for part in str(value).split(",")]
        except ValueError:
            numbers = [math.nan]
        if not all(math.isfinite(number) and number >= 0 for number in numbers) or (numbers and not any(numbers)):
            raise ValueError(
                f"'{value}' is neither balanced{meant(str(value), ['balanced'])} nor numbers of at least 0, not all of "
                "them 0, such as 1,5"
            )
        return value

    @field_validator(
        "lr", "feature_noise", "participation", "momentum", "weight_decay", "server_lr", "server_epsilon", "clients",
        "classes_per_client", "train_samples", "test_samples", "rounds", "local_epochs", "local_steps", "batch_size",
        "head_lr", "body_lr", "warmup", "clip_norm", "early_stopping", "finetune_epochs", "workers", "eval_every",
        "eval_last", "eval_clients", "final_eval_clients", "eps", "worst_min_rows", "dp_clip", "dp_noise", "dp_epsilon",
        "dp_delta",
    )  # fmt: skip
    @classmethod
    def _in_range(cls, value: float | None) -> float | None:
        if value is not None:
            check_number(value)
        return value

    @field_validator("local_steps")
    @classmethod
    def _epochs_or_steps(cls, value: int | None, info: ValidationInfo) -> int | None:
        epochs = info.data.get("local_epochs", 1)
        if value is not None and epochs != 1:
            raise ValueError(f"takes the place of local_epochs, which is {epochs}; give one of the two")
        return value

    @field_validator("aggregate")
    @classmethod
    def _aggregate(cls, value: str) -> str:
        from commonground.aggregation import parse_aggregate  # which loads PyTorch; names and help do without

        try:
            return str(parse_aggregate(value))
        except ConfigError as error:
            raise ValueError(str(error)) from None

    @field_validator("ray_address")
    @classmethod
    def _address(cls, value: str | None) -> str | None:
        host, _, port = (value or "").rpartition(":")
        there = bool(host) and "/" not in host and port.isdigit() and 0 < int(port) < 1 << 16
        if value not in (None, "auto") and not there:
            raise ValueError(f"is neither HOST:PORT of a Ray cluster nor auto{meant(str(value), ['auto'])}")
        return value

    @field_validator("lr_schedule")
    @classmethod
    def _schedule(cls, value: str) -> str:
        Schedule.parse(value)
        return value

    @classmethod
    def make(cls, values: Mapping[str, Any]) -> RunConfig:
        """Validate values from flags and files.

        Raises:
            ConfigError: an unknown key or a value out of range, in one sentence that names it.
        """
        values = with_usual_names(values)
        try:
            return cls(**values)
        except ValidationError as error:
            raise ConfigError(_hint(values, cls.model_fields) or one_sentence(error, cls.model_fields)) from None

    @field_validator("options", "model_options", mode="before")
    @classmethod
    def _plain(cls, given: Any) -> Any:
        """NumPy's numbers and arrays as Python's, which files can hold."""
        if not isinstance(given, Mapping):
            return given
        return {key: value.tolist() if hasattr(value, "tolist") else value for key, value in given.items()}

    @field_validator("partition", mode="before")
    @classmethod
    def _partition(cls, given: Any) -> Any:
        """A partition object as the text that names it; a function of one's own has none that a run could be repeated
        by.
        """
        if callable(given) and is_ours(type(given)):
            return str(given)
        if callable(given):
            raise ValueError(
                "a function of yours is given with the data, cg.load_data(…, partition=f), or by its file, "
                "partition='file.py:f'"
            )
        return given

    @field_validator("target", "drop", "text_column", "kinds", mode="before")
    @classmethod
    def _names(cls, given: Any) -> Any:
        """Names in a list, and kinds by name, as the text in which a command is given them."""
        if isinstance(given, Mapping):
            given = [f"{name}={kind}" for name, kind in given.items()]
        if not isinstance(given, list | tuple):
            return given
        for name in given:
            if not isinstance(name, str):
                raise ValueError(f"{name!r} is no name of a column (names are text: '1', not 1)")
        return listed(given)

    @classmethod
    def read(cls, path: Path) -> dict[str, Any]:
        """The values in a TOML file, with every key checked."""
        try:
            values = tomllib.loads(path.read_text("utf-8-sig"))  # Windows marks UTF-8
        except FileNotFoundError:
            raise ConfigError(f"the configuration file '{path}' does not exist") from None
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            why = reason(error, path)
            raise ConfigError(f"the configuration file '{path}' is not readable as TOML: {why}") from None
        values = with_usual_names(values)
        for key in values:
            if key not in cls.model_fields:
                raise ConfigError(f"the configuration file '{path}' has the unknown key '{key}'{_near(key, cls)}")
        return values

    def to_toml(self) -> str:
        """The configuration as TOML, settings left at their automatic value omitted.

        Raises:
            ConfigError: a hyperparameter is an object that no file holds.
        """
        for name, value in self.options.items():
            try:
                tomli_w.dumps({} if value is None else {name: value})
            except TypeError:
                raise ConfigError(
                    f"{name}={value!r} of {self.algorithm} cannot be written to config.toml: a hyperparameter of a run "
                    "that is kept is a text, a number, a truth value, a date, or a list or table of these"
                ) from None
        return tomli_w.dumps(self.model_dump(exclude_none=True))

    @property
    def adam_betas(self) -> tuple[float, float] | None:
        """``betas`` as numbers."""
        if self.betas is None:
            return None
        first, second = map(float, self.betas.split(","))
        return first, second

    def is_tested(self, round: int) -> bool:
        """Whether models are tested after a round."""
        return round % self.eval_every == 0 or round == self.rounds or round > self.rounds - self.eval_last

    def lr_after(self, done: float) -> float:
        """Learning rate when this share of the run is done, from 0 to 1."""
        assert self.lr is not None, "the learning rate is resolved before a run starts"
        return self.lr * self._warm(done) * Schedule.parse(self.lr_schedule).factor(done, self.rounds)

    def _warm(self, done: float) -> float:
        """Share of the full learning rate: r/(W + 1) in round r of W rounds of warm-up, then 1."""
        # Rounded, so that a round's rate does not depend on the number of all rounds by a last bit.
        return min(1.0, (round(done * self.rounds, 6) + 1) / (self.warmup + 1))

    def table_settings(self) -> dict[str, Any]:
        """What the configuration says of a table: keywords of :func:`~commonground.data.load_data`."""
        from commonground.data.tables.options import TableOptions

        names = (option.name for option in dataclasses.fields(TableOptions))
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def federation(self, clients: int) -> int:
        """Number of clients of the run.

        Args:
            clients: of the data at hand; a single client of a larger federation, on its own host, has its own alone.
        """
        return self.clients if clients == 1 and self.clients else clients

    @property
    def draws_by_class(self) -> bool:
        """Whether training rows that are held out or kept are drawn evenly from a client's classes. Where single
        examples are hidden they are not: one of another class would change which others are trained on.
        """
        return self.dp != "example"

    def participants(self, clients: int) -> int:
        """Number of clients sampled in a round."""
        return max(1, round(self.participation * clients))


def _near(key: str, cls: type[BaseModel]) -> str:
    near = nearest(key, cls.model_fields)
    return f"; did you mean '{near}'?" if near else f"; known are {', '.join(cls.model_fields)}"


def with_usual_names(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by their names: a target column is called ``label`` as well, as on the command line.

    Raises:
        ConfigError: both names say something.
    """
    named = dict(values)
    label = named.pop("label", None)
    if label is None:
        return named
    if named.get("target") not in (None, label):
        raise ConfigError(f"target={named['target']!r} and label={label!r} both name the column to predict; give one")
    return {**named, "target": label}


def _hint(values: Mapping[str, Any], known: Mapping[str, Any]) -> str:
    """Where a setting of the algorithm was given as one of the run: how to give it; otherwise empty."""
    unknown = [key for key in values if key not in known]
    if not unknown:
        return ""
    from commonground.algorithms import registry  # which loads PyTorch; most mistakes are others

    cls = registry.get(str(values.get("algorithm", "fedrep")))
    for key in unknown:
        if cls is not None and key in cls.options():
            return f"'{key}' is a setting of {cls.title}: give it as options={{'{key}': …}} (--set {key}=…)"
    return ""

"""What every engine starts from: the data, the model, its groups and the algorithm, and samples as model inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from commonground.algorithms import Algorithm, Tensors
from commonground.config import RunConfig
from commonground.data import FederatedDataset
from commonground.data.augment import Draws
from commonground.engine.clients.batches import Rates
from commonground.errors import ConfigError, ModelError
from commonground.keys import torch_stream
from commonground.models import FrozenBaseModel, Groups, KeyedDropout, Split, find_split, tensors_of

__all__ = ["Samples", "Setup", "client_model", "client_start"]


def client_start(groups: Groups, algorithm: Algorithm, initial: Tensors) -> Tensors:
    """A client's personal tensors and state before its first round.

    Args:
        groups: the model's parameter groups.
        algorithm: says what is personal.
        initial: the model's initial tensors; BatchNorm statistics that clients keep start from these as well.
    """
    personal = {*groups.names(algorithm.personal), *groups.local_statistics}
    common = {name: value for name, value in initial.items() if name not in groups.local_statistics}
    return {n: initial[n] for n in groups.whole("all") if n in personal} | algorithm.client_state(common)


def client_model(groups: Groups, algorithm: Algorithm, shared: Tensors, own: Tensors) -> Tensors:
    """The tensors in which a client's own model differs from the shared one.

    Args:
        groups: the model's parameter groups.
        algorithm: says what the client's model is made of.
        shared: the shared tensors.
        own: what the client keeps (see :func:`client_start`), possibly stacked.
    """
    statistics = {name: own[name] for name in groups.local_statistics}
    rest = {name: value for name, value in own.items() if name not in statistics}
    return algorithm.personal_model(shared, rest) | statistics


class Samples:
    """Stored samples as model inputs: scaled, with the data set's feature noise, normalised, images channels last.

    Args:
        data: the federated data set; its arrays are used in place, never copied as a whole.
        dtype: the model's number type.
    """

    def __init__(self, data: FederatedDataset, dtype: torch.dtype) -> None:
        self.data = data
        self.dtype = dtype
        self._image = len(data.sample_shape) == 3
        p = data.preprocess
        self._scale = p.scale
        self._mean = torch.tensor(p.mean, dtype=dtype) if p.mean else None
        self._std = torch.tensor(p.std, dtype=dtype) if p.std else None
        self._owners: dict[bool, Tensor] = {}

    @property
    def shape(self) -> tuple[int, ...]:
        """One sample's shape as the model sees it; images as (channels, height, width)."""
        s = self.data.sample_shape
        return (s[2], s[0], s[1]) if self._image else tuple(s)

    @cached_property
    def _noise(self) -> Tensor:
        """What is subtracted from each client's samples after scaling: [clients + 1, …], the last (nobody's) zero."""
        assert self.data.noise is not None
        images = torch.from_numpy(self.data.noise.images).to(self.dtype) * self._scale * self.data.noise.strength
        return torch.cat([images, torch.zeros_like(images[:1])])

    def _noise_of(self, train: bool, index: npt.NDArray[np.int64]) -> Tensor:
        """The noise of samples given by position, [n, …]; [1, …] where one client owns them all."""
        if train not in self._owners:
            self._owners[train] = torch.from_numpy(self.data.owners("train" if train else "test"))
        owners = self._owners[train][torch.from_numpy(index)]
        if len(owners) and bool((owners == owners[0]).all()):
            owners = owners[:1]
        return self._noise[owners]

    def rows(self, split: str, index: npt.NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Inputs in storage order (images channels last) [n, …] and labels [n] of samples given by position."""
        train = split == "train"
        x = torch.from_numpy((self.data.x_train if train else self.data.x_test)[index])
        y = torch.from_numpy((self.data.y_train if train else self.data.y_test)[index])
        if self.data.tokens:
            return x, y
        x = x.to(self.dtype)
        if self._scale != 1.0:
            x = x.mul_(self._scale) if x.dtype == self.dtype else x * self._scale
        if self.data.noise is not None:
            x = x.sub_(self._noise_of(train, index))
        if self._mean is not None:
            x = x.sub_(self._mean)
        if self._std is not None:
            x = x.div_(self._std)
        return x, y

    @cached_property
    def black(self) -> Tensor:
        """What a stored zero is as a model input: [channels] or a scalar."""
        black = torch.zeros((), dtype=self.dtype)
        if self._mean is not None:
            black = black - self._mean
        return black if self._std is None else black / self._std

    def arrange(self, rows: Tensor) -> Tensor:
        """Rows in storage order [n, …] as the model takes them: images as (channels, height, width), as a view."""
        return rows.movedim(-1, -3) if self._image else rows


@dataclass(frozen=True)
class Setup:
    """All a worker needs to carry out any client's round.

    Attributes:
        config: the run's configuration, every automatic setting resolved.
        data: the federated data set.
        model: the module; its tensors are working memory, the initial values are ``initial``.
        groups: the model's parameter groups.
        algorithm: the algorithm.
        initial: initial values of every tensor by name.
    """

    config: RunConfig
    data: FederatedDataset
    model: nn.Module
    groups: Groups
    algorithm: Algorithm
    initial: Tensors
    _splits: dict[frozenset[str], Split | None] = field(default_factory=dict, repr=False)

    @classmethod
    def build(
        cls, config: RunConfig, data: FederatedDataset, model: nn.Module, groups: Groups, algorithm: Algorithm
    ) -> Setup:
        """Check that algorithm, model and data fit, and take the model's present weights as the start.

        Raises:
            ModelError: the model's output does not fit the data, or the algorithm's groups do not cover the model.
        """
        algorithm.check(config)
        if config.augment != "none" and len(data.sample_shape) != 3:
            raise ConfigError(f"augment={config.augment} needs images, and samples of {data.name} are none")
        if config.batch_norm == "local" and not groups.local_statistics:
            raise ConfigError(
                f"--batch-norm local keeps statistics of BatchNorm layers with the clients, and the model "
                f"'{config.model}' has none that change"
            )
        groups.check_cover(algorithm.shared, algorithm.personal)
        initial = {name: t.detach().clone() for name, t in tensors_of(model).items()}
        setup = cls(config, data, model, groups, algorithm, initial)
        setup._check_output()
        setup.prepare_model()
        return setup

    def prepare_model(self) -> None:
        """Let a model with a frozen lower part make room for this data set's hidden states."""
        if isinstance(self.model, FrozenBaseModel):
            self.model.keep_hidden(np.concatenate([self.data.x_train[:, 0, 1], self.data.x_test[:, 0, 1]]))

    def _check_output(self) -> None:
        self.model.eval()
        try:
            with torch.no_grad():
                out = self.model(self.probe)
        except (RuntimeError, TypeError, ValueError) as error:
            text = str(error).splitlines()[0]
            raise ModelError(f"the model cannot take samples of shape {self.samples.shape}: {text}") from error
        if not isinstance(out, Tensor):
            raise ModelError(f"the model must return one tensor of logits, not a {type(out).__name__}")
        if self.language:
            return
        if out.ndim != 2 or out.shape[1] != self.data.classes:
            raise ModelError(
                f"the model gives outputs of shape {tuple(out.shape[1:])}, but the data has {self.data.classes} classes"
            )

    @cached_property
    def samples(self) -> Samples:
        """The data as model inputs."""
        return Samples(self.data, getattr(torch, self.config.dtype))

    @property
    def language(self) -> bool:
        """Whether the task is predicting the tokens of answers; the model then returns its own losses."""
        return self.data.task == "language"

    def augmented(self, rows: Tensor, key: tuple[int, ...], full: int) -> Tensor:
        """Training images of one client's batch, randomly changed if the run says so.

        Args:
            rows: [n, height, width, channels], as :meth:`Samples.rows` gives them.
            key: round, client, phase and step.
            full: images of a full batch, for as many of which is drawn.
        """
        if self.config.augment == "none":
            return rows
        draws = Draws.of(full, self.config.augment, torch_stream(self.config.seed, "augment", *key))
        return Draws(*(drawn[: len(rows)] for drawn in draws)).apply(rows, self.samples.black)

    @property
    def folds(self) -> bool:
        """Whether rows of several clients can go through the model's frozen part at once."""
        return isinstance(self.model, FrozenBaseModel)

    def keep_hidden(self, split: str, clients: Sequence[int]) -> None:
        """Let a model with a frozen lower part compute it now for these clients' rows, one client after the other."""
        if not isinstance(self.model, FrozenBaseModel):
            return
        indices = self.data.train_indices if split == "train" else self.data.test_indices
        for client in clients:
            self.model.fill(self.samples.rows(split, indices(client))[0])

    @cached_property
    def probe(self) -> Tensor:
        """Two real inputs, to try the model on."""
        n = len(self.data.y_train)
        return self.samples.arrange(self.samples.rows("train", np.array([0, n - 1]))[0])

    @cached_property
    def shared_names(self) -> tuple[str, ...]:
        """Tensors that travel."""
        return self.groups.names(self.algorithm.shared)

    @cached_property
    def state_names(self) -> tuple[str, ...]:
        """Extra tensors each client keeps."""
        return tuple(self.algorithm.client_state(self.common))

    @cached_property
    def personal_names(self) -> tuple[str, ...]:
        """Tensors of the model that never leave their client."""
        return tuple(name for name in self.initial_personal if name in self.initial)

    @cached_property
    def common(self) -> Tensors:
        """Initial values of the tensors that belong to groups: of all but BatchNorm statistics that clients keep."""
        return {name: value for name, value in self.initial.items() if name not in self.groups.local_statistics}

    @cached_property
    def initial_personal(self) -> Tensors:
        """A client's personal tensors and state before its first round."""
        return client_start(self.groups, self.algorithm, self.initial)

    @cached_property
    def initial_shared(self) -> Tensors:
        """The server's tensors before the first round."""
        model = {name: self.initial[name].clone() for name in self.shared_names}
        return model | self.algorithm.server_state(self.common)

    @property
    def has_global_model(self) -> bool:
        """Whether the shared tensors are a whole model; without BatchNorm statistics they are not."""
        return self.algorithm.has_global_model and not self.groups.local_statistics

    @property
    def has_personal_model(self) -> bool:
        """Whether a client's own model differs from the shared tensors, be it by its BatchNorm statistics alone."""
        return self.algorithm.has_personal_model or bool(self.groups.local_statistics)

    def personal_model(self, shared: Tensors, own: Tensors) -> Tensors:
        """See :func:`client_model`."""
        return client_model(self.groups, self.algorithm, shared, own)

    @cached_property
    def dropouts(self) -> dict[str, tuple[KeyedDropout, tuple[int, ...]]]:
        """Dropout layers by name, each with the shape of one sample there."""
        found: dict[str, tuple[KeyedDropout, tuple[int, ...]]] = {}
        layers = {n: m for n, m in self.model.named_modules() if isinstance(m, KeyedDropout) and m.p > 0}
        handles = [
            layer.register_forward_pre_hook(
                lambda m, inputs, n=name: found.__setitem__(
                    n, (m, getattr(m, "sample_shape", tuple(inputs[0].shape[1:])))
                )
            )
            for name, layer in layers.items()
        ]
        training = self.model.training  # this may be asked for in the middle of training
        self.model.eval()
        with torch.no_grad():
            self.model(self.probe)
        self.model.train(training)
        for handle in handles:
            handle.remove()
        return {name: found[name] for name in layers if name in found}

    @cached_property
    def head_module(self) -> nn.Module | None:
        """The module whose input is ``Output.features``: the one that holds exactly the head, if there is one."""
        names = set(self.groups.whole("head"))
        modules: list[tuple[str, nn.Module]] = list(self.model.named_modules())
        return next((m for n, m in modules if n and {f"{n}.{t}" for t in tensors_of(m)} == names), None)

    def split(self, trained: frozenset[str]) -> Split | None:
        """Where the model can be cut when only ``trained`` changes (see :func:`~commonground.models.find_split`)."""
        if trained not in self._splits:
            self._splits[trained] = self._find_split(trained)
        return self._splits[trained]

    def training_split(self, trained: frozenset[str]) -> Split | None:
        """As :meth:`split`, for training: none where images change from epoch to epoch, and features with them."""
        return self.split(trained) if self.config.augment == "none" else None

    def _find_split(self, trained: frozenset[str]) -> Split | None:
        found = find_split(self.model, trained, self.probe)
        if found is not None and self.data.tokens:
            with torch.no_grad():
                features = found.features(found.first, self.probe)
            if features.ndim != 2:
                return None  # a head that is given whole sequences, whose lengths differ
        return found

    def lr_at(self, round: int) -> float:
        """Learning rate at the start of a round (1-based); after the last round, that of the last."""
        return self.lr_after((min(round, self.config.rounds) - 1) / self.config.rounds)

    def lr_after(self, done: float) -> float:
        """Learning rate when this share of the run is done: the run's schedule times the method's own."""
        return self.config.lr_after(done) * self.algorithm.lr_factor(done)

    def rates(self, lr: float, momentum: float | None, weight_decay: float | None) -> Rates:
        """Settings of SGD, the run's own where None is given."""
        return Rates(
            lr,
            self.config.momentum if momentum is None else momentum,
            self.config.weight_decay if weight_decay is None else weight_decay,
        )

    def with_algorithm(self, algorithm: Algorithm, initial: Tensors) -> Setup:
        """The same data and model under another algorithm, starting from other weights."""
        return replace(self, algorithm=algorithm, initial=initial)

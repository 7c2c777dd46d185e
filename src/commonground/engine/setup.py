"""What every engine starts from: the data, the model, its groups and the algorithm, and samples as model inputs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.func import vmap

from commonground.algorithms import Algorithm, Tensors
from commonground.algorithms.head_tuning import tuning
from commonground.config import RunConfig
from commonground.data import FederatedDataset
from commonground.data.inputs import Inputs, to_device
from commonground.data.model_inputs import ModelInputs
from commonground.devices import resolve_device
from commonground.engine.client_tensors import client_model, client_start, in_order, places_of
from commonground.engine.clients.batches import Length
from commonground.engine.clients.optimizers import BETAS, EPSILON, Rates
from commonground.engine.given_by_hooks import tensors_given
from commonground.engine.own_metrics import OwnFigure
from commonground.engine.private.settings import examples_of, privacy_of
from commonground.errors import ModelError
from commonground.generators import keyed_generators
from commonground.models import FrozenBaseModel, Groups, KeyedDropout, ModelCut, call, find_split
from commonground.models.behaviour import Behaviour, held_generators
from commonground.models.heads import head_module
from commonground.precision import autocast
from commonground.privacy import ClientPrivacy, ExamplePrivacy, KeyedNoise, NoiseSource, SecretNoise
from commonground.registration import is_ours
from commonground.tasks import FineFigures, Objective, OwnLoss, OwnMetric, Rank

__all__ = ["Setup"]


@dataclass(frozen=True)
class Setup:
    """All a worker needs to carry out any client's round.

    Attributes:
        config: the run's configuration, every automatic setting resolved.
        data: the federated data set.
        model: the module; its tensors are working memory, the initial values are ``initial``.
        groups: the model's parameter groups.
        algorithm: the algorithm.
        initial: initial values of every tensor by name, on the host.
        start: of a user's own module, all tensors as they were before the algorithm extended it; else None.
        loss: replaces the task's loss in training, if the user gave one.
        own_metrics: the user's metrics, by name.
        class_weights: of classes in the loss, from the training rows of all clients together.
        behaviour: what calls of the model do besides giving outputs.
        stacking_trial: once the engine ``batched`` was thought of: why it cannot have the model, or an empty text.
        init_from: of a run that begins with another's weights, whose, and what of them.
        secret: the noise of ``--dp-secret-noise``; by default one that lasts as long as this object.
        counted: of ``--dp example``, how each round trains, as ε counts it
            (:mod:`commonground.engine.private.examples`).
    """

    config: RunConfig
    data: FederatedDataset
    model: nn.Module
    groups: Groups
    algorithm: Algorithm
    initial: Tensors
    start: Tensors | None = field(default=None, repr=False)
    loss: OwnLoss | None = field(default=None, repr=False)
    class_weights: tuple[float, ...] | None = None
    own_metrics: Mapping[str, OwnMetric] = field(default_factory=dict, repr=False)
    behaviour: Behaviour = field(default=Behaviour(), repr=False)
    secret: SecretNoise | None = field(default=None, repr=False)
    init_from: Mapping[str, str] | None = None
    counted: tuple[tuple[Length, ...], ...] = field(default=(), repr=False)
    stacking_trial: list[str] = field(default_factory=list, repr=False)
    _splits: dict[frozenset[str], ModelCut | None] = field(default_factory=dict, repr=False)

    def prepare_model(self) -> None:
        """Let a model with a frozen lower part make room for this data set's hidden states."""
        if isinstance(self.model, FrozenBaseModel):
            self.model.keep_hidden(np.concatenate([self.data.x_train[:, 0, 1], self.data.x_test[:, 0, 1]]))

    def keyed(self, purpose: str, *ids: int) -> AbstractContextManager[Callable[[], bool]]:
        """While open, whatever code of a user draws follows from the run's seed and this key; see
        :func:`~commonground.generators.keyed_generators`. Without such code nothing is done.
        """
        if not self.has_own_code:
            return nullcontext(lambda: False)
        return keyed_generators(self.config.seed, purpose, *ids, others=self.generators)

    @cached_property
    def has_own_code(self) -> bool:
        """Whether the model, the method or the loss is code of somebody else than this library and PyTorch."""
        given = self.loss is not None or bool(self.own_metrics) or self.behaviour.own
        return given or not is_ours(type(self.algorithm))

    @cached_property
    def fine(self) -> Sequence[FineFigures]:
        """What a detailed test tells beside the task's metrics: the task's finer figures and the user's metrics."""
        task = self.data.task
        own = [OwnFigure(name, metric, task) for name, metric in self.own_metrics.items()]
        return [*([] if task.fine is None else [task.fine]), *own]

    @cached_property
    def pulled(self) -> set[str]:
        """Which of a method's additions to the loss have depended on the model so far."""
        return set()

    @cached_property
    def rank(self) -> Rank:
        """The metric by which rounds and candidates are ranked."""
        return Rank.of(self.config.rank_by, self.data.task, self.own_metrics)

    @cached_property
    def generators(self) -> list[Any]:
        """Random generators that the model holds."""
        return held_generators(self.model)

    @cached_property
    def device(self) -> torch.device:
        """Where the run computes."""
        return resolve_device(self.config.device)

    @cached_property
    def objective(self) -> Objective:
        """What training minimises."""
        weights = self.class_weights
        tensor = None if weights is None else torch.tensor(weights, dtype=self.inputs.dtype, device=self.device)
        return Objective(self.data.task, tensor, self.loss)

    @cached_property
    def inputs(self) -> ModelInputs:
        """The data as model inputs."""
        return ModelInputs(self.data, getattr(torch, self.config.dtype), self.device, inputs_stay=self.folds)

    def moved(self, tensors: Tensors) -> Tensors:
        """Tensors on the run's device. Whole numbers stay on the host: they count, nothing is computed with them."""
        return {n: to_device(v, self.device) if v.is_floating_point() else v for n, v in tensors.items()}

    def autocast(self) -> AbstractContextManager[object]:
        """While open, convolutions and matrix products are computed in the run's precision."""
        return autocast(self.config.precision, self.device)

    def wide(self, value: Tensor) -> Tensor:
        """A model's output in the run's number type, in which losses are computed."""
        return value if value.dtype == self.inputs.dtype else value.to(self.inputs.dtype)

    @cached_property
    def numbers_per_output(self) -> int:
        """Numbers of a sample's output; a language model's has a score for every token of its vocabulary at every place
        of the longest answer.
        """
        with torch.no_grad(), self.keyed("probe"):
            out: Tensor = call(self.model, self.probe)
        _, y = self.inputs.rows("train", np.array([0]))
        return max(out[0].numel(), out.shape[-1] * y[0].numel())

    @property
    def folds(self) -> bool:
        """Whether rows of several clients can go through the model's frozen part at once."""
        return isinstance(self.model, FrozenBaseModel)

    def keep_hidden(self, split: str, clients: Sequence[int]) -> None:
        """Let a model with a frozen lower part compute it now for these clients' rows, one client after the other."""
        if not isinstance(self.model, FrozenBaseModel):
            return
        for client in clients:
            self.model.fill(self.rows_of(split, [client])[0])

    def rows_of(self, split: str, clients: Sequence[int]) -> tuple[Inputs, Tensor]:
        """Inputs and targets of these clients, one after the other, of the split ``train``, ``validation`` or ``test``;
        validation rows are stored among the training samples.
        """
        data = self.data
        indices = {"train": data.train_indices, "validation": data.validation_indices, "test": data.test_indices}[split]
        return self.inputs.rows("test" if split == "test" else "train", np.concatenate([indices(c) for c in clients]))

    def judged(self, which: str) -> tuple[str, npt.NDArray[np.int64]]:
        """The split on which a test of this kind is made, and each client's number of rows in it."""
        data = self.data
        return ("validation", data.validation_sizes) if which == "validation" else ("test", data.test_sizes)

    def tests_personal(self, which: str) -> bool:
        """Whether a test of this kind is one of the clients' own models."""
        return which == "personal" or (which == "validation" and self.has_personal_model)

    @cached_property
    def probe(self) -> Inputs:
        """Two real inputs, to try the model on."""
        n = len(self.data.y_train)
        return self.inputs.arrange(self.inputs.rows("train", np.array([0, n - 1]))[0])

    @cached_property
    def company(self) -> Inputs:
        """Three real inputs, to see whether the model joins them."""
        n = len(self.data.y_train)
        return self.inputs.arrange(self.inputs.rows("train", np.array([0, n - 1, n // 2]))[0])

    @cached_property
    def shared_names(self) -> tuple[str, ...]:
        """Tensors that travel."""
        return self.groups.names(self.algorithm.shared)

    @cached_property
    def state_names(self) -> tuple[str, ...]:
        """Extra tensors each client keeps.

        Raises:
            ModelError: one has the name that a tensor of a model might have.
        """
        state = tensors_given(self.algorithm, "client_state", self.algorithm.client_state(self.common))
        self._check_extra("client_state", state)
        return tuple(state)

    def _check_extra(self, hook: str, names: Iterable[str]) -> None:
        """Extra tensors are told from the model's by their names alone."""
        plain = next((name for name in names if "/" not in name), None)
        if plain is not None:
            raise ModelError(
                f"{hook} of {self.algorithm.title} names a tensor {plain!r}, as one of the "
                f"model's might be called; its name must contain a '/', such as 'own/{plain}'"
            )

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
        told = {} if self.privacy is None else self.privacy.server_state(self.inputs.dtype)
        extra = tensors_given(self.algorithm, "server_state", self.algorithm.server_state(self.common))
        self._check_extra("server_state", extra)
        return self.moved(model | extra | told)

    @cached_property
    def uploads(self) -> Tensors:
        """Extra tensors that every client sends and is not sent back, as examples of their shapes."""
        told = {} if self.privacy is None else self.privacy.upload_state(self.inputs.dtype)
        given = self.algorithm.upload_state(self.common, self.groups)
        extra = tensors_given(self.algorithm, "upload_state", given)
        self._check_extra("upload_state", extra)
        return extra | told

    @cached_property
    def declared(self) -> Tensors:
        """All tensors that a method may meet, as one client or the server has them, as examples of their shapes."""
        return {**self.initial, **self.initial_shared, **self.algorithm.client_state(self.common), **self.uploads}

    def laid_out(self, tensors: Mapping[str, Tensor]) -> Tensors:
        """Tensors with the model's own as they lie in its memory: of images, channels last. Products over what lies
        otherwise have other last digits.
        """
        found = {
            name: value.contiguous(memory_format=torch.channels_last)
            for name, value in tensors.items()
            if value.ndim == 4 and name in self.initial and not self.initial[name].is_contiguous()
        }
        return {**tensors, **found}

    def in_order(self, tensors: Mapping[str, Tensor]) -> Tensors:
        """Tensors as they are declared (see :func:`~commonground.engine.client_tensors.in_order`)."""
        return in_order(tensors, self._places)

    @cached_property
    def _places(self) -> dict[str, int]:
        return places_of(self.declared)

    @cached_property
    def buffers(self) -> frozenset[str]:
        """Tensors of the model that are no parameters."""
        return frozenset(self.groups.names("all")) - frozenset(self.groups.trainable("all"))

    @cached_property
    def privacy(self) -> ClientPrivacy | None:
        """How what clients send is made private (``--dp client``); None if it is not, or if they send nothing."""
        return privacy_of(self.config) if self.sends else None

    @cached_property
    def examples(self) -> ExamplePrivacy | None:
        """How steps of training are made private (``--dp example``); None if they are not, or if nothing is sent."""
        return examples_of(self.config) if self.sends else None

    @property
    def lacks_shared(self) -> bool:
        """Whether the model has none of the parts that the method shares."""
        return bool(self.algorithm.shared) and not self.shared_names

    @cached_property
    def sends(self) -> bool:
        """Whether anything leaves a client in some round: parts of the model, or tensors beside it."""
        if self.algorithm.server_state(self.common) or self.algorithm.upload_state(self.common, self.groups):
            return True
        return not self.lacks_shared and any(map(self.algorithm.sends, range(1, self.config.rounds + 1)))

    @property
    def clients_add_noise(self) -> bool:
        """Whether the clients themselves hide something before they send it."""
        return self.examples is not None or (self.privacy is not None and self.privacy.where == "client")

    @property
    def hides_updates(self) -> bool:
        """Whether the server is sent updates that nobody else may learn from, not by a figure of a round either."""
        return self.privacy is not None and self.privacy.where == "server"

    @cached_property
    def noise(self) -> NoiseSource:
        """Where the noise of differential privacy comes from; if it is secret, from the kept secret if there is one."""
        return self.secret or SecretNoise() if self.config.dp_secret_noise else KeyedNoise(self.config.seed)

    @property
    def server_secret(self) -> SecretNoise | None:
        """Whence the server's own noise comes, if it adds some and the secret is kept."""
        return None if self.privacy is None or self.clients_add_noise else self.secret

    @property
    def has_global_model(self) -> bool:
        """Whether the shared tensors are a whole model; without BatchNorm statistics they are not."""
        return self.algorithm.has_global_model and not self.groups.local_statistics

    @property
    def has_personal_model(self) -> bool:
        """Whether a client's own model differs from the shared tensors, be it by its BatchNorm statistics alone."""
        return self.algorithm.has_personal_model or bool(self.groups.local_statistics)

    @property
    def kind_of_model(self) -> str:
        """Which model is tested for each client: its own (``personal``), or the one that all have (``global``)."""
        return "personal" if self.has_personal_model else "global"

    @property
    def batch_norm(self) -> str:
        """What becomes of running statistics, whether the setting says so or the method: ``local`` if none travels."""
        travels = any(name in self.shared_names for name in self.groups.statistics)
        return "averaged" if travels else "local"

    def personal_models(self, shared: Tensors, own: Tensors, stacked: Collection[str] = ()) -> Tensors:
        """See :func:`client_model`; of several clients at once, each by itself.

        Args:
            shared: the shared tensors.
            own: what the clients keep, stacked.
            stacked: names of shared tensors that each client has its own of, stacked too.
        """
        shared, own = self.in_order(shared), self.in_order(self.moved(own))
        if not own:
            return client_model(self.groups, self.algorithm, shared, own)

        def of_one(theirs: Tensors, mine: Tensors) -> Tensors:
            return client_model(self.groups, self.algorithm, {**shared, **theirs}, mine)

        return vmap(of_one)({name: shared[name] for name in stacked}, own)

    @cached_property
    def dropouts(self) -> dict[str, tuple[KeyedDropout, tuple[int, ...]]]:
        """Dropout layers by name, each with the shape of one sample there."""
        found: dict[str, tuple[KeyedDropout, tuple[int, ...]]] = {}
        layers = {n: m for n, m in self.model.named_modules() if isinstance(m, KeyedDropout) and m.p > 0 and m.alone}
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
        with torch.no_grad(), self.keyed("probe"):
            call(self.model, self.probe)
        self.model.train(training)
        for handle in handles:
            handle.remove()
        return {name: found[name] for name in layers if name in found}

    @cached_property
    def head_module(self) -> nn.Module | None:
        """The module whose input is ``Output.features`` (:func:`~commonground.models.heads.head_module`)."""
        return head_module(self.model, self.groups)

    def on(self, data: FederatedDataset, config: RunConfig | None = None, *, same_rows: bool = False) -> Setup:
        """The same run on other data of the same form.

        Args:
            data: the data.
            config: of the run there; by default its own.
            same_rows: whether rows keep their positions, so that inputs which are made of them are these.
        """
        other = replace(self, data=data, config=config or self.config, _splits={})
        if same_rows:
            vars(other)["inputs"] = self.inputs
        return other

    def split(self, trained: frozenset[str]) -> ModelCut | None:
        """Where the model can be cut when only ``trained`` changes (see :func:`~commonground.models.find_split`)."""
        if trained not in self._splits:
            self._splits[trained] = self._find_split(trained)
        return self._splits[trained]

    def training_split(self, trained: frozenset[str]) -> ModelCut | None:
        """As :meth:`split`, for training: none where images change from epoch to epoch, and features with them, or
        where the model itself draws or counts in every call.
        """
        once = self.config.augment == "none" and not self.behaviour.draws and not self.behaviour.counters
        return self.split(trained) if once else None

    def _find_split(self, trained: frozenset[str]) -> ModelCut | None:
        if self.behaviour.draws_tested or self.behaviour.joins_tested:
            return None  # a row's features are not the same in two calls, or not in other company
        with self.keyed("split"):
            found = find_split(self.model, trained, self.probe)
        if found is not None and self.data.format.lengths_differ:
            with torch.no_grad():
                features = found.features(partial(call, found.first), self.probe)
            if features.ndim != 2:
                return None  # a head that is given whole sequences, whose lengths differ
        return found

    def lr_at(self, round: int) -> float:
        """Learning rate at the start of a round (1-based); after the last round, that of the last."""
        return self.lr_after(self.algorithm.done_before(min(round, self.config.rounds), self.config))

    def lr_after(self, done: float) -> float:
        """Learning rate when this share of the run is done: the run's schedule times the method's own."""
        return self.config.lr_after(done) * self.algorithm.lr_factor(done)

    def rates(self, lr: float, momentum: float | None, weight_decay: float | None) -> Rates:
        """Settings of the optimizer, the run's own where None is given."""
        return Rates(
            lr,
            self.config.momentum if momentum is None else momentum,
            self.config.weight_decay if weight_decay is None else weight_decay,
            self.config.optimizer or "sgd",
            self.config.clip_norm,
            self._lr_factors,
            self._undecayed,
            self.config.adam_betas or BETAS,
            EPSILON if self.config.eps is None else self.config.eps,
        )

    @cached_property
    def _lr_factors(self) -> dict[str, float]:
        """What the learning rates of head and body are, as multiples of the run's."""
        config = self.config
        given = [(group, rate) for group, rate in (("body", config.body_lr), ("head", config.head_lr)) if rate]
        return {name: rate / (config.lr or rate) for group, rate in given for name in self.groups.trainable(group)}

    @cached_property
    def _undecayed(self) -> frozenset[str]:
        """Tensors that weight decay spares: biases and the scales of normalisation layers, which are vectors."""
        spared = [name for name, value in self.initial.items() if value.ndim < 2]
        return frozenset(spared if self.config.no_decay_bias else ())

    def fine_tuning(self, shared: Tensors) -> Setup:
        """The setup of the round more in which every client tunes the last global model, or its head."""
        factor = self.algorithm.last_lr_factor(self.config.rounds)
        return self.with_algorithm(tuning(self.config.finetune, self.config.finetune_epochs, factor), dict(shared))

    def with_algorithm(self, algorithm: Algorithm, initial: Tensors) -> Setup:
        """The same data and model under another algorithm, starting from other weights."""
        return replace(self, algorithm=algorithm, initial={name: value.cpu() for name, value in initial.items()})

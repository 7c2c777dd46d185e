"""What an algorithm is: a page of verbs.

An algorithm says what a client does and what the server does, in its paper's own order. It knows nothing of devices,
loaders, transport or files: the :class:`Client` it is given may be one client, a stacked cohort of many, or the inside
of a remote machine.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from commonground.aggregation import MEAN, Aggregate
from commonground.errors import ConfigError
from commonground.keys import numpy_stream
from commonground.models import Groups
from commonground.tasks import Objective

__all__ = [
    "Algorithm",
    "Batch",
    "Client",
    "Loss",
    "Output",
    "Penalty",
    "RunSettings",
    "Server",
    "Tensors",
    "Update",
    "prefixed",
    "registry",
    "unprefixed",
    "yardsticks",
]

Tensors = dict[str, Tensor]
"""Tensors by name. In a stacked cohort each has one more, leading axis (clients), which elementwise arithmetic and
everything given to ``loss=`` and ``penalty=`` never sees."""


class Output(NamedTuple):
    """What a loss sees of a batch.

    Attributes:
        logits: [rows, classes], what the model returns (for other tasks than classification, its outputs).
        features: [rows, …], the input of the head.
        own: what belongs to the client: its current tensors, its state, and ``class_counts`` [classes], the number
            of its training samples of each class.
        weight: [rows], 1 for a sample and 0 for padding, for losses that look at a batch as a whole.
        reference: [rows, …], the batch's part of what :meth:`Client.fit` was given as ``reference``.
    """

    logits: Tensor
    features: Tensor
    own: Tensors
    weight: Tensor
    reference: Tensor | None = None


class Batch(NamedTuple):
    """Inputs ``x`` by name, each [rows, …], targets ``y`` [rows, …] and ``weight`` [rows] (1 for a sample, 0 for
    padding); ``masks`` are the batch's dropout masks, so that several iterators may run side by side.
    """

    x: Tensors
    y: Tensor
    weight: Tensor
    masks: Tensors | None = None


def prefixed(prefix: str, tensors: Tensors) -> Tensors:
    """Model tensors under the names of a second copy of the model: ``fc.weight`` becomes ``own/fc.weight``."""
    return {f"{prefix}/{name}": value for name, value in tensors.items()}


def unprefixed(prefix: str, tensors: Tensors) -> Tensors:
    """The copy of the model that :func:`prefixed` named so, under the model's own names; all else is left out."""
    start = f"{prefix}/"
    return {name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)}


Loss = Callable[[Output, Tensor], Tensor]
"""From a model's output and labels [rows] to one loss per sample [rows]; the verbs take the mean."""

Penalty = Callable[[Tensors, Tensors], Tensor]
"""From (the client's own tensors as in ``Output.own``, tensors received from the server) to a scalar that is added to
the mean loss."""


class Client(ABC):
    """The verbs of a client.

    Attributes:
        received: what the server sent this round, by name (never changes during the round).
        state: the client's own extra tensors (:meth:`Algorithm.client_state`), by name; changed by :meth:`keep`.
        class_counts: [classes] training samples of each class.
        steps: mini-batch steps of the last :meth:`fit` or :meth:`batches` (in a cohort one number per client).
        rounds: rounds of the run.
        local_epochs, local_steps: the run's ``--local-epochs`` and ``--local-steps``.
        lr: this round's learning rate.
        momentum, weight_decay: the run's, which :meth:`fit` uses and :meth:`step` leaves to the method (as it does the
            run's ``--optimizer``).
        task: what training minimises (the task's loss, or the user's), for a ``loss=`` that adds to it.
    """

    received: Tensors
    state: Tensors
    class_counts: Tensor
    steps: Tensor
    local_epochs: int
    local_steps: int | None
    lr: float
    momentum: float
    weight_decay: float
    seed: int
    round: int
    rounds: int
    task: Objective

    @abstractmethod
    def lr_after(self, done: float) -> float:
        """The learning rate when this share of the run is done (``lr`` is that of the round's start)."""

    def draw(self, purpose: str) -> float:
        """A uniform number in [0, 1) that is the same for all clients and the server in this round."""
        return float(numpy_stream(self.seed, purpose, self.round).random())

    @abstractmethod
    def fit(
        self,
        group: str | Sequence[str],
        *,
        epochs: int | None = None,
        steps: int | None = None,
        samples: int | None = None,
        start: Tensor | int | None = None,
        lr: float | Sequence[float] | None = None,
        momentum: float | None = None,
        weight_decay: float | None = None,
        batch_size: int | None = None,
        loss: Loss | None = None,
        penalty: Penalty | None = None,
        correction: Tensors | None = None,
        reference: Tensor | None = None,
    ) -> None:
        """Train a parameter group with the run's optimizer, by default mini-batch SGD, and leave everything else fixed.

        What it remembers starts fresh at each call, as in the papers' code. Batches are reshuffled each epoch; the last
        one of an epoch may be smaller.

        Args:
            group: the group's name or several.
            epochs: passes over the client's training data (default: the run's ``--local-epochs`` or, where given,
                ``--local-steps``); or give
            steps: a number of mini-batch steps; or
            samples: a number of samples to draw, the last batch cut to fit.
            start: with ``steps``: take them from the client's one unending order of batches, from this step on (in a
                cohort a number per client), so that calls continue each other instead of beginning a new epoch.
            lr: learning rate, or one for each of the ``steps``.
            lr, momentum, weight_decay, batch_size: default to the run's settings.
            loss: replaces the task's loss.
            penalty: added to the mean loss of each batch.
            correction: added to each gradient, by name.
            reference: a constant for each training sample, such as :meth:`features`, for the loss to compare with.
        """

    @abstractmethod
    def features(self) -> Tensor:
        """What the head sees of each of the client's training samples [n, …] under the current weights, without dropout
        and without gradients.
        """

    @abstractmethod
    def class_means(self) -> Tensor:
        """The mean of :meth:`features` over the training samples of each class [classes, F]; zero for a class that the
        client lacks.
        """

    @abstractmethod
    def batches(
        self,
        *,
        epochs: int | Tensor | None = None,
        steps: int | None = None,
        samples: int | None = None,
        batch_size: int | None = None,
        share: float = 1.0,
    ) -> Iterator[Batch]:
        """Mini-batches as :meth:`fit` would take them. Inside the loop, ``step``, ``set`` and ``keep`` leave a client
        of a stacked cohort alone that has no batch left.

        Args:
            epochs, steps, samples, batch_size: as in :meth:`fit`; the epochs may also be whole numbers on the host, in
                a cohort one for each client.
            share: of the client's samples that the batches are taken from (at least one sample), drawn by key at each
                call.
        """

    @abstractmethod
    def gradient(
        self,
        group: str | Sequence[str],
        batch: Batch | None = None,
        *,
        at: Tensors | None = None,
        loss: Loss | None = None,
        penalty: Penalty | None = None,
    ) -> Tensors:
        """Gradient of the mean loss with respect to a group.

        Args:
            group: what to differentiate for.
            batch: from :meth:`batches`; by default all training data of the client.
            at: values to use in place of the current ones, by name.
            loss, penalty: as in :meth:`fit`.
        """

    @abstractmethod
    def step(self, direction: Tensors, lr: float | None = None) -> None:
        """One plain step: every named tensor moves by −lr times its direction."""

    @abstractmethod
    def get(self, group: str | Sequence[str]) -> Tensors:
        """A copy of a group's current values."""

    @abstractmethod
    def set(self, tensors: Tensors) -> None:
        """Replace current values by name."""

    @abstractmethod
    def keep(self, state: Tensors) -> None:
        """Replace entries of ``state`` by name; they are there in the client's next round and never leave it."""

    @abstractmethod
    def scale(self, tensors: Tensors, factor: Tensor | float) -> Tensors:
        """Tensors times a number (in a cohort possibly one per client, such as ``1 / client.steps``)."""

    @abstractmethod
    def dot(self, one: Tensors, other: Tensors) -> Tensor:
        """Inner product over all entries of equally named tensors (in a cohort one number per client)."""

    def send(self, group: str | Sequence[str] | Tensors) -> Tensors:
        """What goes to the server: a copy of a group's values, or the given tensors."""
        return dict(group) if isinstance(group, dict) else self.get(group)


@dataclass(frozen=True)
class Update:
    """What one client sent in a round: its number, its training-sample count and the tensors."""

    client: int
    samples: int
    tensors: Tensors


class Server:
    """The verbs of the server.

    Attributes:
        shared: the shared tensors, by name; the algorithm replaces entries.
        memory: what the server remembers and does not send, by name (kept in checkpoints).
        round: 1-based round.
        clients: number of clients in the federation.
        lr: this round's learning rate.
        weighting: ``uniform`` (as FedRep and FLUTE average) or ``samples`` (as FedAvg and FedPer do).
        buffers: names of shared tensors that are no parameters and have no gradient: BatchNorm's running statistics.
        aggregate: how updates are combined; the mean, or what stands in its place (``--aggregate``).
    """

    def __init__(
        self,
        shared: Tensors,
        memory: Tensors | None = None,
        *,
        round: int = 1,
        clients: int = 1,
        lr: float = 1.0,
        weighting: str = "uniform",
        seed: int = 0,
        buffers: Sequence[str] = (),
        aggregate: Aggregate = MEAN,
    ) -> None:
        self.shared = shared
        self.memory = {} if memory is None else memory
        self.round = round
        self.clients = clients
        self.lr = lr
        self.weighting = weighting
        self.seed = seed
        self.buffers = frozenset(buffers)
        self.aggregate = aggregate

    def draw(self, purpose: str) -> float:
        """As :meth:`Client.draw`."""
        return float(numpy_stream(self.seed, purpose, self.round).random())

    def mean(self, updates: Sequence[Update], around: Tensors | None = None) -> Tensors:
        """Mean of what was sent, by name: uniform over clients, or weighted by their training samples; or what the
        run has in place of the mean (``--aggregate``).

        Args:
            updates: of the round's clients.
            around: what was sent is a change of these tensors; by default of the shared ones.
        """
        tensors = [update.tensors for update in updates]
        return self.aggregate(tensors, self.weights(updates), self.shared if around is None else around)

    def weights(self, updates: Sequence[Update]) -> list[float]:
        """Each update's share in a mean; they sum to 1."""
        weights = [float(u.samples) if self.weighting == "samples" else 1.0 for u in updates]
        total = sum(weights)
        return [weight / total for weight in weights]


class RunSettings(Protocol):
    """The settings of a run that :meth:`Algorithm.check` may look at: a few fields of its configuration."""

    @property
    def batch_norm(self) -> str:
        """``averaged``, or ``local`` if every client keeps the statistics of BatchNorm layers."""

    @property
    def optimizer(self) -> str | None:
        """Of local training: ``sgd``, ``adam`` or ``adamw``; None where nobody has chosen yet."""

    @property
    def local_steps(self) -> int | None:
        """Mini-batch steps in a round; None where epochs are counted."""

    @property
    def rounds(self) -> int:
        """Communication rounds."""


@dataclass(frozen=True)
class Algorithm(ABC):
    """Base of every algorithm: subclass it as a frozen dataclass in a file of its own.

    The fields of the dataclass are its hyperparameters (``--set name=value``). Class variables, written without
    annotation:

    Attributes:
        name: the name in the command line.
        title: the name in tables.
        source: authors and year of the paper.
        shared: groups that travel and are averaged. What is no group of the model is a pattern of its tensors' names
            (``"1.*"``, see :class:`~commonground.models.Groups`), here and in all verbs.
        personal: groups that never leave their client.
        may_stay_silent: whether a client may send nothing at all in a round (L2GD's local rounds).
        clients_remember: whether clients keep the shared tensors they were sent, so that the server sends a client
            only what has changed since its last round (for methods that leave a part of them as it is).
        default_momentum: of SGD where the run's ``--momentum`` is not given; None for the usual one.
        needs_classes: whether its formulas are about classes (a softmax over them, a head's rows as their prototypes),
            so that other tasks than classification are refused.
        needs_sgd: why its local step must be one of SGD, as the end of a sentence, so that other optimizers are
            refused; empty if all its training is by :meth:`Client.fit` and says nothing of the optimizer.
        pseudo_gradient: whether a round's change of the shared tensors is a pseudo-gradient, along which a server
            optimizer may step (``--server-optimizer``, refused otherwise).
        pools: whether it trains on all clients' rows as one, which makes it a yardstick and no federated method.
        own_aggregate: why the mean over clients cannot be another one, as the end of a sentence, so that
            ``--aggregate`` is refused; also where nothing is averaged.
        own_loss: why its loss cannot be another one, as the end of a sentence, so that class weights and losses of the
            user are refused.
        not_private: why cut changes and noise on their mean do not make private what its clients send, as the end of a
            sentence, so that ``--dp`` is refused. A class that writes ``server_update``, ``replies`` or ``message_to``
            states it beside them: empty if what they give to others follows from the changes' sum alone.
        server_sees: what clients send to the server alone, which gives it back to them alone, as the end of a sentence:
            noise of the server does not need to cover it, and noise of the clients would not.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    source: ClassVar[str]
    shared: ClassVar[tuple[str, ...]] = ()
    personal: ClassVar[tuple[str, ...]] = ()
    may_stay_silent: ClassVar[bool] = False
    clients_remember: ClassVar[bool] = False
    default_momentum: ClassVar[float | None] = None
    needs_classes: ClassVar[bool] = False
    needs_sgd: ClassVar[str] = ""
    pseudo_gradient: ClassVar[bool] = True
    own_aggregate: ClassVar[str] = ""
    own_loss: ClassVar[str] = ""
    not_private: ClassVar[str] = ""
    server_sees: ClassVar[str] = ""
    pools: ClassVar[bool] = False

    @abstractmethod
    def client_update(self, client: Client, round: int) -> Tensors:
        """One client's round: train, and return what it sends (see :meth:`Client.send`)."""

    def server_update(self, server: Server, updates: Sequence[Update], round: int) -> None:
        """The server's round; by default the shared tensors become the mean of what was sent."""
        server.shared.update(server.mean(updates))

    # What follows is needed by some methods only.

    def client_state(self, initial: Tensors) -> Tensors:
        """Extra tensors every client keeps between its rounds, at their start (``Client.state``).

        Args:
            initial: the model's initial tensors, by name, without BatchNorm statistics that every client keeps anyway.
        """
        return {}

    def server_state(self, initial: Tensors) -> Tensors:
        """Extra tensors that travel to the clients with the shared ones, at their start (part of ``Server.shared``)."""
        return {}

    def upload_state(self, initial: Tensors, groups: Groups) -> Tensors:
        """Extra tensors every client sends and the server does not send back, as examples of their shapes."""
        return {}

    def change_of(self, received: Tensors, sent: Tensors, buffers: Collection[str]) -> Tensors:
        """What the tensors that a client sends are a change of, by name: that change is what differential privacy cuts
        and hides (``--dp``). By default what was received, and of what was not received, nothing (zero).

        Args:
            received: what the server sent.
            sent: what the client sends.
            buffers: names of tensors that are no parameters and have no gradient.

        Returns:
            A tensor for each that is averaged; what is left out is neither cut nor hidden (see ``server_sees``).
        """
        return {name: received.get(name, torch.zeros_like(value)) for name, value in sent.items()}

    def rounds_sent(self, rounds: int, planned: int) -> int:
        """In how many of the first ``rounds`` rounds of a run of ``planned`` ones clients send anything."""
        return rounds

    def is_silent(self, server: Server, rounds: int) -> bool:
        """Whether clients send nothing in a round, for methods that ``may_stay_silent``: what a run will send is told
        from it before the run.

        Args:
            server: at the round; only its ``round`` and ``draw`` may be looked at.
            rounds: of the run.
        """
        return False

    def message_to(self, server: Server, client: int) -> Tensors:
        """Extra tensors for one client alone, sent with the shared ones; they appear in ``Client.received``."""
        return {}

    def spared(self, server: Server, heard: int) -> tuple[frozenset[str], Tensors]:
        """What a client need not be sent because it can work it out (:meth:`worked_out`), for methods whose
        ``clients_remember``: names of shared tensors, and the tensors sent in their place.

        Args:
            server: before its round; holds what is sent.
            heard: the round in which the client last took part, 0 if it never did: then it knows the initial tensors.
        """
        return frozenset(), {}

    def worked_out(self, known: Tensors, sent: Tensors, round: int, seed: int) -> Tensors:
        """What a client takes a message's tensors for: :meth:`spared` undone, on the client's side.

        Args:
            known: shared tensors as the client was last sent them, or the initial ones.
            sent: the message's tensors, which nobody has looked at yet.
            round: of the message.
            seed: of the run.

        Raises:
            UpdateError: what was sent does not fit; begins with what is wrong of the message.
        """
        return sent

    def replies(self, server: Server, updates: Sequence[Update]) -> dict[int, Tensors]:
        """Tensors sent back to participants after the server's round; they replace personal tensors by name."""
        return {}

    def round_figures(self, server: Server, updates: Sequence[Update]) -> dict[str, float | Tensor | None]:
        """Figures of a round that only this method can tell, for ``rounds.jsonl``; asked before ``server_update``.

        Args:
            server: holds what it sent; not to be changed.
            updates: what it was sent.
        """
        return {}

    def check(self, config: RunSettings) -> None:
        """Refuse settings of a run that this method cannot follow, by a ConfigError."""

    def lr_factor(self, done: float) -> float:
        """What this method multiplies the run's learning rate by when this share of the run is done."""
        return 1.0

    def last_lr_factor(self, rounds: int) -> float:
        """What it multiplies the learning rate by at the end of a run of so many rounds: in fine-tuning after it."""
        return self.lr_factor((rounds - 1) / rounds)

    def needs_rounds(self) -> str:
        """Why the number of rounds has to be known from the start, as the end of a sentence; empty if it need not be.

        A run of a method that does not need it can be continued for more rounds than it was planned for, and must then
        end as a longer one does. A method that looks at :attr:`Client.rounds` or :meth:`Client.lr_after` says so here.
        """
        scheduled = type(self).lr_factor is not Algorithm.lr_factor
        return "its learning rate follows the share of its rounds that is done" if scheduled else ""

    def summary_fields(self) -> dict[str, Any]:
        """What of this method's settings belongs beside every result, for ``summary.json``."""
        return {}

    def personal_model(self, shared: Tensors, own: Tensors) -> Tensors:
        """The tensors in which a client's own model differs from the shared one; only elementwise arithmetic.

        Args:
            shared: the shared tensors.
            own: the client's personal tensors and state, by name.
        """
        return {name: value for name, value in own.items() if "/" not in name}

    def personalize(self, client: Client, round: int) -> None:
        """Local training before a client's own model is tested, for methods that evaluate that way (PerFedAvg).

        What it does is forgotten after the test. By default a client's model is tested as it is.
        """

    def extend_model(self, model: nn.Module, groups: Groups) -> nn.Module:
        """The model this method trains, if it needs more than the given one (a second head, a policy).

        The returned module may carry its own ``groups`` attribute (group name to name patterns).
        """
        return model

    @property
    def personalizes(self) -> bool:
        """Whether :meth:`personalize` does anything."""
        return type(self).personalize is not Algorithm.personalize

    @property
    def has_personal_model(self) -> bool:
        """Whether a client's own model differs from the shared one."""
        own = type(self).personal_model is not Algorithm.personal_model
        return bool(self.personal) or own or self.personalizes

    def sends(self, round: int) -> tuple[str, ...]:
        """The groups a client sends in a round; an update that lacks one of their parameters is refused."""
        return self.shared

    @property
    def has_global_model(self) -> bool:
        """Whether the shared tensors are a whole model, so that a global accuracy exists."""
        return self.shared == ("all",) or not self.has_personal_model

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        settings = inspect.get_annotations(cls)
        for variable in inspect.get_annotations(Algorithm):
            if variable in settings and "ClassVar" not in str(settings[variable]):
                raise ConfigError(
                    f"the algorithm {cls.__name__} writes '{variable}' with an annotation, which would make it one of "
                    f"its hyperparameters; write {variable} = … without annotation"
                )
        for groups in ("shared", "personal"):
            if isinstance(cls.__dict__.get(groups), str):
                setattr(cls, groups, (cls.__dict__[groups],))
        if not inspect.isabstract(cls) and "name" in cls.__dict__:
            (yardsticks if cls.pools else registry)[cls.name] = cls

    @classmethod
    def options(cls) -> dict[str, Any]:
        """Hyperparameters and their defaults."""
        return {f.name: f.default for f in fields(cls)}


registry: dict[str, type[Algorithm]] = {}
"""Every algorithm by name; a subclass enters by being defined."""

yardsticks: dict[str, type[Algorithm]] = {}
"""What runs like an algorithm and is not federated, by name."""

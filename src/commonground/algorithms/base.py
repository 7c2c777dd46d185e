"""What an algorithm is: a page of verbs.

An algorithm says what a client does and what the server does, in its paper's own order. It knows nothing of devices,
loaders, transport or files: the :class:`Client` it is given may be one client, a stacked cohort of many, or the inside
of a remote machine.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Protocol, Self

import torch
from torch import Tensor, nn

from commonground.algorithms.client import Batch, Client, Loss, Output, Penalty, Tensors, prefixed, unprefixed
from commonground.algorithms.server import Server, Update
from commonground.errors import ConfigError
from commonground.models import Groups
from commonground.registration import check_name

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
    "without_class_variables",
    "yardsticks",
]


class RunSettings(Protocol):
    """The settings of a run that :meth:`Algorithm.check` may look at: a few fields of its configuration."""

    @property
    def batch_norm(self) -> str:
        """``averaged``, or ``local`` if every client keeps the statistics of BatchNorm layers."""

    @property
    def body_lr(self) -> float | None:
        """Learning rate of the body; None for the run's."""

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
        personal: groups that are each client's own. They do not leave it, unless :meth:`sends` names them and
            ``server_sees`` says so.
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
        unused: settings of a run that say nothing to the method, each with why, as the end of a sentence: one run
            refuses them, and a comparison gives them to its other methods alone.
        not_private: why cut changes and noise on their mean do not make private what its clients send, as the end of a
            sentence, so that ``--dp`` is refused. A class that writes ``server_update``, ``replies`` or ``message_to``
            states it beside them: empty if what they give to others follows from the changes' sum alone.
        server_sees: what clients send to the server alone, which gives it back to them alone, as the end of a sentence:
            noise of the server does not need to cover it, and noise of the clients would not. Personal tensors are sent
            by a method alone that says so here.
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
    unused: ClassVar[tuple[tuple[str, str], ...]] = ()
    not_private: ClassVar[str] = ""
    server_sees: ClassVar[str] = ""
    pools: ClassVar[bool] = False

    @abstractmethod
    def client_update(self, client: Client, round: int) -> Tensors:
        """One client's round: train, and return what it sends (see :meth:`Client.send`)."""

    def server_update(self, server: Server, updates: Sequence[Update], round: int) -> None:
        """The server's round; by default the shared tensors become the mean of what was sent of them."""
        mean = server.mean(updates)
        server.shared.update({name: value for name, value in mean.items() if name in server.shared})

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
        """Extra tensors for one client alone, sent with the shared ones; they appear in ``Client.received``. Under a
        personal tensor's name they replace what the client kept.

        A message has them, a test has not: a model that is to be tested with them is kept (:meth:`client_state`). In
        the engine ``messages`` a client asks as well, of a server that remembers nothing, to know names and shapes.
        """
        return {}

    def held_part(self, name: str, client: int) -> tuple[slice, ...]:
        """Which part of a shared tensor a client holds, as an index of it: for methods of which a client may have less
        than the model has (factors of a smaller rank). The rest is zero for it, and travels neither to it nor from it.

        Args:
            name: of the tensor.
            client: its number.

        Returns:
            Slices, one for each of the first axes; none of them for the whole tensor, as by default.
        """
        return ()

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
        """Tensors sent back to participants after the server's round, by client; they replace what it keeps by name."""
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

    def done_before(self, round: int, config: RunSettings) -> float:
        """Share of the run that is done when a round (1-based) begins: what its learning rate follows."""
        return (round - 1) / config.rounds

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
        """The tensors in which a client's own model differs from the shared one; it may not branch on values.

        Args:
            shared: the shared tensors.
            own: one client's personal tensors and state, by name.
        """
        return {name: value for name, value in own.items() if "/" not in name}

    def personalize(self, client: Client, round: int) -> None:
        """Local training before a client's own model is tested, for methods that evaluate that way (PerFedAvg).

        What it does is forgotten after the test, and ``client.received`` holds the shared tensors alone. By default a
        client's model is tested as it is.
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

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        cls.check_fields()
        return super().__new__(cls)

    @classmethod
    def check_fields(cls) -> None:
        """Refuse hyperparameters of a class that is no dataclass, which has none.

        Raises:
            ConfigError: names the first of them.
        """
        known = {one.name for one in fields(cls)}
        for name, kind in inspect.get_annotations(cls).items():
            if name not in known and "ClassVar" not in str(kind):
                raise ConfigError(
                    f"{cls.__name__} has the hyperparameter '{name}' and is no dataclass; write "
                    "@dataclass(frozen=True) above its class"
                )

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
            check_name("algorithm", cls, {**registry, **yardsticks}.get(cls.name))
            (yardsticks if cls.pools else registry)[cls.name] = cls

    @classmethod
    def options(cls) -> dict[str, Any]:
        """Hyperparameters and their defaults."""
        cls.check_fields()
        return {f.name: f.default for f in fields(cls)}


registry: dict[str, type[Algorithm]] = {}
"""Every algorithm by name; a subclass enters by being defined."""

yardsticks: dict[str, type[Algorithm]] = {}
"""What runs like an algorithm and is not federated, by name."""


def without_class_variables(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by name, without those of variables that every method's class has, such as ``shared`` and ``personal``."""
    of_classes = {name for name, kind in inspect.get_annotations(Algorithm).items() if "ClassVar" in str(kind)}
    return {name: value for name, value in values.items() if name not in of_classes}

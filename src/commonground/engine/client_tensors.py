"""What a client keeps, and what its own model is made of, by a method and a model's groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import Tensor

from commonground.algorithms import Algorithm, Tensors
from commonground.engine.given_by_hooks import tensors_given
from commonground.errors import ModelError
from commonground.models import Groups
from commonground.quoting import quoted
from commonground.suggest import meant

__all__ = ["check_sent", "client_model", "client_start", "in_order", "places_of"]


TRIED_ROUNDS = 10  # of a method that sends other groups in other rounds


def check_sent(groups: Groups, algorithm: Algorithm, rounds: int) -> None:
    """Refuse a method that sends what is personal without saying so.

    Args:
        groups: of the model.
        algorithm: the method.
        rounds: of the run.

    Raises:
        ModelError: names the first such tensor.
    """
    if algorithm.server_sees:
        return
    personal = set(groups.names(algorithm.personal))
    for round in range(1, min(rounds, TRIED_ROUNDS) + 1):
        for name in groups.names(algorithm.sends(round)):
            if name in personal:
                raise ModelError(
                    f"{algorithm.title} sends {quoted(name)} (sends()), which is personal and would "
                    "leave its client: leave it out, or say what the server sees of its clients (server_sees)"
                )


def client_start(groups: Groups, algorithm: Algorithm, initial: Tensors) -> Tensors:
    """A client's personal tensors and state before its first round.

    Args:
        groups: the model's parameter groups.
        algorithm: says what is personal.
        initial: the model's initial tensors; BatchNorm statistics that clients keep start from these as well.

    Raises:
        ModelError: the method's client state is not made of tensors.
    """
    personal = {*groups.names(algorithm.personal), *groups.local_statistics}
    common = {name: value for name, value in initial.items() if name not in groups.local_statistics}
    state = tensors_given(algorithm, "client_state", algorithm.client_state(common))
    return {n: initial[n] for n in groups.whole("all") if n in personal} | state


def client_model(groups: Groups, algorithm: Algorithm, shared: Tensors, own: Tensors) -> Tensors:
    """The tensors in which a client's own model differs from the shared one.

    Args:
        groups: the model's parameter groups.
        algorithm: says what the client's model is made of.
        shared: the shared tensors.
        own: what the client keeps (see :func:`client_start`).

    Raises:
        ModelError: the method leaves out a personal tensor of the model, names one that is none, or gives one of
            another shape or number type.
    """
    statistics = {name: own[name] for name in groups.local_statistics}
    rest = {name: value for name, value in own.items() if name not in statistics}
    model = tensors_given(algorithm, "personal_model", algorithm.personal_model(shared, rest))
    for name in rest:
        if "/" not in name and name not in model and name not in shared:
            raise ModelError(
                f"personal_model of {algorithm.title} leaves out the personal tensor {quoted(name)}, "
                "of which a client's own model is made as well"
            )
    for name, value in model.items():
        like = shared.get(name, rest.get(name))
        if like is None:
            raise ModelError(
                f"personal_model of {algorithm.title} gives a tensor {quoted(name)}, which the model "
                f"has not{meant(name, [*shared, *rest])}"
            )
        if value.shape != like.shape or value.dtype != like.dtype:
            given, wanted = (f"{t.dtype} of shape {tuple(t.shape)}" for t in (value, like))
            raise ModelError(f"personal_model of {algorithm.title} gives {quoted(name)} as {given} instead of {wanted}")
    return model | statistics


def places_of(declared: Iterable[str]) -> dict[str, int]:
    """Where names come, in the order in which they are declared: those of the model, then those of the method."""
    return {name: place for place, name in enumerate(declared)}


def in_order(tensors: Mapping[str, Tensor], places: Mapping[str, int]) -> Tensors:
    """Tensors in the order in which they are declared, others after them by name.

    A message or a checkpoint gives them back in any order; a method that goes over them must meet one alone, or its
    sums would be rounded otherwise in each engine, and what it flattens would not fit together.

    Args:
        tensors: by name.
        places: see :func:`places_of`.
    """
    return {name: tensors[name] for name in sorted(tensors, key=lambda name: (places.get(name, len(places)), name))}

"""The server's part of a round: from the clients' updates to new shared tensors that may count."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from commonground.aggregation import parse_aggregate
from commonground.algorithms import Server, Tensors
from commonground.engine.backends.checks import Place, RoundMagnitudes, check_updates, measure, refuse_not_finite
from commonground.engine.backends.client_result import ClientResult
from commonground.engine.given_by_hooks import check_nothing_given, tensors_given, what_is
from commonground.engine.private.server import opened
from commonground.engine.server_optimizer import step_server
from commonground.engine.setup import Setup
from commonground.errors import AggregateError, ModelError
from commonground.quoting import escaped, quoted
from commonground.registration import is_ours
from commonground.suggest import meant
from commonground.user_code import failing_as

__all__ = ["EXTREME", "Growth", "ServerRound", "conclude", "server_at"]

EXTREME = 1e3
"""What is so many times the size of the shared tensors before the round is of an extreme size."""

_ARITHMETIC: tuple[type[Exception], ...] = (vars(torch.linalg)["LinAlgError"], ArithmeticError)  # its stubs lack it


class Growth(NamedTuple):
    """A round in which the shared tensors grew so much that what follows may be its doing.

    Attributes:
        round: which.
        size: the largest magnitude among them after it.
        cause: what it came of, as the end of a sentence.
    """

    round: int
    size: float
    cause: str

    def __str__(self) -> str:
        return f"the shared tensors had grown to {self.size:.3g} in round {self.round}; {self.cause}"


class ServerRound(NamedTuple):
    """A round that may count.

    Attributes:
        results: the clients' rounds, their losses read.
        replies: what the server sends back to single clients.
        figures: of the round, that only the method can tell.
        size: the largest magnitude among the new shared tensors.
        growth: set if the shared tensors grew by far.
    """

    results: list[ClientResult]
    replies: dict[int, Tensors]
    figures: dict[str, float | Tensor | None]
    size: float
    growth: Growth | None


def server_at(setup: Setup, shared: Tensors, memory: Tensors, round: int) -> Server:
    """The server as it begins a round.

    Args:
        setup: of the run.
        shared, memory: what it holds; not changed.
        round: 1-based round.
    """
    config = setup.config
    return Server(
        dict(shared),
        dict(memory),
        round=round,
        clients=setup.data.clients,
        lr=setup.lr_at(round),
        weighting=config.weighting,
        seed=config.seed,
        buffers=[name for name in setup.groups.names("all") if name in setup.buffers],
        aggregate=parse_aggregate(config.aggregate),
    )


def passed_over(setup: Setup, server: Server) -> str:
    """What a user's own method has not asked the server for, though the run's settings are about it; empty if nothing.

    Args:
        setup: of the run.
        server: after a round of it.
    """
    config, method = setup.config, setup.algorithm
    if is_ours(type(method)):
        return ""
    idle = [f"--aggregate {config.aggregate}"] if config.aggregate != "mean" and not server.has_aggregated else []
    idle += [f"--weighting {config.weighting}"] if config.weighting != "uniform" and not server.has_weighed else []
    if not idle:
        return ""
    return (
        f"{' and '.join(idle)} {'has' if len(idle) == 1 else 'have'} done nothing in this round: server_update of "
        f"{method.title} does not call server.mean, nor server.aggregate or server.weights"
    )


def _in_one_layout(result: ClientResult) -> ClientResult:
    """The same numbers, one after the other in memory: of images some engines keep channels last, and sums over
    numbers that lie otherwise have other last digits.
    """
    tensors = {name: value.contiguous() for name, value in result.update.tensors.items()}
    return replace(result, update=replace(result.update, tensors=tensors))


def conclude(setup: Setup, server: Server, results: Sequence[ClientResult], round: int, before: Tensors) -> ServerRound:
    """The method's server update and the server optimiser, and one look at all that came and all that was made.

    The server computes before anyone knows whether the updates are finite, so that a round waits for the device once.

    Args:
        setup: of the run.
        server: holds what was sent; changed here.
        results: the clients' rounds.
        round: 1-based round.
        before: the shared tensors before the round.

    Raises:
        UpdateError: naming round, client and tensor of what cannot be used.
        AggregateError: naming round and tensor of what became of usable updates.
        ModelError: the method's server update fails, or leaves other shared tensors than there were.
    """
    check_updates(setup, results, round)
    results = list(map(_in_one_layout, results))
    replies: dict[int, Tensors] = {}
    figures: dict[str, float | Tensor | None] = {}
    if any(r.update.tensors for r in results):
        try:
            replies, figures = _update(setup, server, results, round, before)
        except Exception as error:
            measured = measure(setup, results, _places("before", before))
            refuse_not_finite(setup, measured, round)  # which is why it failed
            if not isinstance(error, _ARITHMETIC):
                with failing_as(f"the server's part of round {round} failed"):
                    raise
            what = f"what the server computes fails ({escaped(str(error))})"
            raise AggregateError(_sentence(setup, measured, round, what)) from None
    _check_shared(setup, server.shared, before, round)
    made = [*_places("shared", server.shared), *_places("memory", server.memory), *_places("before", before)]
    for client, reply in replies.items():
        made += [(Place("reply", client, name), value) for name, value in reply.items()]
    measured = measure(setup, results, made)
    refuse_not_finite(setup, measured, round)
    for place, size in measured.sizes.items():
        if not math.isfinite(size):
            raise AggregateError(_sentence(setup, measured, round, f"{_named(setup, place)} would not be finite"))
    size = _size(measured, "shared")
    grown = size > EXTREME * max(1.0, _size(measured, "before"))
    growth = Growth(round, size, _cause(setup, measured)) if grown else None
    server.shared = setup.laid_out(server.shared)
    return ServerRound(measured.results, replies, figures, size, growth)


def _update(
    setup: Setup, server: Server, results: Sequence[ClientResult], round: int, before: Tensors
) -> tuple[dict[int, Tensors], dict[str, float | Tensor | None]]:
    algorithm, updates = setup.algorithm, opened(setup, server, [r.update for r in results], round)
    updates = [replace(update, tensors=setup.in_order(update.tensors)) for update in updates]
    server.shared, server.memory = setup.in_order(server.shared), setup.in_order(server.memory)
    figures = dict(algorithm.round_figures(server, updates))
    if setup.hides_updates:  # the noise of all of them is one, and gone from their differences
        figures = dict.fromkeys(figures)
    update: Callable[..., object] = algorithm.server_update
    instead = "let it change server.shared, as in server.shared.update(server.mean(updates))"
    check_nothing_given(algorithm, "server_update", update(server, updates, round), instead)
    step_server(setup.config, setup.groups.trainable("all"), server, before=before)
    replies = algorithm.replies(server, updates)
    _check_replies(setup, replies, [update.client for update in updates], round)
    return replies, figures


def _check_replies(setup: Setup, replies: Mapping[int, Tensors], participants: Sequence[int], round: int) -> None:
    """Refuse replies to clients that are not waiting for one, and of tensors that they do not keep."""
    if not isinstance(replies, Mapping):
        raise ModelError(
            f"replies of {setup.algorithm.title} gives {what_is(replies)} in "
            "place of a dict of tensors by name for each client that is replied to"
        )
    for client, given in replies.items():
        reply = tensors_given(setup.algorithm, "replies", given, f" for client {client}")
        if client not in participants:
            raise ModelError(
                f"replies of {setup.algorithm.title} has one for client {client}, which did not take part in round "
                f"{round}; a reply goes to a client that has sent an update"
            )
        for name in reply:
            if name not in setup.initial_personal:
                raise ModelError(
                    f"replies of {setup.algorithm.title} has a tensor {quoted(name)}, which its clients do not keep"
                    f"{meant(name, setup.initial_personal)}"
                )


def _check_shared(setup: Setup, shared: Tensors, before: Tensors, round: int) -> None:
    """Refuse shared tensors that are other ones than the clients expect.

    Raises:
        ModelError: names the tensor.
    """
    whose = f"server_update of {setup.algorithm.title} in round {round}"
    for name in sorted({*shared} ^ {*before}):
        what = "leaves out" if name in before else "adds"
        raise ModelError(
            f"{whose} {what} the shared tensor {quoted(name)}; let it replace entries, as in "
            "server.shared.update(server.mean(updates)), and declare further tensors in server_state"
        )
    for name, value in shared.items():
        old = before[name]
        if value.shape != old.shape or value.dtype != old.dtype:
            raise ModelError(
                f"{whose} makes the shared tensor {quoted(name)} of shape {tuple(value.shape)} and type {value.dtype}; "
                f"it was of shape {tuple(old.shape)} and type {old.dtype}"
            )


def _places(what: str, tensors: Tensors) -> list[tuple[Place, Tensor]]:
    return [(Place(what, None, name), value) for name, value in tensors.items()]


def _size(measured: RoundMagnitudes, what: str) -> float:
    return max((size for place, size in measured.sizes.items() if place.what == what), default=0.0)


def _named(setup: Setup, place: Place) -> str:
    if place.what == "memory":
        return f"the server's own tensor {quoted(place.name)}"
    if place.client is not None:
        return f"the reply's tensor {quoted(place.name)} to client {setup.data.shown_name(place.client)}"
    return f"the new shared tensor {quoted(place.name)}"


def _sentence(setup: Setup, measured: RoundMagnitudes, round: int, what: str) -> str:
    """What is wrong with a round, and the likely cause."""
    return f"round {round} does not count: of its clients' updates, {what}; {_cause(setup, measured)}"


def _cause(setup: Setup, measured: RoundMagnitudes) -> str:
    """Whose update is extreme, or that none is; nothing of single ones that the server's noise is to hide."""
    config = setup.config
    smaller = f"; try a smaller --server-lr (it is {config.server_lr})" if config.server_optimizer != "none" else ""
    if setup.hides_updates:
        return f"whose is not told under --dp {config.dp}{smaller}"
    largest = _largest(setup, measured)
    if _size(measured, "update") > EXTREME * max(1.0, _size(measured, "before")):
        return f"the largest update is {largest}"
    return f"no update is of an extreme size, the largest being {largest}{smaller}"


def _largest(setup: Setup, measured: RoundMagnitudes) -> str:
    """Whose update holds the largest magnitude."""
    sent: Callable[[Place], float] = measured.sizes.__getitem__
    place = max((p for p in measured.sizes if p.what == "update"), key=sent, default=None)
    if place is None or place.client is None:
        return "none at all"
    name = setup.data.shown_name(place.client)
    return f"that of client {name} (up to {sent(place):.3g} in {quoted(place.name)})"

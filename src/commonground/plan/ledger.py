"""The bytes that a run will send: what its ledger will say, worked out beforehand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from commonground.algorithms import Algorithm, Server, Tensors, Update
from commonground.engine.backends.base import payload_bytes
from commonground.engine.evaluation_plan import EvaluationPlan
from commonground.engine.held_parts import bytes_of_parts, has_parts
from commonground.engine.sampling import sample_clients
from commonground.engine.server_round import server_at
from commonground.engine.setup import Setup
from commonground.plan.rehearsal import Rehearsed
from commonground.privacy import CLIP

__all__ = ["Bytes", "Kind", "fewest_rounds", "kind_of", "ledger"]

MOST_NUMBERS = 3_000_000_000  # that made-up updates may have in all: about five seconds


class Kind(NamedTuple):
    """What tells rounds of a run apart: the groups that clients send, and whether they send anything."""

    sends: tuple[str, ...]
    silent: bool


def kind_of(setup: Setup, round: int) -> Kind:
    """The kind of a round."""
    server = Server({}, round=round, clients=setup.data.clients, seed=setup.config.seed)
    silent = setup.algorithm.may_stay_silent and setup.algorithm.is_silent(server, setup.config.rounds)
    return Kind(setup.algorithm.sends(round), silent)


@dataclass(frozen=True)
class Bytes:
    """Bytes of a whole run, at least and at most.

    Attributes:
        up: from the clients.
        down: to them.
    """

    up: tuple[int, int]
    down: tuple[int, int]

    @property
    def exact(self) -> bool:
        """Whether both are known to the byte."""
        return self.up[0] == self.up[1] and self.down[0] == self.down[1]


def ledger(setup: Setup, rehearsed: Mapping[Kind, Rehearsed], moved: frozenset[str]) -> Bytes:
    """What the run's ledger will add up to, if no client is lost.

    A client's part of a round of each kind was counted in a rehearsal; how often each kind comes is known. Where
    clients remember what they were sent, the rounds are gone through with made-up updates.

    Args:
        setup: of the run.
        rehearsed: a round of each kind.
        moved: shared tensors that the first round changes.
    """
    config, algorithm = setup.config, setup.algorithm
    if algorithm.pools:
        return Bytes((0, 0), (0, 0))
    each = config.participants(setup.data.clients)
    counts = Counter(kind_of(setup, round) for round in range(1, config.rounds + 1))
    up, down = (
        tuple(each * sum(counts[kind] * getattr(rehearsed[kind], way)[end] for kind in counts) for end in (0, 1))
        for way in ("up", "down")
    )
    if algorithm.may_stay_silent and type(algorithm).is_silent is Algorithm.is_silent:
        up, down = _silent_or_not(setup, each)
    if has_parts(algorithm):
        sent, shared = _by_client(setup, config.rounds)
        alone = {type(algorithm).message_to, type(algorithm).replies} != {Algorithm.message_to, Algorithm.replies}
        up, down = (sent, sent), (shared, shared + (down[1] if alone else 0))
    if algorithm.clients_remember:
        shared_alone, whole = config.rounds * each * payload_bytes(setup.initial_shared), down
        down = _remembered(setup, whole[1], moved)
        if type(algorithm).replies is not Algorithm.replies:  # which come beside the shared tensors
            down = (down[0] + whole[0] - shared_alone, min(down[1] + whole[1] - shared_alone, whole[1]))
    if config.early_stopping is not None:
        sparing = algorithm.clients_remember or algorithm.may_stay_silent  # what early rounds send is not worked out
        first = Counter(kind_of(setup, round) for round in range(1, fewest_rounds(setup) + 1))
        least = {
            way: 0 if sparing else each * sum(first[kind] * getattr(rehearsed[kind], way)[0] for kind in first)
            for way in ("up", "down")
        }
        if has_parts(algorithm) and not sparing:
            least["up"], least["down"] = _by_client(setup, fewest_rounds(setup))
        up, down = (least["up"], up[1]), (least["down"], down[1])
    return Bytes((up[0], up[1]), (down[0], down[1]))


def fewest_rounds(setup: Setup) -> int:
    """Rounds after which a run ends at the earliest: by early stopping, if no test is better than the first."""
    config, plan = setup.config, EvaluationPlan(setup)
    tested = [round for round in range(1, config.rounds + 1) if plan.is_due(round)]
    patience = config.rounds if config.early_stopping is None else config.early_stopping
    return tested[patience] if patience < len(tested) else config.rounds


def _silent_or_not(setup: Setup, each: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Bytes up and down where nobody knows before in which rounds clients send: in none, or in all."""
    shared = setup.initial_shared
    extra = {name: value for name, value in shared.items() if name not in setup.initial} | setup.uploads
    up, down = 0, setup.config.rounds * each * payload_bytes(shared)
    for round in range(1, setup.config.rounds + 1):
        names = setup.groups.names(setup.algorithm.sends(round))
        up += each * payload_bytes({name: setup.initial[name] for name in names} | extra)
    replies = type(setup.algorithm).replies is not Algorithm.replies
    return (0, up), (down, down + (up if replies else 0))


def _by_client(setup: Setup, rounds: int) -> tuple[int, int]:
    """Bytes up and down of the first rounds where a client may hold parts of what travels: of those who take part. What
    goes to single clients beside the shared tensors is not in it.
    """
    config, algorithm, shared = setup.config, setup.algorithm, setup.initial_shared
    extra = {name: value for name, value in shared.items() if name not in setup.initial} | setup.uploads
    sent: dict[tuple[tuple[str, ...], int], int] = {}
    up = down = 0
    for round in range(1, rounds + 1):
        names = setup.groups.names(algorithm.sends(round))
        for client in sample_clients(config, setup.data.clients, round):
            if (algorithm.sends(round), client) not in sent:
                tensors = {name: setup.initial[name] for name in names} | extra
                sent[algorithm.sends(round), client] = bytes_of_parts(algorithm, tensors, client)
            up += sent[algorithm.sends(round), client]
            down += bytes_of_parts(algorithm, shared, client)
    return up, down


def _remembered(setup: Setup, most: int, moved: frozenset[str]) -> tuple[int, int]:
    """Bytes down where clients keep what they were sent, by the rules of the loop's ``_known``: the rounds are gone
    through with updates that change whatever is sent; from none to ``most`` where that would take long, where nobody
    knows before in which rounds clients send, or where nothing is trained.
    """
    config, algorithm = setup.config, setup.algorithm
    shared: Tensors = dict(setup.initial_shared)
    memory: Tensors = {}
    each = config.participants(setup.data.clients)
    unknown = algorithm.may_stay_silent and type(algorithm).is_silent is Algorithm.is_silent
    untrained = config.local_epochs == 0 and config.local_steps is None  # what is sent need not change
    if unknown or untrained or config.rounds * each * sum(value.numel() for value in shared.values()) > MOST_NUMBERS:
        return 0, most
    heard: dict[int, int] = {}
    changed: dict[str, int] = {}
    total = 0
    for round in range(1, config.rounds + 1):
        clients = sample_clients(config, setup.data.clients, round)
        server = server_at(setup, shared, memory, round)
        for client in clients:
            last = heard.get(client, 0)
            known, steps = algorithm.spared(server, last)
            spared = known | {name for name in shared if changed.get(name, 0) < last}
            news = {name: value for name, value in shared.items() if name not in spared}
            total += bytes_of_parts(algorithm, news, client)
            total += payload_bytes(steps) + payload_bytes(algorithm.message_to(server, client))
        heard |= dict.fromkeys(clients, round)
        if kind_of(setup, round).silent:
            continue
        names = setup.groups.names(algorithm.sends(round))
        sent = {name: shared[name] + torch.rand_like(shared[name]) for name in names}
        algorithm.server_update(server, _updates(setup, clients, sent), round)
        if round == 1:
            # The mean of equal tensors is one of other digits where the clients' weights are no powers of two.
            mean = server.mean(_updates(setup, clients, {name: shared[name] for name in names if name not in moved}))
            new = [*moved, *(name for name, value in mean.items() if not torch.equal(value, shared[name]))]
        else:
            new = [name for name, value in server.shared.items() if not torch.equal(value, shared[name])]
        new += [CLIP] if CLIP in shared else []  # a clip norm that adapts moves in every round
        changed |= dict.fromkeys(new, round)
        shared, memory = server.shared, server.memory
    return total, total


def _updates(setup: Setup, clients: Sequence[int], sent: Tensors) -> list[Update]:
    """The same of all clients."""
    return [Update(client, int(setup.data.train_sizes[client]), sent) for client in clients]

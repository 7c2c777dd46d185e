"""What the engine on Ray sends, keeps and repeats, with workers in this process that can be lost at any moment."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from commonground.engine.backends import ray_crew, ray_engine
from commonground.engine.backends.ray_actor import ClientActor, Share, numerics_here, packed_samples, packed_setup
from commonground.engine.backends.ray_crew import Crew, Lost, Member, shares_of
from commonground.engine.backends.ray_engine import RayEngine
from commonground.engine.backends.ray_log import LoggedRound, RoundLog
from commonground.engine.backends.ray_tasks import MOST_LOSSES
from commonground.engine.backends.worker import taken
from commonground.engine.setup import Setup
from commonground.errors import RunError, UpdateError
from tests.helpers import (
    Notes,
    TwoLayer,
    Whole,
    assert_same_run,
    engines_changed,
    made_data,
    normed,
    rows_without_time,
    seeded,
    train_whole,
)

pytestmark = pytest.mark.engine


class SameProcess:
    """Of Ray's pickler what is needed in one process, where modules that other tests have loaded are known anyway."""

    dumps = staticmethod(pickle.dumps)

    @staticmethod
    def register_pickle_by_value(module: Any) -> None:
        pass


class Here:
    """In the place of a session: there are two CPUs."""

    name = "this process"
    holder: Any = None

    @classmethod
    def join(cls, address: str | None, cpus: int) -> Here:
        return here

    def cpus(self) -> int:
        return 2

    def free_cpus(self, wanted: int, seconds: float) -> int:
        return 2 - (0 if self.holder is None else len(self.holder.members))

    def leave(self) -> None: ...


here = Here()


class CrewHere:
    """Workers in this process, that see nothing but copies of bytes; some answers are lost, and their worker with them.

    Attributes:
        lose: numbers of the answers, counted from 1, at which a worker is lost; the answer itself is lost as well.
    """

    lose: frozenset[int] = frozenset()
    answers = 0
    sent: ClassVar[Counter[str]] = Counter()

    def __init__(
        self,
        session: Any,
        setup: Setup,
        workers: int,
        check_stop: Callable[[], None],
        count: Counter[str],
    ) -> None:
        self.session, self.setup, self.bytes = session, setup, count
        self.packed = packed_setup(setup, SameProcess)
        self.members = [Member(share) for share in shares_of(setup.data.train_sizes.tolist(), workers)]
        for member in self.members:
            self.replace(member)

    def replace(self, member: Member) -> None:
        member.actor, member.version, member.host = ClientActor(), -1, "here"
        member.capability = numerics_here()["CPU capability"]
        member.actor._share = None
        share = Share(Setup(**pickle.loads(self.packed), data=pickle.loads(packed_samples(self.setup, member.clients))),
                      member.clients)  # fmt: skip
        member.actor._share = share

    def put(self, content: Any) -> bytes:
        return pickle.dumps(content)

    def send(self, member: Member, what: str, *given: Any) -> Any:
        given = tuple(pickle.loads(g) if isinstance(g, bytes) else pickle.loads(pickle.dumps(g)) for g in given)
        CrewHere.sent[what] += 1
        return (member, pickle.dumps(member.actor.do(what, *given)), object())

    look = send

    def ready(self, answers: Sequence[Any]) -> list[Any]:
        return [answers[-1]]  # not in the order in which they were asked for

    def get(self, answer: Any) -> Any:
        CrewHere.answers += 1
        if CrewHere.answers in self.lose:
            answer[0].actor = None
            raise Lost("its process is gone")
        return taken(pickle.loads(answer[1]))

    def ask(self, member: Member, what: str, *given: Any) -> Any:
        return self.get(self.send(member, what, *given))

    def end(self) -> None: ...


@pytest.fixture(autouse=True)
def workers_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_engine, "Session", Here)
    monkeypatch.setattr(ray_engine, "Crew", CrewHere)
    monkeypatch.setattr(CrewHere, "lose", frozenset())
    monkeypatch.setattr(CrewHere, "answers", 0)
    monkeypatch.setattr(CrewHere, "sent", Counter())
    monkeypatch.setattr(here, "holder", None, raising=False)


def go(method: str, engine: str = "ray", **settings: Any) -> Whole:
    more: dict[str, Any] = {"rounds": 4, "participation": 0.8, "model": seeded(TwoLayer), **settings}
    return train_whole(method, made_data((5, 3, 8, 2, 4)), engine=engine, **more)


def assert_equal(one: Whole, other: Whole) -> None:
    """Bit for bit; figures of a test are those of ``messages``, where each client is tested for itself as well."""
    assert one.sha == other.sha
    assert_same_run(one, other, 0.0)
    assert str(rows_without_time(one.run.history)) == str(rows_without_time(other.run.history))
    for mine, theirs in zip(one.run.clients, other.run.clients, strict=True):
        assert mine == {name: pytest.approx(value, abs=1e-6) for name, value in theirs.items()}


METHODS: list[tuple[str, dict[str, Any]]] = [
    ("fedavg", {}),
    ("fedrep", {}),
    ("scaffold", {}),
    ("ditto", {}),
    ("flute", {}),
    ("fedmtl", {}),
    ("local", {}),
    ("fedavg", {"model": seeded(normed), "batch_norm": "local", "batch_size": 100}),
    ("fedrep", {"metrics": "full", "validation_fraction": 0.3}),
    ("fedavg", {"finetune_epochs": 2}),
    ("fedavg", {"dp": "client", "dp_clip": 1.0, "dp_noise": 0.5, "dp_where": "client"}),
]


@pytest.mark.parametrize(("method", "settings"), METHODS, ids=lambda v: v if isinstance(v, str) else "-".join(v))
def test_equal_to_serial_and_whatever_is_lost(
    method: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    serial, ray = go(method, "serial", **settings), go(method, **settings)
    assert_equal(ray, serial)
    assert ray.run.clients == go(method, "messages", **settings).run.clients
    whole = CrewHere.answers
    for first in (2, whole // 3, 2 * whole // 3):
        monkeypatch.setattr(CrewHere, "lose", frozenset({first, first + 5}))
        monkeypatch.setattr(CrewHere, "answers", 0)
        notes = Notes()
        assert_equal(go(method, **settings, observer=notes), serial)
        assert any("a worker on here was lost (its process is gone)" in line for line in notes.said)


def test_the_state_is_fetched_now_and_then_and_only_the_rounds_since_are_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("commonground.engine.backends.ray_log.MOST_ROUNDS", 3)
    go("fedrep", rounds=8, participation=1.0)
    trained = CrewHere.sent["train"]
    assert trained == 8 * 5
    assert CrewHere.sent["rows"] == 2 * 3  # after rounds 3 and 6, and at the end: of each worker once
    assert CrewHere.sent["receive"] == 2 * 9  # the first ones and after each of 8 rounds: tests and training share them
    monkeypatch.setattr(CrewHere, "lose", frozenset({CrewHere.answers - 3}))
    monkeypatch.setattr(CrewHere, "answers", 0)
    go("fedrep", rounds=8, participation=1.0)
    assert 0 < CrewHere.sent["train"] - trained - 8 * 5 <= 2 * 3  # of the last two rounds, of one worker's clients


def test_lost_while_its_state_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of its clients' states are safe then as they are now, others as they were: only those repeat rounds."""
    monkeypatch.setattr(ray_engine, "ROWS_BYTES", 1)  # a client at a time
    serial = go("fedrep", "serial", participation=1.0)
    assert_equal(go("fedrep", participation=1.0), serial)
    whole = CrewHere.answers  # the last of which are the five clients' states
    for lost in range(whole - 3, whole + 1):
        monkeypatch.setattr(CrewHere, "lose", frozenset({lost}))
        monkeypatch.setattr(CrewHere, "answers", 0)
        assert_equal(go("fedrep", participation=1.0), serial)


def test_what_crosses(tmp_path: Path) -> None:
    engines: list[RayEngine] = []
    with engines_changed(lambda engine: engines.append(engine) if isinstance(engine, RayEngine) else None):
        run = go("fedrep", rounds=4, participation=1.0).run
    (engine,) = engines
    body, head = 4 * 5 + 5, 5 * 3 + 3
    assert engine.bytes["shared tensors"] == 5 * 2 * body * 4  # float32: once per worker, not once per client
    assert engine.bytes["updates"] == 4 * 5 * body * 4 == run.summary["bytes_up"]
    assert engine.bytes["state to here"] == 5 * head * 4  # once, at the end
    assert engine.bytes["state to workers"] == engine.bytes["to single clients"] == 0


def test_resumed(tmp_path: Path) -> None:
    whole = go("ditto", "serial", rounds=6)
    with pytest.raises(ValueError, match="the display broke"):
        go("ditto", rounds=6, out=tmp_path, observer=Notes(stop_after=3))
    assert_equal(go("ditto", rounds=6, out=tmp_path, resume=True), whole)


def test_back_to_the_best_round(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"validation_fraction": 0.3, "early_stopping": 2, "rounds": 8, "lr": 0.5}
    assert_equal(go("fedrep", **settings), go("fedrep", "serial", **settings))


def test_a_worker_that_is_lost_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CrewHere, "lose", frozenset(range(3, 1000)))
    with pytest.raises(RunError, match=rf"was lost {MOST_LOSSES + 1} times in round 1, perhaps for lack of memory"):
        go("fedrep")


def test_a_worker_that_starts_too_slowly_is_not_told_as_a_host_without_the_software(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ray's part is played by functions: an actor is there, and its first answer never comes."""
    killed: list[Any] = []
    start = SimpleNamespace(remote=lambda *given: "an answer that never comes")
    ray = SimpleNamespace(
        cloudpickle=SameProcess,
        put=lambda content: content,
        remote=lambda **options: lambda kind: SimpleNamespace(remote=lambda: SimpleNamespace(start=start)),
        wait=lambda answers, timeout: ([], answers),
        kill=killed.append,
        exceptions=SimpleNamespace(RayError=OSError),
    )
    monkeypatch.setattr(ray_crew, "START_SECONDS", 0.0)
    session: Any = SimpleNamespace(ray=ray, name="a cluster")

    monkeypatch.setattr(ray_engine, "Crew", Crew)
    monkeypatch.setattr(Here, "join", classmethod(lambda kind, address, cpus: session))
    session.cpus, session.free_cpus, session.leave, session.holder = (lambda: 2), (lambda *_: 2), (lambda: None), None
    with pytest.raises(RunError, match=r"on a cluster: it did not within 0 seconds; its hosts are busy .* --workers"):
        go("fedavg", workers=2)
    assert len(killed) == 2  # nothing is left behind


def test_a_state_that_is_not_finite_is_told_like_everywhere() -> None:
    settings = {"lr": 1e30, "participation": 1.0}
    said = []
    for engine in ("serial", "ray"):
        with pytest.raises(UpdateError) as caught:
            go("ditto", engine, **settings)
        said.append(str(caught.value))
    assert said[0] == said[1]


def test_secret_noise_is_one_for_all_workers_and_their_successors() -> None:
    made: list[Setup] = []
    settings: dict[str, Any] = {"dp": "client", "dp_clip": 1.0, "dp_noise": 0.5, "dp_where": "client"}
    settings["dp_secret_noise"] = True
    with engines_changed(lambda engine: made.append(engine.setup)):
        go("fedavg", **settings)
    theirs = [Setup(**pickle.loads(packed_setup(made[0], SameProcess)), data=made[0].data).noise for _ in range(2)]
    drawn = [noise.normal([4], "client", 1, 0).tolist() for noise in (made[0].noise, *theirs)]
    assert drawn[0] == drawn[1] == drawn[2]


# -- the parts --------------------------------------------------------------------------------------------------------


def test_shares_are_even() -> None:
    sizes = [5, 1, 9, 2, 2, 7]
    shares = shares_of(sizes, 2)
    assert sorted(c for share in shares for c in share) == list(range(6))
    assert abs(sum(sizes[c] for c in shares[0]) - sum(sizes[c] for c in shares[1])) <= 2
    assert shares == shares_of(sizes, 2)
    assert shares_of([1, 1, 1], 3) == [[0], [1], [2]]


def test_the_log_knows_each_clients_safe_round() -> None:
    log = RoundLog(4)
    for round, clients in ((1, [0, 1]), (2, [1, 2]), (3, [0, 2])):
        log.add(LoggedRound(round, clients, {"w": np.zeros(2)}, {}))
    assert log.unsafe() == [0, 1, 2]
    log.make_safe([0, 1], 3)
    assert log.unsafe() == [2]
    assert [(done.round, clients) for done, clients in log.missed({1, 2, 3})] == [(2, [2]), (3, [2])]
    log.start(0)
    assert log.unsafe() == [] == log.missed({0, 1, 2, 3})

"""Letters over Flower's grid, where nodes die, forget, answer twice or say nonsense; a grid without a server."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ConfigRecord, Error, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import PullObjectResponse
from flwr.proto.node_pb2 import Node as NodeProto
from flwr.supercore.inflatable.inflatable_object import (
    add_header_to_object_body,
    get_all_nested_objects,
    get_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError, validate_object_content
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import http_grid

from commonground.data.described import describe_client
from commonground.data.part import part_of
from commonground.errors import RunError, UpdateError
from commonground.network import Limits, gather, gathering, grid, server_app
from commonground.network.letters import content_of, letter_of
from commonground.network.parts import pull_opened
from commonground.network.post import Letter, NoAnswerError, question_id
from tests.helpers import made_data

Node = Callable[[Letter], Letter | RecordDict | Error | None]
LIMITS = Limits(seconds=5, absence=0.15, max_bytes=1 << 16)
ASK = Letter("ask", "ab" * 16, b"a question")


class Grid:
    """In place of Flower's: every node is a function from letters to answers, or to nothing."""

    def __init__(self, **nodes: Node) -> None:
        self.nodes = {int(name[1:]): node for name, node in nodes.items()}
        self.there = set(self.nodes)
        self.heard: list[tuple[int, str]] = []
        self.letters: list[Letter] = []
        self._answers: dict[str, Message] = {}
        self._ids = count()

    def get_node_ids(self) -> Iterable[int]:
        return self.there

    def push_messages(self, messages: Iterable[Message]) -> Iterator[str]:
        for message in messages:
            node = message.metadata.dst_node_id
            name = f"message {next(self._ids)}"
            message.metadata.__dict__["_message_id"] = name
            letter = letter_of(message.content, 1 << 30)
            self.heard.append((node, letter.kind))
            self.letters.append(letter)
            said = self.nodes[node](letter)
            if isinstance(said, Error):
                self._answers[name] = Message(said, reply_to=message)
            elif said is not None:
                content = said if isinstance(said, RecordDict) else content_of(said)
                self._answers[name] = Message(content, reply_to=message)
            yield name

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self._answers.pop(name) for name in list(message_ids) if name in self._answers]


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_run_id", "_node_id", "_task_id"):  # as in the process that Flower starts for a run
        monkeypatch.setattr(TaskIdentity, name, 1)
    monkeypatch.setattr(grid, "POLL", 0.002)
    monkeypatch.setattr(grid, "LOOK", 0.02)


def ok(letter: Letter) -> Letter:
    return Letter("ok", question_id(letter), b"an answer")


def in_turn(*answers: Any) -> Node:
    """A node that gives these answers, one after the other; functions are called with the letter."""
    left = list(answers)

    def node(letter: Letter) -> Any:
        said = left.pop(0) if left else None
        return said(letter) if callable(said) else said

    return node


def asked(post: grid.GridPost, letter: Letter = ASK, seconds: float = 3, node: int = 1) -> Letter | UpdateError:
    return dict(post.exchange({node: letter}, seconds))[node]


def test_a_letter_is_answered() -> None:
    there = Grid(n1=ok, n2=ok)
    found = dict(grid.GridPost(there, LIMITS).exchange({1: ASK, 2: ASK}, 3))
    assert found == {1: ok(ASK), 2: ok(ASK)}
    assert there.heard == [(1, "ask"), (2, "ask")]


def test_a_hello_that_was_lost_is_said_again() -> None:
    there = Grid(n1=in_turn(None, ok))
    assert asked(grid.GridPost(there, LIMITS), Letter("hello", "", b"")) == ok(Letter("hello", "", b""))
    assert there.heard == [(1, "hello")] * 2


@pytest.mark.parametrize("kind", ["tell", "agree", "begin", "ask", "end"])
def test_a_node_that_has_lost_its_letter_gets_it_again(kind: str) -> None:
    letter = ASK._replace(kind=kind)
    there = Grid(n1=in_turn(None, Letter("unknown", "", b""), ok))
    assert asked(grid.GridPost(there, LIMITS), letter) == ok(letter)
    assert there.heard == [(1, kind), (1, "ping"), (1, kind)]


def test_a_node_at_work_is_waited_for() -> None:
    there = Grid(n1=in_turn(None, *[Letter("busy", "", b"")] * 99))
    said = asked(grid.GridPost(there, LIMITS), seconds=0.3)
    assert isinstance(said, UpdateError)
    assert str(said) == "it did not answer within 0.3 s"
    assert [kind for _, kind in there.heard].count("ask") == 1


def test_a_node_at_work_on_something_else_is_told_of() -> None:
    """Of a run that was stopped, say; what Flower says of a letter that nobody fetched tells less."""
    lost = Error(code=3, reason="The requested message could not be found in the database")
    there = Grid(n1=in_turn(None, Letter("behind", "", b""), lost, *[Letter("behind", "", b"")] * 99))
    said = asked(grid.GridPost(there, LIMITS), seconds=0.4)
    assert str(said) == "it did not answer within 0.4 s (it is still at work on what it was asked before)"


def test_a_node_whose_answer_was_lost_is_asked_again() -> None:
    """Flower tells of an error in place of the answer; the node still has it."""
    there = Grid(n1=in_turn(Error(code=3, reason="gone"), Letter("done", "", b""), ok))
    assert asked(grid.GridPost(there, LIMITS)) == ok(ASK)


def test_a_node_that_is_away_is_waited_for_once() -> None:
    there = Grid(n1=in_turn(None), n2=ok)
    there.there = {2}
    post, began = grid.GridPost(there, LIMITS), time.monotonic()
    found = dict(post.exchange({1: ASK, 2: ASK}, 3))
    assert found[2] == ok(ASK)
    assert str(found[1]) == "it is not there"
    assert time.monotonic() - began < 2
    assert str(dict(post.exchange({1: ASK}, 3))[1]) == "it is not there"
    assert there.heard.count((1, "ask")) == 1  # not sent again to one that is away
    there.there, there.nodes[1] = {1, 2}, ok
    assert asked(post) == ok(ASK)  # and that is back


@pytest.mark.parametrize(
    ("said", "match"),
    [
        (Letter("ok", "", bytes(1 << 17)), "131,072 bytes was received, and at most 65,536"),
        (Letter("k" * 101, "", b""), "was received, and at most"),
        (Letter("ok", "r" * 101, b""), "was received, and at most"),
        (RecordDict({"about": ConfigRecord({"kind": "ok"})}), "none of CommonGround"),
        (RecordDict({"about": ConfigRecord({"kind": 1, "run": ""}), "body": content_of(ASK)["body"]}), "none of Comm"),
    ],
)
def test_an_answer_that_is_none_is_refused(said: Letter | RecordDict, match: str) -> None:
    answer = asked(grid.GridPost(Grid(n1=lambda letter: said), LIMITS))
    assert isinstance(answer, UpdateError)
    assert match in str(answer)


def test_those_who_come_are_not_kept_waiting_by_one_that_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    windows: list[float] = []

    class Silent:
        def nodes(self) -> list[int]:
            return [1]

        def exchange(self, letters: Any, seconds: float, check_stop: Any = None) -> Iterator[Any]:
            windows.append(seconds)
            yield from ((node, NoAnswerError("it did not answer")) for node in letters)

    now = iter(range(0, 1000, 5))
    monkeypatch.setattr(gathering, "time", SimpleNamespace(monotonic=lambda: float(next(now)), sleep=lambda s: None))
    notes: list[str] = []
    with pytest.raises(RunError, match=r"0 of 1 clients have come within 20 s \(it did not answer\)"):
        gather(Silent(), 1, 20, notes.append)
    assert re.fullmatch("waiting up to [0-9]+ s for 1 client; there: 0", notes.pop(0))
    assert notes == ["node 1 has not answered yet; it is asked again"]
    assert windows[:3] == [4, 8, 16]
    assert max(windows) <= 20


def test_who_came_in_the_end_is_no_reason_for_too_few(monkeypatch: pytest.MonkeyPatch) -> None:
    about = describe_client(part_of(made_data(), [0]), "north").model_dump_json().encode()
    asked: list[int] = []

    class Late:
        def nodes(self) -> list[int]:
            return [1, 2]

        def exchange(self, letters: Mapping[int, Letter], seconds: float, check_stop: Any = None) -> Iterator[Any]:
            asked.extend(letters)
            for node, letter in letters.items():
                came = node == 1 and asked.count(1) > 1
                said = Letter("ok", question_id(letter), about)
                yield node, said if came else NoAnswerError(f"node {node} is away")

    now = iter(range(0, 1000, 5))
    monkeypatch.setattr(gathering, "time", SimpleNamespace(monotonic=lambda: float(next(now)), sleep=lambda s: None))
    with pytest.raises(RunError, match=r"1 of 2 clients have come within 20 s \(node 2 is away\)"):
        gather(Late(), 2, 20)


def test_clients_of_one_name_are_told_by_their_nodes() -> None:
    def says(name: str) -> Node:
        about = describe_client(part_of(made_data(), [0]), name).model_dump_json().encode()
        return lambda letter: Letter("ok", question_id(letter), about)

    there = Grid(n1=says("north"), n22=says("south"), n3=says("north"), n4=says("north"))
    wanted = r"the clients of nodes 1, 3 and 4 call themselves 'north'; each needs a name of its own \(--name\)"
    with pytest.raises(RunError, match=wanted):
        gather(grid.GridPost(there, LIMITS), 4, 3)
    assert sorted(node for node, kind in there.heard if kind == "told") == [1, 3, 4]  # their owners can mend it
    (told,) = {letter.body for letter in there.letters if letter.kind == "told"}
    assert told == b"3 clients call themselves 'north'; each needs a name of its own (--name)"  # and no node's number


def test_a_message_whose_parts_the_server_does_not_take_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid, "POLL", 0.0)
    refused = [True, True, False]

    class Busy(Grid):
        def push_messages(self, messages: Iterable[Message]) -> Iterator[str]:
            if refused.pop(0):
                raise ObjectPushError("part", 1, "session")
            return super().push_messages(messages)

    told = dict(grid.GridPost(Busy(n1=lambda letter: Letter("ok", "", b"yes")), LIMITS).exchange({1: ASK}, 5))
    assert isinstance(told[1], Letter)
    assert refused == []


def test_an_answer_that_takes_long_to_come_makes_no_other_late() -> None:
    """Answers are fetched one after the other: the rest of one may be on its way until the time for all is over."""

    class Slow(Grid):
        def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
            names = list(message_ids)
            if len(self._answers) == 2:  # the first look: one is whole, and takes all the time
                time.sleep(0.4)
                return super().pull_messages(names[:1])
            return super().pull_messages(names)

    there = Slow(n1=lambda letter: Letter("ok", "", b"slow"), n2=lambda letter: Letter("ok", "", b"quick"))
    told = dict(grid.GridPost(there, LIMITS).exchange({1: ASK, 2: ASK}, 0.3))
    assert {node: answer.body for node, answer in told.items() if isinstance(answer, Letter)} == {
        1: b"slow",
        2: b"quick",
    }


def test_a_job_waits_for_parts_as_long_as_for_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = server_app.Job(settings={}, clients=1, wait=1.0, limits=LIMITS, out=str(tmp_path / "run"))
    (tmp_path / "job.json").write_text(job.model_dump_json())
    monkeypatch.setattr(server_app, "end_with", lambda parent: None)
    for name in ("pull_objects", "inflate_object_from_contents"):
        monkeypatch.setitem(vars(http_grid), name, vars(http_grid)[name])  # put back afterwards
    pulls: list[Any] = []
    monkeypatch.setattr(server_app, "_carry_out", lambda *_: pulls.append(vars(http_grid)["pull_objects"]))
    context: Any = SimpleNamespace(run_config={"job": str(tmp_path / "job.json")}, run_id=1)
    nothing: Any = None
    server_app.main(nothing, context)
    wanted = {"most_seconds": LIMITS.seconds, "most_bytes": LIMITS.max_bytes}
    assert [(pull.func, pull.keywords) for pull in pulls] == [(pull_opened, wanted)]
    assert json.loads(server_app.outcome_of(tmp_path / "job.json").read_text()) == {"error": None}


class Unreadable(Array):
    """An array that says of itself what is no JSON."""

    body = b"no json"

    def deflate(self) -> bytes:
        return add_header_to_object_body(object_body=self.body, obj=self)


class Repeating(Unreadable):
    """One that names its one part a hundred times."""

    body = json.dumps({"dtype": "uint8", "shape": [1], "stype": "commonground", "arraychunk_ids": [0] * 100}).encode()


Unreadable.__qualname__ = Repeating.__qualname__ = Array.__qualname__  # by which Flower knows them


def through_flower(monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Array], None]) -> dict[int, Letter | UpdateError]:
    """What the post gives of two clients' answers that came through Flower's own grid, of which that of node 7 is
    spoilt in a way that its server lets through.
    """
    monkeypatch.setitem(vars(http_grid), "pull_objects", partial(pull_opened, most_seconds=5.0, most_bytes=1 << 16))
    monkeypatch.setitem(vars(http_grid), "inflate_object_from_contents", server_app._message_of)
    replies: list[Message] = []

    class Flowers(http_grid.HttpGrid):
        """Without a server."""

        node = NodeProto(node_id=1)

        def __init__(self) -> None:
            self._run: Any = SimpleNamespace(run_id=1)

        def get_node_ids(self) -> Iterable[int]:
            return [7, 8]

        def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
            for message in messages:
                message.metadata.__dict__["_message_id"] = message.object_id
                node, content = message.metadata.dst_node_id, content_of(Letter("ok", "", bytes(1000)))
                if node == 7:
                    spoil(content.array_records["body"]["body"])
                reply = Message(content, reply_to=message)
                reply.metadata.__dict__["_message_id"] = reply.object_id
                replies.append(reply)
                yield message.object_id

        @property
        def _runtime_client(self) -> Any:
            parts = {name: one.deflate() for reply in replies for name, one in get_all_nested_objects(reply).items()}
            for part in parts.values():
                validate_object_content(part)  # all that Flower's server asks of one
            heads = [message_to_proto(remove_content_from_message(reply)) for reply in replies]
            trees = [get_object_tree(reply) for reply in replies]
            return SimpleNamespace(
                PullMessages=lambda asked: SimpleNamespace(messages_list=heads, message_object_trees=trees),
                PullObject=lambda asked: PullObjectResponse(
                    object_found=True, object_available=True, object_content=parts[asked.object_id]
                ),
                ConfirmMessageReceived=lambda asked: None,
            )

    return dict(grid.GridPost(Flowers(), LIMITS).exchange({7: ASK, 8: ASK}, 5))


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Unreadable, "a message was received that cannot be read"),
        (Repeating, r"a message of 100,\d\d\d bytes was received, and at most 65,536 are allowed \(--max-message\)"),
    ],
)
def test_an_answer_over_which_flower_would_stumble_is_refused_and_no_other(
    kind: type[Array], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoil(array: Array) -> None:
        array.__class__ = kind

    made, joined = Array.inflate, list[int]()

    def inflate(*given: Any, **more: Any) -> Array:
        array = made(*given, **more)
        joined.append(len(array.data))
        return array

    monkeypatch.setattr(Array, "inflate", inflate)
    told = through_flower(monkeypatch, spoil)
    assert joined == [1000]  # of node 8 alone: what is too large is not put together first
    refused = told[7]
    assert isinstance(refused, UpdateError)
    assert re.fullmatch(f"of its answer the server says: {said}", str(refused))
    assert not isinstance(refused, NoAnswerError)
    assert told[8] == Letter("ok", "", bytes(1000))


def test_an_honest_answer_comes_through_flower_as_it_was_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    told = through_flower(monkeypatch, lambda array: None)
    assert told == {7: Letter("ok", "", bytes(1000)), 8: Letter("ok", "", bytes(1000))}


def test_no_two_questions_have_an_id_that_another_node_could_work_out() -> None:
    """All that Flower asks of an answer is that it names the question; the rest of the id is known to all."""
    ids = [content_of(ASK).object_id for _ in range(2)]
    assert ids[0] != ids[1]
    assert letter_of(content_of(ASK), 1 << 20) == ASK

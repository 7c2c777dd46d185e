"""A node's line to the server: what it fetches is bounded before it is read, and what does not come is given up."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

pytest.importorskip("flwr")

from flwr.app import Message, MessageType
from flwr.app.message import Array, remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import ObjectTree, PullObjectResponse, PushObjectResponse
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectUnavailableError,
    inflate_object_from_contents,
)
from flwr.supercore.task_identity import TaskIdentity

from commonground.errors import UpdateError
from commonground.network import fleet, limits, parts
from commonground.network.keys import make_node_key, read_node_key
from commonground.network.letters import content_of, letter_of
from commonground.network.post import Letter

LETTER = Letter("ask", "ab" * 16, b"a question")


class Server:
    """In place of the Fleet API: one message, whole or not."""

    def __init__(self) -> None:
        self.message = Message(content_of(LETTER), 7, MessageType.QUERY)
        self.message.metadata.__dict__["_message_id"] = self.message.object_id
        self.parts = {name: one.deflate() for name, one in get_all_nested_objects(self.message).items()}
        self.tree: Any = get_object_tree(self.message)
        self.fetched: list[str] = []
        self.confirmed: list[str] = []
        self.announced: list[str] = []
        self.stored: dict[str, bytes] = {}
        self.takes: list[bool | httpx.HTTPError] = []  # what becomes of the parts that are sent; then all are taken

    def pull_messages(self, request: Any) -> Any:  # Flower's name
        head = message_to_proto(remove_content_from_message(self.message))
        return SimpleNamespace(messages_list=[head], message_object_trees=[self.tree])

    def pull_object(self, request: Any) -> PullObjectResponse:  # Flower's name
        self.fetched.append(request.object_id)
        part = self.parts.get(request.object_id)
        return PullObjectResponse(object_found=True, object_available=part is not None, object_content=part or b"")

    def push_messages(self, request: Any) -> Any:  # Flower's name
        tree = request.message_object_trees[0]
        self.announced.append(tree.object_id)
        names = [one.object_id for one in iterate_object_tree(tree) if one.object_id not in self.stored]
        return SimpleNamespace(objects_to_push=names, session_id=f"session {len(self.announced)}")

    def push_object(self, request: Any) -> PushObjectResponse:  # Flower's name
        assert request.session_id == f"session {len(self.announced)}"
        end = self.takes.pop(0) if self.takes else True
        if isinstance(end, httpx.HTTPError):
            raise end
        if end:
            assert request.object_id not in self.stored
            self.stored[request.object_id] = request.object_content
        return PushObjectResponse(stored=end)

    def confirm(self, request: Any) -> Any:  # Flower's name
        self.confirmed.append(request.message_object_id)
        return SimpleNamespace()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    for name in ("_run_id", "_node_id", "_task_id"):  # as in the process that Flower starts for a run
        monkeypatch.setattr(TaskIdentity, name, 1)
    return Server()


def line(server: Server, folder: Path, most: int = 1 << 20) -> fleet.Fleet:
    make_node_key(folder)
    made = fleet.Fleet("127.0.0.1:1", read_node_key(folder), None, folder / "node.txt", most)
    client: Any = SimpleNamespace(
        PullMessages=server.pull_messages,
        PullObject=server.pull_object,
        ConfirmMessageReceived=server.confirm,
        PushMessages=server.push_messages,
        PushObject=server.push_object,
    )
    made._client = client
    return made


def test_a_letter_is_fetched_and_confirmed(server: Server, tmp_path: Path) -> None:
    received = line(server, tmp_path).receive()
    assert received is not None
    assert received[1] == LETTER
    assert server.confirmed == [server.message.object_id]


@pytest.mark.parametrize("asked", ["PullObject", "ConfirmMessageReceived"])
def test_a_message_of_a_run_that_was_stopped_is_told_as_that(
    asked: str, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its parts are refused; where the server fails in another way, or refuses the node itself, it is not there."""

    def failing(code: int) -> Callable[[Any], Any]:
        def fail(request: Any) -> Any:
            told = httpx.Response(code, request=httpx.Request("POST", "https://server"))
            raise httpx.HTTPStatusError(f"{code}", request=told.request, response=told)

        return fail

    stopped, broken, unknown = (line(server, tmp_path) for _ in range(3))
    setattr(stopped._client, asked, failing(403))
    with pytest.raises(UpdateError, match="has ended a run while this client was at work in it: it was stopped there"):
        stopped.receive()
    setattr(broken._client, asked, failing(503))
    with pytest.raises(httpx.HTTPStatusError):
        broken.receive()
    monkeypatch.setattr(unknown._client, "PullMessages", failing(403))
    with pytest.raises(httpx.HTTPStatusError):
        unknown.receive()


def test_a_message_of_too_many_parts_is_not_fetched(server: Server, tmp_path: Path) -> None:
    server.tree = ObjectTree(object_id="all", children=[ObjectTree(object_id=str(i)) for i in range(40)])
    with pytest.raises(UpdateError, match="a message of 41 parts was sent, and at most 1,048,576 bytes are read"):
        line(server, tmp_path).receive()
    assert server.fetched == []


def test_as_many_parts_as_a_message_may_have_are_asked_for(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "PATIENCE", 0.05)
    for allowed, number in ((True, 17), (False, 18)):  # of 1 MiB: one part, and what Flower puts around it
        children = [ObjectTree(object_id=str(i)) for i in range(number - 1)]
        server.tree = ObjectTree(object_id="all", children=children)
        with pytest.raises(UpdateError, match="whose parts did not come" if allowed else f"of {number} parts"):
            line(server, tmp_path).receive()


@pytest.mark.parametrize(
    "lengths", [[limits.PART, limits.PART, 1], [limits.PART, limits.PART], [limits.PART, limits.PART - 1]]
)
def test_an_array_is_divided_into_whole_parts_and_a_rest(lengths: list[int]) -> None:
    array = Array("uint8", (sum(lengths),), "numpy.ndarray", bytes(sum(lengths)))
    parts.divide(array)
    assert [len(part.data) for _, part in vars(array)["_chunks"]] == lengths


def test_a_letter_that_is_too_long_is_refused(server: Server, tmp_path: Path) -> None:
    with pytest.raises(UpdateError, match="a message of 10 bytes was received, and at most 9 are allowed"):
        line(server, tmp_path, most=9).receive()


def test_parts_that_do_not_come_are_given_up(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PATIENCE", 0.2)
    del server.parts[next(name for name in server.parts if name != server.message.object_id)]
    with pytest.raises(UpdateError, match="whose parts did not come"):
        line(server, tmp_path).receive()
    assert server.confirmed == []


ANSWER = Letter("ok", "ab" * 16, bytes(range(256)) * (3 << 12))  # of three parts


def answered(server: Server) -> Letter:
    """The letter in what the server has stored."""
    whole = inflate_object_from_contents(server.announced[-1], dict(server.stored))
    assert isinstance(whole, Message)
    return letter_of(whole.content, 1 << 30)


@pytest.fixture
def reply(server: Server, tmp_path: Path) -> tuple[fleet.Fleet, Message]:
    node = line(server, tmp_path, most=1 << 30)
    received = node.receive()
    assert received is not None
    return node, node.reply(received[0], ANSWER)


def test_an_answer_travels_in_parts(server: Server, reply: tuple[fleet.Fleet, Message]) -> None:
    node, answer = reply
    node.send(answer)
    assert answered(server) == ANSWER
    assert max(len(part) for part in server.stored.values()) < limits.PART + 100
    assert len(server.announced) == 1


def test_parts_that_are_not_taken_are_sent_again(server: Server, reply: tuple[fleet.Fleet, Message]) -> None:
    """As by a server whose database is busy, or that held the message for given up."""
    node, answer = reply
    server.takes = [True, False]
    node.send(answer)
    assert answered(server) == ANSWER
    assert len(server.announced) == 2


def test_an_answer_whose_parts_are_never_taken_is_given_up(
    server: Server, reply: tuple[fleet.Fleet, Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "PAUSE", 0.0)
    node, answer = reply
    server.takes = [False] * 100
    with pytest.raises(UpdateError, match="an answer could not be sent"):
        node.send(answer)


def test_of_an_answer_that_was_cut_off_only_the_rest_is_sent(
    server: Server, reply: tuple[fleet.Fleet, Message]
) -> None:
    """The server takes one answer to a message: another one in its place would be refused."""
    node, answer = reply
    server.takes = [True, True, httpx.ReadError("cut")]
    with pytest.raises(httpx.ReadError):
        node.send(answer)
    before = len(server.stored)
    assert before > 0
    node.send(answer)  # the server refuses parts that it has
    assert answered(server) == ANSWER
    assert len(set(server.announced)) == 1


def test_a_long_message_on_a_slow_line_comes_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """What counts is how long nothing has come: all parts together take longer than that."""
    monkeypatch.setattr(parts, "PATIENCE", 0.4)
    there = {str(c): bytes([c]) for c in range(8)}
    began = time.monotonic()

    def pull(name: str) -> bytes:
        if time.monotonic() - began < 0.15 * int(name):
            raise ObjectUnavailableError(name)
        return there[name]

    assert parts.pull_patiently(list(there), pull) == there
    assert time.monotonic() - began > 2 * 0.4
    began = time.monotonic()
    with pytest.raises(ObjectPullError):
        parts.pull_patiently(list(there), pull, most=0.5)

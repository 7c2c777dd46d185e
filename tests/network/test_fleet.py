"""A node's line to the server: what it fetches is bounded before it is read, and what does not come is given up."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.app import Message, MessageType
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import ObjectTree, PullObjectResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.task_identity import TaskIdentity

from commonground.errors import UpdateError
from commonground.network import fleet
from commonground.network.keys import make_node_key, read_node_key
from commonground.network.letters import content_of
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

    def pull_messages(self, request: Any) -> Any:  # Flower's name
        head = message_to_proto(remove_content_from_message(self.message))
        return SimpleNamespace(messages_list=[head], message_object_trees=[self.tree])

    def pull_object(self, request: Any) -> PullObjectResponse:  # Flower's name
        self.fetched.append(request.object_id)
        part = self.parts.get(request.object_id)
        return PullObjectResponse(object_found=True, object_available=part is not None, object_content=part or b"")

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
        PullMessages=server.pull_messages, PullObject=server.pull_object, ConfirmMessageReceived=server.confirm
    )
    made._client = client
    return made


def test_a_letter_is_fetched_and_confirmed(server: Server, tmp_path: Path) -> None:
    received = line(server, tmp_path).receive()
    assert received is not None
    assert received[1] == LETTER
    assert server.confirmed == [server.message.object_id]


def test_a_message_of_too_many_parts_is_not_fetched(server: Server, tmp_path: Path) -> None:
    server.tree = ObjectTree(object_id="all", children=[ObjectTree(object_id=str(i)) for i in range(40)])
    with pytest.raises(UpdateError, match="a message of 41 parts was sent, and at most 1,048,576 bytes are read"):
        line(server, tmp_path).receive()
    assert server.fetched == []


def test_a_letter_that_is_too_long_is_refused(server: Server, tmp_path: Path) -> None:
    with pytest.raises(UpdateError, match="a message of 10 bytes was received, and at most 9 are allowed"):
        line(server, tmp_path, most=9).receive()


def test_parts_that_do_not_come_are_given_up(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "PATIENCE", 0.2)
    del server.parts[next(name for name in server.parts if name != server.message.object_id)]
    with pytest.raises(UpdateError, match="whose parts did not come"):
        line(server, tmp_path).receive()
    assert server.confirmed == []

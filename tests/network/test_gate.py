"""What stands before Flower's SuperLink: other hosts reach the nodes' part alone, and nothing too large is read."""

from __future__ import annotations

import asyncio
import datetime
import hashlib
import os
import tomllib
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography import x509
from flwr.app import Array, Message, MessageType
from flwr.app.message import remove_content_from_message
from flwr.app.message.arraychunk import ArrayChunk
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.proto.message_pb2 import Metadata as MetadataProto
from flwr.proto.message_pb2 import PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, no_object_id_recompute
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink import main as flowers

from commonground.errors import ConfigError
from commonground.network import superlink
from commonground.network.deploy import flower_project
from commonground.network.keys import make_certificates, make_node_key, read_node_key
from commonground.network.letters import content_of
from commonground.network.limits import PART
from commonground.network.post import Letter
from commonground.network.superlink import Gate, is_everywhere

OUTSIDE, INSIDE, OWN = "192.0.2.7", "127.0.0.1", "192.0.2.1"
MOST = 8  # MiB of a message
MANY = 2**64 - 1  # the longest of Flower's numbers


def asked(
    path: str,
    host: str = OUTSIDE,
    headers: Mapping[str, str] | None = None,
    parts: tuple[bytes, ...] = (b"",),
    own: str | None = OWN,
    **how: Any,
) -> int:
    """The status that a request gets; 200 if it reached what is behind the gate, whole."""
    sent: list[Any] = []

    async def behind(scope: Any, receive: Any, send: Any) -> None:
        more = True
        while more:
            more = (await receive()).get("more_body", False)
        await send({"type": "http.response.start", "status": 200, "headers": []})

    bodies = [{"type": "http.request", "body": part, "more_body": n < len(parts)} for n, part in enumerate(parts, 1)]

    async def receive() -> Any:
        return bodies.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    given = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    server = None if own is None else (own, 9092)
    scope = {"type": "http", "path": path, "client": (host, 5), "server": server, "headers": given}
    asyncio.run(Gate(behind, max_bytes=MOST << 20, **how)(scope, receive, send))
    return int(sent[0]["status"])


@pytest.mark.parametrize("path", ["/v1/control/start-run", "/v1/runtime/pull-task-input", "/docs", "/", "/v1/fleet"])
def test_only_this_host_starts_runs(path: str) -> None:
    assert asked(path) == 403
    assert asked(path, "::ffff:192.0.2.7") == 403
    assert [asked(path, host) for host in (INSIDE, "::1", "::ffff:127.0.0.1")] == [200, 200, 200]


@pytest.mark.parametrize("own", [OWN, f"::ffff:{OWN}"])
def test_a_server_at_one_address_is_asked_from_it_by_its_own_host(own: str) -> None:
    path = "/v1/control/start-run"
    assert [asked(path, host, own=own, everywhere=False) for host in (OWN, f"::ffff:{OWN}", INSIDE)] == [200] * 3
    for other in (OUTSIDE, "::", "nobody", ""):
        assert asked(path, other, own=own, everywhere=False) == 403
    assert asked(path, OWN, own=None, everywhere=False) == 403
    assert asked(path, "name", own="name", everywhere=False) == 403
    # Behind some containers' forwarding that is how everybody looks; on all addresses this host asks over the loopback.
    assert asked(path, OWN, own=own, everywhere=True) == asked(path, OWN, own=own) == 403


def test_an_address_of_ipv6_is_one_however_it_is_written() -> None:
    path = "/v1/control/start-run"
    assert asked(path, "2001:db8::1", own="2001:DB8:0::1", everywhere=False) == 200
    assert asked(path, "2001:db8::2", own="2001:DB8:0::1", everywhere=False) == 403


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "0", "", "::ffff:0.0.0.0", "a..b"])
def test_who_listens_everywhere(host: str) -> None:
    assert is_everywhere(host)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", OWN, "2001:db8::1", "localhost"])
def test_who_listens_at_one_address(host: str) -> None:
    assert not is_everywhere(host)


@pytest.mark.parametrize(("host", "everywhere"), [("127.0.0.2", False), ("0.0.0.0", True)])
def test_the_gate_is_told_where_the_server_listens(
    host: str, everywhere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    added: list[tuple[Any, dict[str, Any]]] = []
    app = SimpleNamespace(add_middleware=lambda kind, **how: added.append((kind, how)))
    monkeypatch.setattr(flowers, "create_app", lambda config, lifespan: app)
    command = import_module("flwr.superlink.cli.flower_superlink")  # the package has a function of this name
    monkeypatch.setattr(
        command, "flower_superlink", lambda: vars(flowers)["create_app"](SimpleNamespace(host=host), None)
    )
    monkeypatch.setenv(superlink.MAX_BYTES, str(MOST << 20))
    monkeypatch.delenv(superlink.ENDS_WITH, raising=False)
    superlink.main()
    assert added == [(Gate, {"max_bytes": MOST << 20, "everywhere": everywhere})]


def answer_of(mebibytes: int, monkeypatch: pytest.MonkeyPatch) -> tuple[int, list[int]]:
    """Bytes of the requests by which an answer travels: its announcement, and each of its parts."""
    for name in ("_run_id", "_node_id", "_task_id"):  # as in the process that Flower starts for a run
        monkeypatch.setattr(TaskIdentity, name, MANY)
    asked = Message(content_of(Letter("ask", "a" * 32, b"")), MANY, MessageType.QUERY, ttl=1.5)
    asked.metadata.__dict__["_message_id"] = "f" * 64
    body = b"".join(os.urandom(PART) for _ in range(mebibytes))
    reply = Message(content_of(Letter("ok", "0" * 64, body)), reply_to=asked)
    reply.metadata.__dict__["_message_id"] = reply.object_id
    node = Node(node_id=MANY)
    with no_object_id_recompute():
        announced = PushMessagesRequest(
            node=node,
            messages_list=[message_to_proto(remove_content_from_message(reply))],
            message_object_trees=[get_object_tree(reply)],
            clientapp_runtime_list=[0.0],
        )
        parts = [
            PushObjectRequest(
                node=node, run_id=MANY, session_id="f" * 64, object_id=name, object_content=part.deflate()
            )
            for name, part in get_all_nested_objects(reply).items()
        ]
    return announced.ByteSize(), [part.ByteSize() for part in parts]


def test_an_answer_may_be_as_large_as_is_allowed_and_no_larger(monkeypatch: pytest.MonkeyPatch) -> None:
    def announced(length: int) -> int:
        return asked("/v1/fleet/push-messages", headers={"content-length": str(length)})

    whole, parts = answer_of(MOST, monkeypatch)
    assert announced(whole) == 200
    assert {asked("/v1/fleet/push-object", headers={"content-length": str(part)}) for part in parts} == {200}
    longer, _ = answer_of(2 * MOST, monkeypatch)
    assert announced(longer) == 413
    assert (longer - whole) / MOST == superlink.NAME


@pytest.mark.parametrize("mebibytes", [1, 64, 1024, 4096, 1 << 20])
def test_what_is_announced_is_little_more_than_what_is_allowed(mebibytes: int) -> None:
    gate: Any = Gate(None, mebibytes << 20)  # type: ignore[arg-type]
    assert mebibytes < gate.largest_announcement // superlink.NAME <= mebibytes + 16


def test_the_list_of_very_many_parts_is_a_part_that_is_let_through() -> None:
    def list_of(parts: int) -> int:
        array = Array(dtype="uint8", shape=(parts * PART,), stype="commonground", data=b"")
        one = ArrayChunk(memoryview(b""))
        array.__dict__["_chunks"] = [(hashlib.sha256(str(n).encode()).hexdigest(), one) for n in range(parts)]
        return len(array.deflate())

    assert list_of(2000) < 2000 * superlink.ENTRY
    gate: Any = Gate(None, 100 << 30)  # type: ignore[arg-type]
    assert gate.largest_part > list_of(2000) / 2000 * (100 << 10) > PART  # longer than a part of the answer itself


def test_nodes_are_let_through() -> None:
    assert asked("/v1/fleet/pull-messages") == 200
    assert asked("/v1/fleet/push-object", parts=(bytes(PART), bytes(200))) == 200


def test_what_is_announced_as_too_large_is_not_read() -> None:
    assert asked("/v1/fleet/push-object", headers={"content-length": str(PART + (2 << 10))}) == 413
    assert asked("/v1/fleet/push-messages", headers={"content-length": str(1 << 20)}) == 413
    assert asked("/v1/fleet/push-object", headers={"Content-Length": "9" * 30}) == 413
    assert asked("/v1/fleet/push-object", headers={"content-length": "-1"}) == 413


def test_what_is_longer_than_announced_is_not_read_to_its_end() -> None:
    with pytest.raises(Exception, match="a request of more than"):
        asked("/v1/fleet/push-object", parts=tuple(bytes(1 << 20) for _ in range(7)))


def test_certificates_hold_for_the_names_given(tmp_path: Path) -> None:
    make_certificates(tmp_path, ["fl.example.org", "192.0.2.1"], days=30)
    leaf = x509.load_pem_x509_certificate((tmp_path / "server.pem").read_bytes())
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fl.example.org"]
    assert [str(a) for a in names.get_values_for_type(x509.IPAddress)] == ["192.0.2.1"]
    left = leaf.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    assert 29 < left.total_seconds() / 86400 < 31
    authority = x509.load_pem_x509_certificate((tmp_path / "ca.pem").read_bytes())
    leaf.verify_directly_issued_by(authority)


def test_a_key_stays(tmp_path: Path) -> None:
    public = make_node_key(tmp_path).read_text("ascii")
    assert make_node_key(tmp_path).read_text("ascii") == public
    assert public.startswith("ecdsa-sha2-nistp384 ")
    (tmp_path / "node.key").write_text("no key")
    with pytest.raises(ConfigError, match=r"node\.key' cannot be read"):
        read_node_key(tmp_path)


def test_an_app_of_flowers_says_what_it_was_given() -> None:
    apps = {"serverapp": "server:app", "clientapp": "client:app"}
    config: dict[str, str | int] = {"job": "", "name": 'a "b"', "rounds": 5}
    project = tomllib.loads(flower_project("an-app", apps, config))
    about = {"description": "What Flower runs for CommonGround", "license": "Apache-2.0"}  # Flower asks for both
    assert project["project"] == {"name": "an-app", "version": "1.0.0", "dependencies": [], **about}
    assert project["tool"]["flwr"]["app"] == {"publisher": "commonground", "components": apps, "config": config}


@pytest.mark.parametrize(("node", "named", "status"), [(7, 7, 200), (7, 8, 403)])
def test_a_node_answers_in_its_own_name_alone(node: int, named: int, status: int) -> None:
    """Flower asks for the key of the node that announces an answer, and takes the answer for that of whom it names."""
    head = MessageProto(metadata=MetadataProto(src_node_id=named, reply_to_message_id="a question"))
    body = PushMessagesRequest(node=Node(node_id=node), messages_list=[head]).SerializeToString()
    assert asked("/v1/fleet/push-messages", parts=(body[:5], body[5:])) == status
    assert asked("/v1/fleet/push-messages", parts=(b"no message",)) == 200  # Flower says what is wrong with it

"""What stands before Flower's SuperLink: other hosts reach the nodes' part alone, and nothing too large is read."""

from __future__ import annotations

import asyncio
import datetime
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from commonground.errors import ConfigError
from commonground.network.deploy import flower_project
from commonground.network.keys import make_certificates, make_node_key, read_node_key
from commonground.network.superlink import Gate

OUTSIDE, INSIDE = "192.0.2.7", "127.0.0.1"


def asked(
    path: str, host: str = OUTSIDE, headers: Mapping[str, str] | None = None, parts: tuple[bytes, ...] = (b"",)
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
    scope = {"type": "http", "path": path, "client": (host, 5), "headers": given}
    asyncio.run(Gate(behind, max_bytes=8 << 20)(scope, receive, send))
    return int(sent[0]["status"])


@pytest.mark.parametrize("path", ["/v1/control/start-run", "/v1/runtime/pull-task-input", "/docs", "/", "/v1/fleet"])
def test_only_this_host_starts_runs(path: str) -> None:
    assert asked(path) == 403
    assert asked(path, "::ffff:192.0.2.7") == 403
    assert [asked(path, host) for host in (INSIDE, "::1", "::ffff:127.0.0.1")] == [200, 200, 200]


def test_the_parts_of_the_longest_message_can_be_announced() -> None:
    most = (16 << 10) + 256 * 9  # eight parts and one more
    assert asked("/v1/fleet/push-messages", headers={"content-length": str(most)}) == 200
    assert asked("/v1/fleet/push-messages", headers={"content-length": str(most + 1)}) == 413


def test_nodes_are_let_through() -> None:
    assert asked("/v1/fleet/pull-messages") == 200
    assert asked("/v1/fleet/push-object", parts=(bytes(5 << 20), bytes(100))) == 200


def test_what_is_announced_as_too_large_is_not_read() -> None:
    assert asked("/v1/fleet/push-object", headers={"content-length": str(6 << 20)}) == 413
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
    assert project["project"] == {"name": "an-app", "version": "1.0.0", "dependencies": []}
    assert project["tool"]["flwr"]["app"] == {"publisher": "commonground", "components": apps, "config": config}

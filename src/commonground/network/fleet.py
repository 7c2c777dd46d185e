"""A node's line to Flower's SuperLink: signed requests over TLS, one process that stays.

Flower's own SuperNode looks for messages every three seconds and starts a process for each, with the code that the
server sends. This one asks five times a second, keeps data and model in memory, and runs no code but what is installed
on its host. What goes over the line is the same: Flower's Fleet API.
"""

from __future__ import annotations

import shlex
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
    RegisterNodeFleetRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.node_pb2 import Node
from flwr.supercore.error import FlowerError
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectPushError,
    push_objects,
)
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from commonground.engine.state.files import write_atomically
from commonground.errors import RunError, UpdateError
from commonground.network.letters import content_of, letter_of
from commonground.network.limits import PART
from commonground.network.parts import opened, pull_patiently
from commonground.network.post import Letter
from commonground.quoting import escaped

__all__ = ["REFUSED", "RUN_OVER", "Fleet"]

HEARTBEAT = 10.0  # seconds, the least that Flower takes: twice that, and a node counts as away
REFUSED = (401, 403)
RUN_OVER = "the server has ended a run while this client was at work in it: it was stopped there"
TRIES, PAUSE = 5, 0.2  # of sending an answer; seconds more between two of them each time


class Fleet:
    """The line of one node.

    Args:
        address: ``host:port`` of the SuperLink.
        key: the node's.
        certificates: file of the authority that signed the server's certificate; None for a plain connection.
        node_file: where the node's number is kept, by which a process that was killed takes its place again.
        max_bytes: of a message.
    """

    def __init__(
        self,
        address: str,
        key: ec.EllipticCurvePrivateKey,
        certificates: Path | None,
        node_file: Path,
        max_bytes: int,
    ) -> None:
        self.address, self.max_bytes = address, max_bytes
        self._node_file = node_file
        self.plain = certificates is None  # an unencrypted connection, over which no key is asked for
        self._public = public_key_to_bytes(key.public_key())
        signed = NodeAuthHttpInterceptor(key, key.public_key())
        self._client = FleetHttpClient.from_server_address(
            address,
            certificates is None,
            None if certificates is None else certificates.read_bytes(),
            [RuntimeVersionHttpInterceptor(component_name="SuperNode"), signed],
        )
        self._node = Node()
        self._stop = threading.Event()
        self._beats: threading.Thread | None = None

    def connect(self) -> int:
        """Take the node's place among those that are there.

        Returns:
            The node's number.

        Raises:
            RunError: the server does not know the node's key, or is of another kind.
            httpx.HTTPError: the server cannot be reached.
        """
        try:
            if self.plain and not self._node_file.is_file():
                with suppress(httpx.HTTPStatusError):  # it may have done so before
                    self._client.RegisterNode(RegisterNodeFleetRequest(public_key=self._public))
            number = self._activated()
        except httpx.HTTPStatusError as error:
            raise RunError(f"the server at {self.address} does not take this client{self._why(error)}") from None
        self._node = Node(node_id=number)
        write_atomically(self._node_file, f"{number}\n")
        self._beat()
        self._beats = self._beats or threading.Thread(target=self._beat_on, name="heartbeat", daemon=True)
        if not self._beats.is_alive():
            self._beats.start()
        return number

    def receive(self) -> tuple[Message, Letter] | None:
        """The next letter with the message that it came in, if there is one.

        Raises:
            UpdateError: there was a message that is none of ours, or too large, or of a run that was stopped meanwhile.
            httpx.HTTPError: the server cannot be reached.
        """
        response = self._client.PullMessages(PullMessagesRequest(node=self._node))
        if not response.messages_list:
            return None
        head, tree = message_from_proto(response.messages_list[0]), response.message_object_trees[0]
        run, ids = head.metadata.run_id, [part.object_id for part in iterate_object_tree(tree)]
        if len(ids) > self.max_bytes // PART + 16:
            raise UpdateError(
                f"a message of {len(ids):,} parts was sent, and at most {self.max_bytes:,} bytes are read"
            )
        pull: Any = make_pull_object_fn_protobuf(self._client.PullObject, self._node, run)
        confirm: Any = make_confirm_message_received_fn_protobuf(self._client.ConfirmMessageReceived, self._node, run)
        try:
            contents = pull_patiently(ids, pull)
            confirm(tree.object_id)
        except ObjectPullError:
            raise UpdateError("a message was announced whose parts did not come; the server sends it again") from None
        except httpx.HTTPStatusError as error:
            if error.response.status_code not in REFUSED:
                raise
            raise UpdateError(RUN_OVER) from None  # the node itself is known: the message was announced to it
        message = opened(contents, self.max_bytes)
        message.metadata.__dict__["_message_id"] = tree.object_id
        return message, letter_of(message.content, self.max_bytes)

    def reply(self, received: Message, letter: Letter) -> Message:
        """The message that answers another one."""
        made = Message(content_of(letter), reply_to=received)
        made.metadata.__dict__["_message_id"] = made.object_id
        return made

    def send(self, reply: Message) -> None:
        """Answer a message; of an answer of which a part was sent before, only what is missing.

        Raises:
            UpdateError: the server says that it waits for its parts, and does not take them.
            httpx.HTTPError: the server cannot be reached, or no longer waits for it.
        """
        for again in range(TRIES):
            try:
                self._send(reply)
            except ObjectPushError:  # the run was stopped this moment, which the next try hears, or they came too late
                time.sleep(again * PAUSE)
            else:
                return
        raise UpdateError("an answer could not be sent, whose parts the server does not take")

    def _send(self, reply: Message) -> None:
        with no_object_id_recompute():
            tree: ObjectTree = get_object_tree(reply)
            response = self._client.PushMessages(
                PushMessagesRequest(
                    node=self._node,
                    messages_list=[message_to_proto(remove_content_from_message(reply))],
                    message_object_trees=[tree],
                    clientapp_runtime_list=[0.0],
                )
            )
            run, session = reply.metadata.run_id, response.session_id
            push: Any = make_push_object_fn_protobuf(self._client.PushObject, self._node, run, session)
            push_objects(get_all_nested_objects(reply), push, object_ids_to_push=set(response.objects_to_push))

    def close(self) -> None:
        """Leave: others see at once that the node is away."""
        self._stop.set()
        if self._node.node_id:
            with suppress(httpx.HTTPError, ValueError):  # otherwise it is seen by its silence
                self._client.DeactivateNode(DeactivateNodeRequest(node_id=self._node.node_id))
        self._client.close()

    # -- the node's place -----------------------------------------------------------------------------------------

    def _activated(self) -> int:
        request = ActivateNodeRequest(public_key=self._public, heartbeat_interval=HEARTBEAT)
        try:
            return int(self._client.ActivateNode(request).node_id)
        except httpx.HTTPStatusError:
            # The server still holds the process that was here before to be alive: its place is this one's.
            before = self._node_file.read_text("ascii", "replace") if self._node_file.is_file() else ""
            if not before.strip().isdecimal():
                raise
            self._node = Node(node_id=int(before))
            self._beat()
            return int(self._node.node_id)

    def _why(self, error: httpx.HTTPStatusError) -> str:
        """What follows in the sentence that says that the server refuses the node."""
        if self.plain or error.response.status_code not in (*REFUSED, httpx.codes.PRECONDITION_FAILED):
            return f": {_reason(error)}"
        # Flower tells a key that it does not know from nothing else that keeps a node from becoming active.
        key = self._node_file.with_name("node.pub")
        return (
            f" ({_reason(error)}); its key may not be let in yet, which the server's operator does: commonground "
            f"deploy register --folder SERVER_FOLDER {shlex.quote(str(key))}"
        )

    def _beat(self) -> None:
        request = SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=HEARTBEAT)
        self._client.SendNodeHeartbeat(request)

    def _beat_on(self) -> None:
        while not self._stop.wait(0.4 * HEARTBEAT):
            try:
                self._beat()
            except (httpx.HTTPError, ValueError):
                time.sleep(0.2)  # the main loop tells of it


def _reason(error: httpx.HTTPStatusError) -> str:
    """What Flower says of a request that it refused."""
    told = FlowerError.from_json(error.response.text)
    if told is not None:
        return escaped(told.public_details or told.message)
    if error.response.status_code in REFUSED:
        return "its key is not registered there"
    return f"{error.response.status_code} {error.response.reason_phrase}"

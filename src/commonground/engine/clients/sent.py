"""What a method's clients send, whoever wrote the method."""

from __future__ import annotations

from collections.abc import Mapping

from commonground.algorithms import Algorithm, Client, Tensors
from commonground.engine.given_by_hooks import tensors_given, what_is
from commonground.errors import ModelError
from commonground.quoting import quoted

__all__ = ["check_stacked", "sent_by"]


def sent_by(algorithm: Algorithm, client: Client, round: int) -> Tensors:
    """What a client sends after its round.

    Args:
        algorithm: the method.
        client: one client, or several that are stacked.
        round: 1-based.

    Raises:
        ModelError: the method gives no tensors by name, or has changed what it received.
    """
    received = dict(client.received)
    versions = {name: value._version for name, value in received.items()}
    sent: object = algorithm.client_update(client, round)
    for name, value in received.items():
        if value._version != versions[name]:
            raise ModelError(
                f"client_update of {algorithm.title} changes the tensor {quoted(name)} that it received, in place (-=, "
                "add_), and other clients receive the same one; compute a new one, or clone it first"
            )
    if not isinstance(sent, Mapping):
        groups = algorithm.shared[0] if len(algorithm.shared) == 1 else algorithm.shared
        raise ModelError(
            f"client_update of {algorithm.title} gives {what_is(sent)} in place of what a client sends, tensors by "
            f"name; let it end with: return client.send({groups!r})"
        )
    return tensors_given(algorithm, "client_update", sent)


def check_stacked(algorithm: Algorithm, sent: Tensors, clients: int) -> None:
    """Refuse a tensor that is not one of each of several clients.

    Args:
        algorithm: the method.
        sent: by clients that are stacked.
        clients: how many.

    Raises:
        ModelError: names it.
    """
    for name, value in sent.items():
        if value.ndim == 0 or len(value) != clients:
            raise ModelError(
                f"client_update of {algorithm.title} sends the tensor {quoted(name)} of shape {tuple(value.shape)}, "
                f"where {clients} clients train at once and each has its own: the first axis is the clients', as of "
                "all tensors that the client holds (client.received, client.values)"
            )

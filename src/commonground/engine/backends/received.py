"""What a client is sent, looked at before it keeps or computes anything: a server may be broken or lie as well."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from commonground.algorithms import Algorithm, Server, Tensors
from commonground.engine.backends.checks import check_tensor
from commonground.engine.backends.message_kinds import Digest, Evaluate, Reply, Train
from commonground.engine.setup import Setup
from commonground.engine.state.client import ClientStates
from commonground.errors import UpdateError
from commonground.privacy import CLIP
from commonground.quoting import quoted

__all__ = ["check_question", "check_tensors"]


def check_question(setup: Setup, question: Train | Reply | Evaluate | Digest, states: ClientStates) -> None:
    """Refuse a message that does not fit the run, or what the client did in it.

    Args:
        setup: of the client.
        question: the message.
        states: what the client keeps.

    Raises:
        UpdateError: begins with what is wrong of the message.
    """
    config = setup.config
    last = config.rounds + (1 if config.finetune_epochs else 0)  # fine-tuning is one round more
    if question.round > last:
        raise UpdateError(f"it is of round {question.round}, and the run has {last}")
    if isinstance(question, Train) and question.since is not None and not setup.algorithm.clients_remember:
        raise UpdateError(
            f"it leaves out tensors of round {question.since}, which {setup.algorithm.name} does not keep"
        )
    if isinstance(question, Evaluate) and question.which == "global" and not setup.has_global_model:
        raise UpdateError(f"it asks for a global model, which {setup.algorithm.name} does not have")
    if isinstance(question, Evaluate) and not setup.judged(question.which)[1].any():
        raise UpdateError(f"it asks for a test on {setup.judged(question.which)[0]} rows, and the client has none")
    if isinstance(question, Digest) and config.dp is not None:  # a guess of its data could be tried on the answer
        raise UpdateError("it asks for a digest of the client's own tensors, which a run with --dp tells nobody")
    if isinstance(question, Reply) and max(states.rounds(), default=0) != question.round:
        raise UpdateError(f"it replies to round {question.round}, which is not the last one of this client")


def check_tensors(setup: Setup, question: Train | Reply | Evaluate | Digest, sent: Tensors) -> None:
    """Refuse tensors that are not those of a message of this kind: by name, shape, number type and as finite numbers.

    Args:
        setup: of the client.
        question: the message.
        sent: its tensors, together with those that the client still had.

    Raises:
        UpdateError: begins with what is wrong of the message.
    """
    known, complete, closed = setup.initial_shared, True, True
    if isinstance(question, Reply):
        known, complete = setup.initial_personal, False
    elif isinstance(question, Digest):
        known = {}
    elif isinstance(question, Train):
        # What this method sends to single clients; its shapes depend neither on the client nor on how many there are.
        alone = _sent_alone(setup, question.round)
        known = {**known, **alone}
        closed = bool(alone) or type(setup.algorithm).message_to is Algorithm.message_to
    for name in known if complete else ():
        if name not in sent:
            raise UpdateError(f"it lacks the tensor '{name}'")
    for name, value in sent.items():
        if name in known:
            check_tensor("it", name, value, known[name])
        elif closed:
            raise UpdateError(f"it holds the tensor {quoted(name)}, which is not sent with '{question.kind}'")
    _check_finite(sent)
    if CLIP in sent and not bool(sent[CLIP] > 0):
        raise UpdateError(f"it has a clip norm of {float(sent[CLIP]):g}, which is not positive")


def _sent_alone(setup: Setup, round: int) -> Tensors:
    """What the method sends to single clients, as far as it can be told without the server's memory."""
    server = Server(dict(setup.initial_shared), round=round, clients=2)
    try:
        return setup.algorithm.message_to(server, 0)
    except Exception:  # of a user's code, which may need what the server alone remembers
        return {}


def _check_finite(sent: Mapping[str, torch.Tensor]) -> None:
    for name, value in sent.items():
        if not bool(torch.isfinite(value).all()):
            raise UpdateError(f"it has a value in {quoted(name)} that is not finite")

"""Whether a user's own method can compute clients together: two of them do, and each alone.

What is written for one client and looks at a whole tensor (``v.square().sum()``, ``float(x.mean())``) sees that of all
clients where they are stacked. It does not fail, and gives numbers of nobody.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from torch import Tensor

from commonground.algorithms import Algorithm, Tensors
from commonground.engine.backends.batched import BatchedEngine
from commonground.engine.backends.client_result import ClientResult
from commonground.engine.backends.serial import SerialEngine
from commonground.engine.held_parts import has_parts
from commonground.engine.setup import Setup
from commonground.quoting import escaped, quoted
from commonground.registration import is_ours

__all__ = ["cannot_be_stacked", "without_advice"]

_TOLERANCE = 0.05  # of the size of what a client changes: a round of training makes far more of rounding than one step
_ROUNDING = 1e-4  # of the size of what it sends


def cannot_be_stacked(setup: Setup, *, only_wrong: bool = False) -> str:
    """Why a user's own method cannot compute clients together; empty if it can, and for the methods of this library.

    Args:
        setup: of the run.
        only_wrong: whether nothing is said of one that fails, as it will say itself.
    """
    method = setup.algorithm
    if is_ours(type(method)) or type(method).message_to is not Algorithm.message_to or has_parts(method):
        return ""
    clients = sorted(np.argsort(setup.data.train_sizes, kind="stable")[:2].tolist())  # whose round is short
    not_together = f"clients are not computed together, since {method.title}'s client_update"
    try:
        together = BatchedEngine(setup).train(1, clients, setup.initial_shared)
    except Exception as error:  # whatever it is: one client after the other it may be right, or says so itself
        return "" if only_wrong else f"{not_together} fails so: {escaped(without_advice(error), 500)}"
    try:
        alone = SerialEngine(setup).train(1, clients, setup.initial_shared)
    except Exception:  # which the run itself will say, if it comes so far
        return ""
    if (name := next(_apart(setup.initial_shared, together, alone), None)) is None:
        return ""
    return (
        f"{not_together} gives other numbers for two clients at once than for each alone ({quoted(name)}): numbers of "
        "one client's tensors are client.dot's, which are multiplied by client.scale"
    )


def without_advice(error: Exception) -> str:
    """What an error says, as far as its first semicolon: what may be done about it stands behind that."""
    return str(error).partition(";")[0]


def _apart(received: Tensors, together: list[ClientResult], alone: list[ClientResult]) -> Iterator[str]:
    """The tensors in which the clients' results differ by more than rounding."""
    for one, other in zip(together, alone, strict=True):
        for mine, others in ((one.update.tensors, other.update.tensors), (one.personal or {}, other.personal or {})):
            for name in (name for name in mine if name in others):
                if _differ(mine[name], others[name], received.get(name)):
                    yield name


def _differ(one: Tensor, other: Tensor, before: Tensor | None) -> bool:
    if one.shape != other.shape:
        return True
    a, b = one.detach().cpu().double(), other.detach().cpu().double()
    if not (a.isfinite().all() and b.isfinite().all()):
        return bool((a.isfinite() != b.isfinite()).any())  # training that leaves the finite numbers says so itself
    change = b if before is None or before.shape != b.shape else b - before.cpu().double()
    return bool((a - b).norm() > _TOLERANCE * change.norm() + _ROUNDING * b.norm())

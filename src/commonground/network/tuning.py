"""Tuning every client's head after the last round (``--finetune-epochs``): a run of one round beside the first."""

from __future__ import annotations

import base64
import hashlib
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from commonground.engine.backends.checks import check_tensor
from commonground.engine.backends.serialization import pack, unpack
from commonground.engine.setup import Setup
from commonground.errors import UpdateError
from commonground.quoting import quoted

__all__ = ["HeadTuningStart", "tuning_of", "tuning_run", "tuning_setup"]


class HeadTuningStart(BaseModel):
    """What a client has to know before it tunes; the body comes with the round.

    Attributes:
        run: the one before.
        head: the global model's after it, as a message in base64.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    run: Annotated[str, Field(pattern=r"\A[0-9a-f]{32}\z")]
    head: str


def tuning_run(run: str) -> str:
    """The id of the run that tunes another's heads."""
    return hashlib.sha256(f"{run} heads".encode()).hexdigest()[:32]


def tuning_of(run: str, setup: Setup) -> HeadTuningStart:
    """What clients are told.

    Args:
        run: the one before.
        setup: of the tuning.
    """
    head = {name: value for name, value in setup.initial.items() if name not in setup.shared_names}
    return HeadTuningStart(run=run, head=base64.b64encode(pack({}, head)).decode())


def tuning_setup(setup: Setup, tuning: HeadTuningStart) -> Setup:
    """A client's setup of the tuning.

    Args:
        setup: of the run before it.
        tuning: what the server says of it.

    Raises:
        UpdateError: there is nothing to tune in this run, or these are not its heads.
    """
    if not setup.config.finetune_epochs:
        raise UpdateError("the server asks for heads to be tuned, which is no part of this run")
    try:
        head = unpack(base64.b64decode(tuning.head, validate=True))[1]
    except ValueError:
        raise UpdateError("the heads that are to be tuned cannot be read") from None
    tuned = setup.fine_tuning(setup.initial)
    known = {name: value for name, value in tuned.initial.items() if name not in tuned.shared_names}
    if set(head) != set(known):
        raise UpdateError(f"the heads that are to be tuned are {quoted(', '.join(head))}, not {', '.join(known)}")
    for name, value in head.items():
        check_tensor("a head that is to be tuned", name, value, known[name])
        if not bool(value.isfinite().all()):
            raise UpdateError(f"a head that is to be tuned has a value in {quoted(name)} that is not finite")
    return setup.fine_tuning({**setup.initial, **head})

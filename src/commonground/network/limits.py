"""What a server bears: how long it waits, for how many, and how large a message or an update may be."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from commonground.algorithms import Tensors
from commonground.config import RunConfig
from commonground.engine.backends.checks import who
from commonground.engine.backends.client_result import ClientResult
from commonground.engine.setup import Setup
from commonground.errors import ConfigError, UpdateError

__all__ = ["FIRST_WAIT", "LARGEST", "LONGEST_WAIT", "PART", "PATIENCE", "Limits"]

PART = 1 << 20
"""Bytes of a part in which what is long is sent."""

LARGEST = 1 << 30
"""Bytes of a message, where nobody has said otherwise."""

FIRST_WAIT, LONGEST_WAIT = 0.02, 1.0
"""Seconds between tries for a part that is announced and on its way; Flower's own are 1 and 10, felt in most rounds."""

PATIENCE = 30.0
"""Seconds without a part of a message that was announced, after which the rest counts as lost with whoever sent it."""

Seconds = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]


class Limits(BaseModel):
    """Of a run over a network.

    Attributes:
        seconds: how long an answer may take before the client's round does not count.
        absence: how long one that is away is waited for before its round does not count.
        min_answers: rounds with fewer are repeated.
        patience: seconds for which such a round is repeated before the run ends, to be continued.
        pause: seconds between two tries.
        max_bytes: of a client's message; in a deployment always what its server was started with.
        max_norm: the largest ‖u − x‖ of an update u of the tensors x that were sent; none by default.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    seconds: Seconds = 600.0
    absence: Seconds = 60.0
    min_answers: Annotated[int, Field(ge=1)] = 1
    patience: Seconds = 600.0
    pause: Seconds = 1.0
    max_bytes: Annotated[int, Field(ge=1 << 16)] = LARGEST
    max_norm: Annotated[float, Field(gt=0)] | None = None

    def check(self, config: RunConfig) -> None:
        """Refuse limits that do not go with a run's settings.

        Raises:
            ConfigError: says which and why.
        """
        if self.max_norm is not None and config.dp == "client" and config.dp_where != "client":
            raise ConfigError(
                "--max-update-norm refuses updates by their length, so that a client's data would decide whether it "
                "counts, which --dp client hides; leave it out: --dp-clip bounds every update already"
            )

    def check_update(self, setup: Setup, result: ClientResult, round: int, shared: Tensors) -> None:
        """Refuse an update that is longer than allowed.

        Args:
            setup: of the run.
            result: a client's round.
            round: which.
            shared: what the clients were sent in it; of a tensor that is not among it, zero counts as sent.

        Raises:
            UpdateError: says how long it is.
        """
        if self.max_norm is None:
            return
        changes = [v.double() - (shared[n].double() if n in shared else 0) for n, v in result.update.tensors.items()]
        norm = math.sqrt(sum(float(change.square().sum()) for change in changes))
        if norm > self.max_norm:
            raise UpdateError(
                f"the update of {who(setup, result.update.client, round)} is {norm:.3g} long, and --max-update-norm is "
                f"{self.max_norm:g}"
            )

"""Which run of a deployment has a folder: it is locked from before its clients are gathered until the run is over."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from commonground.engine.state.files import write_atomically
from commonground.engine.state.lock import locked
from commonground.errors import BusyError

__all__ = ["HOLDER", "Holder"]

HOLDER = "network-job.json"
"""The file of a run's folder that says who has it, or had it last."""


class Holder(BaseModel):
    """A run of a deployment.

    Attributes:
        run: Flower's number of it.
        server: the folder of its server.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    run: int
    server: Path

    @classmethod
    def of(cls, out: Path) -> Holder | None:
        """Who has a folder, or had it last; None if nobody has said so."""
        with suppress(OSError, ValidationError):
            return cls.model_validate_json((out / HOLDER).read_bytes())
        return None

    @contextmanager
    def holding(self, out: Path, wait: float) -> Iterator[None]:
        """Keep other runs from a folder meanwhile.

        Args:
            out: the folder.
            wait: seconds for which another one that has it is waited for.

        Raises:
            BusyError: another one has it.
            RunError: the path cannot become a folder.
        """
        with named(out), locked(out, wait=wait):
            write_atomically(out / HOLDER, self.model_dump_json().encode())
            yield

    def busy(self, out: Path) -> BusyError:
        """What is said to others who want the folder."""
        return BusyError(
            f"the run {self.run} has '{out}', and waits for its clients or trains: `commonground deploy stop "
            f"{self.run} --folder {shlex.quote(str(self.server))}` ends it, or choose another --out"
        )


@contextmanager
def named(out: Path) -> Iterator[None]:
    """Say which run it is that has a folder."""
    try:
        yield
    except BusyError:
        holder = Holder.of(out)
        if holder is None:
            raise
        raise holder.busy(out) from None

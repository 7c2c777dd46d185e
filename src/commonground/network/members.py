"""Who takes part in a run over a network, as its folder says."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from commonground.data.described import Description
from commonground.data.tables.told import Agreed
from commonground.errors import RunError

__all__ = ["MEMBERS", "Members"]

MEMBERS = "network.json"
"""The file of a run's folder that says who takes part."""


class Members(BaseModel):
    """Who takes part in a run, in the clients' order.

    Attributes:
        run: its id.
        nodes: of the clients.
        descriptions: of their data.
        table: what the columns of their tables become, if they have agreed on that.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    run: str
    nodes: tuple[int, ...]
    descriptions: tuple[Description, ...]
    table: Agreed | None = None

    @classmethod
    def read(cls, path: Path) -> Members:
        """From a file.

        Raises:
            RunError: it cannot be read.
        """
        try:
            return cls.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            raise RunError(f"'{path}', which says who takes part in the run, cannot be read: {error}") from None

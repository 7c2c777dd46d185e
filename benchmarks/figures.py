"""What stands in every file of figures, and its writing."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

import torch

from commonground.engine.backends.processes import default_workers

__all__ = ["of_this_machine", "write"]


def of_this_machine(command: str) -> dict[str, Any]:
    """The command that makes the figures anew, without places of this machine; the machine and PyTorch's version."""
    return {
        "command": command,
        "machine": f"{platform.machine()}, {default_workers()} cores",
        "torch": torch.__version__,
    }


def write(figures: dict[str, Any], out: Path | None) -> None:
    """Figures as JSON; None writes nothing."""
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(figures, indent=1) + "\n", "utf-8")

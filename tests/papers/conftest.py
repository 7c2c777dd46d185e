"""What tests of the papers' tables share."""

from __future__ import annotations

from pathlib import Path

import pytest

from commonground.papers.tables.judge import run_table
from tests.papers.small_table import TABLE, request


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds of FedRep and FedAvg."""
    folder = tmp_path_factory.mktemp("filled")
    run_table(TABLE, request(folder, methods=("fedrep", "fedavg"), seeds=2))
    return folder

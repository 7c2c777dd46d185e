"""A run on a table of shops, and its service."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import pytest

import commonground as cg
from commonground.cli import main
from tests.serve.shops import SHOPS, rows

if TYPE_CHECKING:
    from fastapi.testclient import TestClient

    from commonground.serve import Tokens


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("serve")
    table = pd.DataFrame([{"shop": name, **row} for i, name in enumerate(SHOPS) for row in rows(i, 80)])
    table.to_csv(folder / "shops.csv", index=False)
    columns = ["--client-column", "shop", "--target", "label", "--rounds", "8", "--quiet"]
    assert main(["train", "fedrep", "--data", str(folder / "shops.csv"), *columns, "--out", str(folder / "run")]) == 0
    return folder / "run"


@pytest.fixture(scope="module")
def service(run_dir: Path) -> tuple[TestClient, Tokens]:
    from fastapi.testclient import TestClient

    from commonground.serve import RunModels, Tokens, make_app

    tokens = Tokens(run_dir)
    return TestClient(make_app(RunModels(cg.load_run(run_dir)), tokens), raise_server_exceptions=False), tokens

"""Every fault of a user's module is one sentence, and in Python the original is chained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from commonground import train
from commonground.errors import ModelError
from commonground.models import build_model
from tests.campaign.models import REFUSED, campaign, run_command, try_fault, try_refused, write_net
from tests.helpers import made_data, seeded


@pytest.mark.parametrize(
    "name", ["KeyError", "RecursionError", "RuntimeError", "SystemExit", "GeneratorExit", "Warning"]
)
def test_faults_name_file_and_line(name: str, tmp_path: Path) -> None:
    assert try_fault(tmp_path, name, "before", "", "serial") is None


@pytest.mark.parametrize("engine", ["serial", "processes"])
def test_faults_that_come_late_name_the_client(engine: str, tmp_path: Path) -> None:
    late = "if self.training and self.calls > 4: "
    assert try_fault(tmp_path, "SystemExit", "after", late, engine) is None
    file = write_net(tmp_path, after=f"{late}raise KeyboardInterrupt")
    ended = run_command(tmp_path, "fedrep", "--model", f"{file}:Net", "--engine", engine)
    assert (ended.code, len(ended.lines)) == (130, 1)


@pytest.mark.parametrize("name", REFUSED)
def test_modules_that_no_run_can_use(name: str, tmp_path: Path) -> None:
    assert try_refused(tmp_path, name, "serial") is None


def test_a_short_campaign() -> None:
    tally = campaign(seed=1, count=4, minutes=0.1)
    assert tally.findings == ()
    assert tally.held == tally.tried


@pytest.mark.parametrize("text", ["import sys; sys.exit(4)", "def broken(:", "{}['k']", "1 / 0", "import no_such"])
def test_files_that_fail_while_they_are_loaded(text: str, tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text(f"import os\n{text}\n")
    ended = run_command(tmp_path, "fedavg", "--model", f"{file}:Net")
    assert ended.sentence
    assert "net.py, line 2" in ended.lines[0]


class Failing(nn.Module):
    """Fails in training, after a few calls."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.calls = nn.Linear(4, 3), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.training and self.calls > 2:
            raise LookupError("nothing here")
        return self.head(x)


@pytest.mark.parametrize("engine", ["serial", "processes", "messages"])
def test_the_original_is_chained(engine: str) -> None:
    with pytest.raises(ModelError, match=r"in round 1 failed: LookupError in .*test_models") as caught:
        train("fedavg", made_data(), model=seeded(Failing), engine=engine, rounds=1, batch_size=2, head="head")
    cause = caught.value.__cause__
    assert isinstance(cause, LookupError)
    assert cause.args == ("nothing here",)


def test_a_function_of_a_file_makes_a_model(tmp_path: Path) -> None:
    file = tmp_path / "nets.py"
    file.write_text(
        "from torch import nn\n"
        "def net(shape, classes, width=5):\n    "
        "return nn.Sequential(nn.Linear(*shape, width), nn.Linear(width, classes))\n"
        "def number(shape, classes):\n    return 3\n"
    )
    one, other = (build_model(f"{file}:net", (4,), 3, seed=1, options={"width": 7}) for _ in range(2))
    for mine, theirs in zip(one.parameters(), other.parameters(), strict=True):
        np.testing.assert_array_equal(mine.detach().numpy(), theirs.detach().numpy())
    assert one(torch.zeros(2, 4)).shape == (2, 3)
    with pytest.raises(ModelError, match=r"must make an nn.Module, and gave int"):
        build_model(f"{file}:number", (4,), 3)


def test_a_single_sample_is_blamed_on_batch_norm_alone() -> None:
    class Choosy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            if len(x) == 1:
                raise ValueError("no single row")
            return self.head(x)

    settings: dict[str, Any] = {"model": seeded(Choosy), "engine": "serial", "rounds": 1, "batch_size": 4}
    with pytest.raises(ModelError, match=r"ValueError in .*: no single row"):
        train("fedavg", made_data(), head="head", **settings)

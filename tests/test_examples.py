"""The examples are short, and run as they stand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"

# All in one process, so that PyTorch is loaded once.
PROGRAM = """
import contextlib, io, json, runpy, sys
printed = {}
for file in sys.argv[1:]:
    sys.argv, said = [file], io.StringIO()
    with contextlib.redirect_stdout(said):
        runpy.run_path(file, run_name="__main__")
    printed[file.rpartition("/")[2]] = said.getvalue()
print(json.dumps(printed))
"""


@pytest.fixture(scope="module")
def printed() -> dict[str, str]:
    """What each example prints."""
    files = [
        file for file in sorted(EXAMPLES.glob("*.py")) if file.name != "lora_silos.py" or find_spec("transformers")
    ]
    command = [sys.executable, "-c", PROGRAM, *map(str, files)]
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.py")), ids=lambda file: str(file.stem))
def test_an_example_is_short(file: Path) -> None:
    assert len(file.read_text("utf-8").splitlines()) < 60


def test_a_table_becomes_personal_models(printed: dict[str, str]) -> None:
    """FedRep, whose clients share what is the same for all, is ahead of both others."""
    lines = printed["own_table.py"].splitlines()
    shares = {line.split(":")[0].strip(): float(line.split()[1].rstrip("%")) for line in lines[1:4]}
    assert shares["fedrep"] > shares["local"] + 5 > shares["fedavg"] + 5
    assert lines[4].startswith("customer-0: {'no': ")


def test_a_new_algorithm_stands_beside_others(printed: dict[str, str]) -> None:
    rows = [line.rsplit(maxsplit=5) for line in printed["new_algorithm.py"].splitlines()[1:]]
    accuracy = {row[0].strip(): float(row[1]) for row in rows}
    assert list(accuracy) == ["WarmHead", "FedRep", "FedPer", "Local Only"]
    assert accuracy["WarmHead"] > accuracy["FedPer"]


def test_three_silos_share_factors(printed: dict[str, str]) -> None:
    if "lora_silos.py" not in printed:
        pytest.skip("transformers is not installed")
    *silos, sent, adapter = printed["lora_silos.py"].splitlines()
    assert [line.split(":")[0].strip() for line in silos] == ["cinema", "restaurant", "theatre"]
    assert all(int(line.split()[1].rstrip("%")) > 80 for line in silos)
    assert sent.startswith("sent by the silos: ")
    assert "adapter_model.safetensors" in adapter

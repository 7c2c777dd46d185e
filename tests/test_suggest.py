"""What may have been meant by a name that is none, everywhere a name is given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from commonground import train
from commonground.algorithms import make_algorithm
from commonground.cli import main
from commonground.errors import ConfigError
from commonground.suggest import meant, nearest


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("fedrpe", "fedrep"),
        ("FedRep", "fedrep"),
        ("lg_fedavg", "lg-fedavg"),
        ("body_epochs", "body_epochs"),
        ("body-epoch", "body_epochs"),
        ("something else", None),
        ("depth", None),
        ("", None),
    ],
)
def test_the_nearest(name: str, near: str | None) -> None:
    known = ["fedrep", "fedavg", "lg-fedavg", "body_epochs", "width"]
    assert nearest(name, known) == near
    assert meant(name, known) == ("" if near is None else f" (did you mean '{near}'?)")


@pytest.mark.parametrize(
    ("command", "near"),
    [
        ("trian fedrep", "train"),
        ("train fedrpe", "fedrep"),
        ("train FedProx2", "fedprox"),
        ("train fedrep --round 3", "--rounds"),
        ("train fedrep --set head_epoch=3", "head_epochs"),
        ("train fedrep --set model.hiden=3", "hidden"),
        ("train fedrep --model mpl", "mlp"),
        ("train fedrep --data digist", "digits"),
        ("train fedrep --partition dirchlet:0.3", "dirichlet"),
        ("train fedrep --batch-norm averagd", "averaged"),
        ("train fedrep --device cdua", "cuda"),
        ("compare fedrep:head_epoch=3 fedavg", "head_epochs"),
        ("compare fedrep:batchsize=3 fedavg", "batch_size"),
        ("compare fedrap fedavg", "fedrep"),
        ("compare fedrep fedavg --grid head_epoch=1,2", "head_epochs"),
        ("compare fedrep fedavg --reference fedrap", "fedrep"),
        ("reproduce fedrep-tabel1", "fedrep-table1"),
        ("list algoritms", "algorithms"),
        ("list fedrpe", "fedrep"),
        ("list models mpl", "mlp"),
    ],
)
def test_on_the_command_line(command: str, near: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = [] if command.startswith(("list", "trian")) else ["--out", str(tmp_path / "out")]
    assert main([*command.split(), *out]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("commonground: ")
    assert "id you mean" in said
    assert f"'{near}'" in said.partition("id you mean")[2].partition("?")[0]


def test_in_a_configuration_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("roundss = 3\n")
    assert main(["train", "fedrep", "--config", str(file)]) == 2
    assert "did you mean 'rounds'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"round": 3}, r"unknown setting 'round' \(did you mean 'rounds'\?\)"),
        ({"options": {"heads": 3}}, r"no setting 'heads' \(did you mean 'head_epochs'\?\); it has head_epochs, body"),
    ],
)
def test_in_python(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        train("fedrep", "digits", **settings)


def test_nothing_is_suggested_where_nothing_is_near() -> None:
    with pytest.raises(ConfigError, match="unknown algorithm 'xyz'; known are apfl"):
        make_algorithm("xyz", {})

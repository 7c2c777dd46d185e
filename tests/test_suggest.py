"""What may have been meant by a name that is none, everywhere a name is given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

from commonground import train
from commonground.algorithms import make_algorithm
from commonground.cli import cli, main
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
        ("train fedrep --aggregate medain", "median"),
        ("train fedrep --rank-by accurcy", "accuracy"),
        ("train fedrep --device cdua", "cuda"),
        ("train fedrep --engine ray --ray-address atuo", "auto"),
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


# -- every choice of every command ------------------------------------------------------------------------------------

CHOICES = [
    (name, parameter)
    for name, command in cli.commands.items()
    for parameter in command.params
    if isinstance(parameter.type, click.Choice)
]


@pytest.mark.parametrize(("name", "parameter"), CHOICES, ids=[f"{name} {p.name}" for name, p in CHOICES])
def test_every_choice_answers_a_typo(
    name: str, parameter: click.Parameter, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert isinstance(parameter.type, click.Choice)
    meant = max(map(str, parameter.type.choices), key=len)
    typo = f"{meant}{meant[-1]}"
    arguments = [each for each in cli.commands[name].params if isinstance(each, click.Argument)]
    given = [typo] if parameter in arguments else [*(str(tmp_path) for _ in arguments), parameter.opts[0], typo]
    assert main([name, *given]) == 2
    assert f"(did you mean '{meant}'?)" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["train", "compare"])
def test_settings_with_names_as_their_values_are_choices_or_tried_here(name: str) -> None:
    """A new setting whose description lists words is either a choice of click's or has a case below."""
    tried = {"partition", "device", "task", "scaling", "separator", "encoding", "kinds", "class_weights", "lr_schedule",
             "model", "data", "target", "client_column", "drop", "split_column", "time_column", "group_column",
             "text_column", "head", "body", "loss", "aggregate", "rank_by", "ray_address"}  # fmt: skip
    free = {str(p.name) for p in cli.commands[name].params if p.type is click.STRING and isinstance(p, click.Option)}
    free -= {"assignments", "grids", "reference"}  # in the cases above
    free -= {"data_dir", "init_from", "betas", "image_size", "metric"}  # folders, numbers, a function in a file
    assert free <= tried, f"{free - tried}: add a case of a typo, or say here why there is none"


# -- names of a run, of its clients and of a table's columns ----------------------------------------------------------


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table t.csv and a run on it."""
    folder = tmp_path_factory.mktemp("there")
    assert main(["example", str(folder / "t.csv"), "--rows", "300", "--customers", "5"]) == 0
    how = ["--data", str(folder / "t.csv"), "--client-column", "customer", "--target", "renewed", "--rounds", "1"]
    assert main(["train", "fedavg", *how, "--quiet", "--out", str(folder / "run")]) == 0
    return folder


TABLE = "train fedavg --out x --data t.csv --client-column customer --target renewed"


@pytest.mark.parametrize(
    ("command", "near"),
    [
        (f"{TABLE} --client-column custmer", "customer"),
        (f"{TABLE} --target renewd", "renewed"),
        (f"{TABLE} --drop plann", "plan"),
        (f"{TABLE} --split-column plann", "plan"),
        (f"{TABLE} --time-column strat", "start"),
        (f"{TABLE} --group-column chanel", "channel"),
        (f"{TABLE} --kinds plann=category", "plan"),
        (f"{TABLE} --kinds plan=categry", "category"),
        (f"{TABLE} --scaling cleint", "client"),
        (f"{TABLE} --scaling bounds:prise=0:1", "price"),
        (f"{TABLE} --separator semicoln", "semicolon"),
        (f"{TABLE} --encoding latn-1", "latin-1"),
        (f"{TABLE} --class-weights balancd", "balanced"),
        (f"{TABLE} --task clasification", "classification"),
        ("train fedavg --out x --lr-schedule constnat", "constant"),
        ("train fedavg --out x --task clasification", "classification"),
        ("train fedavg --out x --head haed", "head"),
        ("train fedavg --out x --body fc1.wieght", "fc1.weight"),
        ("adapt run --shots 1 --data digist", "digits"),
        ("adapt run --shots 1 --data digits --partition dirchlet:1", "dirichlet"),
        ("adapt run --shots 1 --data t.csv --client-column custmer", "customer"),
        ("adapt run --shot 1", "--shots"),
        ("predict run t.csv --client company001", "company 001"),
        ("predict run t.csv --seperator ;", "--separator"),
        ("export run --out e --client company001", "company 001"),
        ("serve run --token-for company001", "company 001"),
        ("serve run --revoke company001", "company 001"),
        ("inspect t.csv --client-column custmer", "customer"),
        ("inspect t.csv --target renewd", "renewed"),
        ("reproduce flute-fig3 --out x --set feedrep_steps=3", "fedrep_steps"),
        ("reproduce flute-fig3 --out x --device cdua", "cuda"),
        ("reproduce fedrep-table1 --out x --methods fedrap", "fedrep"),
        ("reproduce fedrep-table1 --out x --variants augmnt", "augment"),
        ("list data digist", "digits"),
        ("list experiments fedrep-tabel1", "fedrep-table1"),
        ("example f.csv --row 3", "--rows"),
        ("demo --seed 3", "--seeds"),
    ],
)
def test_on_what_is_there(
    command: str, near: str, there: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(there)
    assert main(command.split(" ")) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert f"'{near}'" in said.partition("id you mean")[2].partition("?")[0], said


def test_in_a_configuration_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("roundss = 3\n")
    assert main(["train", "fedrep", "--config", str(file)]) == 2
    assert "did you mean 'rounds'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"round": 3}, r"unknown setting 'round' \(did you mean 'rounds'\?\)$"),
        ({"head": ["fc2.*"]}, r"'head' is \['fc2.\*'\]: input should be a valid string, several in one with commas: "),
        ({"cookies": 3}, r"unknown setting 'cookies'; known are algorithm, options, data, clients, "),
        ({"options": {"heads": 3}}, r"no setting 'heads' \(did you mean 'head_epochs'\?\); it has head_epochs, body"),
    ],
)
def test_in_python(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        train("fedrep", "digits", **settings)


def test_nothing_is_suggested_where_nothing_is_near() -> None:
    with pytest.raises(ConfigError, match="unknown algorithm 'xyz'; known are apfl"):
        make_algorithm("xyz", {})

"""What Tab completes: every name there is, without loading PyTorch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any, get_args

import click
import pytest
from click.shell_completion import CompletionItem, ShellComplete

from commonground.algorithms import registry, yardsticks
from commonground.catalogue import data_names, experiment_names
from commonground.cli import cli, main
from commonground.cli.completion import VARIABLE, declared_algorithms, declared_models
from commonground.config import RunConfig
from commonground.data import available_sources
from commonground.data.augment import Augment
from commonground.explained import settings_of
from commonground.models import available_models, model_options_class
from commonground.papers import experiments

# With PyTorch come some 2,000 modules.
HEAVY = ("torch", "numpy", "pandas", "sklearn", "matplotlib", "commonground.engine", "commonground.data")

PROGRAM = """
import json, sys
sys.argv = ["commonground"]
import commonground.cli
code = commonground.cli.main()
print(json.dumps([code, len(sys.modules), [name for name in HEAVY if name in sys.modules]]), file=sys.stderr)
""".replace("HEAVY", repr(HEAVY))


def completed(line: str) -> list[str]:
    """What Tab offers at the end of a command line."""
    *words, begun = line.split(" ")
    items: list[CompletionItem] = ShellComplete(cli, {}, "commonground", VARIABLE).get_completions(words, begun)
    return [item.value if item.type == "plain" else f"<{item.type}>" for item in items]


# -- the names --------------------------------------------------------------------------------------------------------


def test_names_are_read_as_they_are_declared() -> None:
    """A new method, model, data set or experiment is completed by itself."""
    # Methods that other tests have defined in this process are known by name as well.
    methods = {name: cls for name, cls in (registry | yardsticks).items() if cls.__module__.startswith("commonground.")}
    assert declared_algorithms() == {name: tuple(cls.options()) for name, cls in methods.items()}
    assert set(experiment_names()) == set(experiments)
    assert data_names() == tuple(info.name for info in available_sources())
    models = {"hf:" if name.startswith("hf:") else name: name for name in available_models()}
    assert declared_models().keys() == models.keys()
    for name, options in declared_models().items():
        assert list(options) == [setting.name for setting in settings_of(*model_options_class(models[name]))]


def test_the_configuration_has_all_augmentations() -> None:
    """It writes them out, so as not to import what imports PyTorch."""
    assert get_args(RunConfig.model_fields["augment"].annotation) == get_args(Augment)


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("tra", ["train"]),
        ("train fedr", ["fedrep", "fedrep-star", "fedrod"]),
        ("train my.py", ["<file>"]),
        ("train fedrep --rou", ["--rounds"]),
        ("train fedrep --optimizer a", ["adam", "adamw"]),
        ("train fedrep --track ", ["tensorboard", "mlflow", "wandb"]),
        ("train fedrep --data emn", ["emnist-letters"]),
        ("train fedrep --model l", ["linear", "lstm", "low-rank"]),
        ("train fedrep --set ", ["head_epochs=", "body_epochs=", "model.rank="]),
        ("train fedrep --model mlp --set model.", ["model.hidden=", "model.norm=", "model.softmax="]),
        ("train moon --set t", ["temperature="]),
        ("compare fedrep fedavg --grid head", ["head_epochs="]),
        ("compare fedrep fedav", ["fedavg"]),
        ("reproduce flute-t", ["flute-table1", "flute-theorem5.5"]),
        ("list m", ["models", "mnist", "mlp", "mnli", "moon"]),
        ("list models ls", ["lstm"]),
        ("completion ", ["bash", "zsh", "fish"]),
    ],
)
def test_what_is_offered(line: str, offered: list[str]) -> None:
    found = completed(line)
    assert set(offered) <= set(found)
    if not line.endswith(" ") and "<file>" not in offered:
        begun = line.split(" ")[-1]
        assert all(each.startswith(begun) for each in found)
    if line.startswith(("train moon", "train fedrep --model", "compare", "reproduce", "list models")):
        assert found == offered


def test_every_choice_of_every_command_is_offered() -> None:
    for name, command in cli.commands.items():
        for option in command.params:
            if isinstance(option, click.Option) and isinstance(option.type, click.Choice):
                assert completed(f"{name} {option.opts[0]} ") == [str(choice) for choice in option.type.choices]


# -- in a shell -------------------------------------------------------------------------------------------------------


def ask(**environment: str) -> tuple[list[str], Any]:
    """What the command prints for a shell, and what it has loaded for that."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, env={**os.environ, **environment}
    )
    return done.stdout.splitlines(), json.loads(done.stderr.splitlines()[-1])


@pytest.mark.parametrize(
    ("shell", "line"),
    [("bash", "plain,fedrep"), ("zsh", "fedrep"), ("fish", "plain,fedrep")],
)
def test_a_shell_is_answered_without_pytorch(shell: str, line: str) -> None:
    words = {"COMP_WORDS": "commonground train fedre", "COMP_CWORD": "fedre" if shell == "fish" else "2"}
    printed, (code, modules, heavy) = ask(**{VARIABLE: f"{shell}_complete"}, **words)
    assert code == 0
    assert line in [each.split("\t")[0] for each in printed]
    assert heavy == []
    assert modules < 700


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_lines_for_a_shell(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    printed = capsys.readouterr().out
    assert f"{VARIABLE}={shell}_complete" in printed
    if shell == "bash":
        assert subprocess.run(["bash", "-n"], input=printed, text=True, check=False).returncode == 0


def test_another_shell(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bsh"]) == 2
    assert "did you mean 'bash'?" in capsys.readouterr().err

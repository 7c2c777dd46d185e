"""``commonground completion``, so that Tab completes names and options; the names, without loading PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache

import click
from click.shell_completion import CompletionItem, get_completion_class

from commonground.catalogue import PRETRAINED, data_names, experiment_names, methods, model_arguments, models
from commonground.cli.parameters import NameChoice

__all__ = [
    "VARIABLE",
    "complete_algorithm",
    "complete_data",
    "complete_experiment",
    "complete_listed",
    "complete_model",
    "complete_setting",
    "completion",
    "declared_algorithms",
    "declared_models",
]

VARIABLE = "_COMMONGROUND_COMPLETE"
"""Of the environment: that a shell asks for completions, as click names it."""


# -- names, as they are declared --------------------------------------------------------------------------------------


@cache
def declared_algorithms() -> dict[str, tuple[str, ...]]:
    """Methods by name, each with its settings, those of classes it derives from first."""
    return {name: cls.field_names() for name, cls in methods().items()}


@cache
def declared_models() -> dict[str, tuple[str, ...]]:
    """Models by name, each with its options; ``hf:`` are all pretrained ones."""
    return {name: cls.argument_names(skip=model_arguments(name)) for name, cls in models().items()}


# -- what click asks --------------------------------------------------------------------------------------------------


def complete_algorithm(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """Methods; or a file of one's own (``file.py:Class``)."""
    return _matching(declared_algorithms(), begun) or _file(begun)


def complete_data(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """Data sets, or a file."""
    return _matching(data_names(), begun) or _file(begun)


def complete_model(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """Models, or a file of one's own."""
    return _matching(declared_models(), begun) or _file(begun)


def complete_experiment(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """The papers' experiments."""
    return _matching(experiment_names(), begun)


def complete_setting(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """``KEY=`` of the methods that are named before it, and ``model.KEY=`` of the model; of all of them if none is."""
    # Behind an option that has no value yet click has not sorted the words before it.
    given = [*(context.params.get("methods") or ()), context.params.get("algorithm"), *context.args]
    names = [str(method).partition(":")[0].removesuffix("+ft") for method in given if method]
    algorithms, networks = declared_algorithms(), declared_models()
    of_methods = [algorithms[name] for name in names if name in algorithms] if names else algorithms.values()
    model = str(context.params.get("model"))
    model = PRETRAINED if model.startswith(PRETRAINED) else model
    of_models = [networks[model]] if model in networks else networks.values()
    keys = [key for keys in of_methods for key in keys] + [f"model.{key}" for keys in of_models for key in keys]
    return _matching([f"{key}=" for key in dict.fromkeys(keys)], begun)


def complete_listed(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """What ``commonground list`` takes: a kind, a name of this kind, or any name at all."""
    kinds: dict[str, Callable[[], Iterable[str]]] = {
        "algorithms": declared_algorithms, "data": data_names, "models": declared_models,
        "experiments": experiment_names,
    }  # fmt: skip
    if parameter.name == "name":
        return _matching(kinds.get(str(context.params.get("what")), tuple)(), begun)
    return _matching([*kinds, *(name for names in kinds.values() for name in names() if begun)], begun)


def _matching(names: Iterable[str], begun: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in names if name.startswith(begun)]


def _file(begun: str) -> list[CompletionItem]:
    return [CompletionItem(begun, type="file")]


# -- the command ------------------------------------------------------------------------------------------------------


@click.command(
    short_help="Let Tab complete options, methods, data, models and settings.",
    epilog='Example: eval "$(commonground completion bash)"',
)
@click.argument("shell", type=NameChoice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the lines that SHELL (bash, zsh or fish) has to run.

    To have them in every new shell:

    \b
      bash   echo 'eval "$(commonground completion bash)"' >> ~/.bashrc
      zsh    echo 'eval "$(commonground completion zsh)"' >> ~/.zshrc
      fish   commonground completion fish > ~/.config/fish/completions/commonground.fish
    """  # noqa: D301 (\b is click's)
    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(context.find_root().command, {}, "commonground", VARIABLE).source())

"""``commonground list``: what there is to choose from, and what the settings of one of it mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from commonground.completion import complete_listed
from commonground.errors import ConfigError
from commonground.explained import Setting, paragraphs, settings_of
from commonground.suggest import meant

if TYPE_CHECKING:
    from commonground.algorithms import Algorithm

__all__ = ["list_"]


@click.command(
    name="list",
    short_help="What there is to choose from, and what its settings mean.",
    epilog="Example: commonground list fedrep",
)
@click.argument("what", shell_complete=complete_listed)
@click.argument("name", required=False, shell_complete=complete_listed)
def list_(what: str, name: str | None) -> None:
    """List algorithms, data, models or experiments; with a NAME, or a name alone, explain one of them.

    `list algorithms` shows all methods with their settings and papers; `list fedrep` says what FedRep is and what each
    of its settings means, what it may be and what it is by default; `list models mlp` does so for a model's options.
    """
    from commonground.console import standard_output

    if what in _KINDS:
        names, table, explain = _KINDS[what]
        if name is not None and name not in names():
            raise ConfigError(
                f"there is no '{name}' among the {what}{meant(name, names())}; see commonground list {what}"
            )
        shown = table() if name is None else explain(name)
    else:
        shown = _of_any_kind(what, name)
    standard_output().print(shown)


def _of_any_kind(name: str, further: str | None) -> RenderableType:
    """What has this name, whatever it is."""
    if further is None:
        for names, _, explain in _KINDS.values():
            if name in names():
                return explain(name)
    every = [*_KINDS, *(each for names, _, _ in _KINDS.values() for each in names())]
    raise ConfigError(
        f"there is no '{name}' to list{meant(name, _KINDS if further else every)}; name one of {', '.join(_KINDS)}, or "
        "a method, a data set, a model or an experiment"
    )


def _algorithm_names() -> list[str]:
    return sorted(_methods())


def _methods() -> dict[str, type[Algorithm]]:
    """Methods by name, and what they are measured by."""
    from commonground.algorithms import registry, yardsticks

    return registry | yardsticks


def _algorithms() -> RenderableType:
    table = Table("name", "what", "settings", "paper")
    for name in _algorithm_names():
        cls = _methods()[name]
        settings = ", ".join(f"{k}={'auto' if v is None else v}" for k, v in cls.options().items())
        table.add_row(name, paragraphs(cls)[0].split(" (")[0].splitlines()[0].rstrip("."), settings, cls.source)
    return Group(table, Text("commonground list NAME explains a method and its settings"))


def _algorithm(name: str) -> RenderableType:
    cls = _methods()[name]
    settings = settings_of(cls)
    example = f"commonground train {name}" + "".join(f" --set {s.name}={s.default}" for s in settings[:1])
    return Group(
        *_text([*paragraphs(cls), f"Paper: {cls.source}."]), _settings(settings, "It has no settings of its own."),
        Text(f"\n{example}"),
    )  # fmt: skip


def _data_names() -> list[str]:
    from commonground.data import available_sources

    return [info.name for info in available_sources()]


def _data() -> RenderableType:
    from commonground.data import available_sources

    table = Table("name", "what", "from")
    for info in available_sources():
        table.add_row(info.name, info.description, info.origin)
    table.add_row("FILE.py:function", "your own function that returns clients", "--data FILE.py:function")
    table.add_row(
        "FILE.csv", "your own table (.csv, .tsv, .jsonl, .parquet, …, or a folder)", "--client-column and --target"
    )
    return table


def _one_data_set(name: str) -> RenderableType:
    from commonground.data import available_sources

    info = next(info for info in available_sources() if info.name == name)
    return Group(*_text([f"{info.description}; from {info.origin}."]), Text(f"commonground train fedrep --data {name}"))


def _model_names() -> list[str]:
    from commonground.models import available_models

    return list(available_models())


def _models() -> RenderableType:
    from commonground.models import available_models

    table = Table("name", "what")
    for name, text in available_models().items():
        table.add_row(name, text)
    table.add_row("FILE.py:Class", "your own nn.Module, called with (sample shape, classes)")
    return Group(table, Text("commonground list models NAME explains a model's options"))


def _model(name: str) -> RenderableType:
    from commonground.models import model_options_class

    cls, skipped = model_options_class(name)
    options = settings_of(cls, skipped)
    example = f"commonground train fedrep --model {name}" + "".join(f" --set model.{s.name}=…" for s in options[:1])
    return Group(*_text(paragraphs(cls)), _settings(options, "It has no options."), Text(f"\n{example}"))


def _experiment_names() -> list[str]:
    from commonground.papers import experiments

    return sorted(experiments)


def _experiments() -> RenderableType:
    from commonground.papers import experiments

    table = Table("name", "what", "from")
    for name, experiment in sorted(experiments.items()):
        table.add_row(name, experiment.title, experiment.source)
    return table


def _experiment(name: str) -> RenderableType:
    from commonground.papers import experiments

    found = experiments[name]
    return Group(*_text([f"{found.title}; from {found.source}."]), Text(f"commonground reproduce {name}"))


_Kind = tuple[Callable[[], list[str]], Callable[[], RenderableType], Callable[[str], RenderableType]]

_KINDS: dict[str, _Kind] = {
    "algorithms": (_algorithm_names, _algorithms, _algorithm),
    "data": (_data_names, _data, _one_data_set),
    "models": (_model_names, _models, _model),
    "experiments": (_experiment_names, _experiments, _experiment),
}


def _text(parts: list[str]) -> list[Text]:
    """Paragraphs, with an empty line behind each; a list's items keep their lines."""
    return [Text(_joined(part) + "\n") for part in parts]


def _joined(part: str) -> str:
    """Lines that belong together as one, so that they break where the terminal ends."""
    lines: list[str] = []
    for line in part.splitlines():
        if lines and not line.startswith("- "):
            lines[-1] += f" {line.strip()}"
        else:
            lines.append(line)
    return "\n".join(lines)


def _settings(settings: list[Setting], none: str) -> RenderableType:
    if not settings:
        return Text(none)
    table = Table("setting", "what it is", "default", "values")
    for setting in settings:
        table.add_row(Text(setting.name), Text(setting.meaning), Text(setting.default), Text(setting.values))
    return table

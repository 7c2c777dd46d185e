"""``commonground list``: what there is to choose from, and what the settings of one of it mean."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import click
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from commonground import catalogue
from commonground.catalogue import PRETRAINED
from commonground.cli.completion import complete_listed
from commonground.declared import NotDeclaredError
from commonground.errors import ConfigError
from commonground.explained import Setting, paragraphs, settings_from, settings_of
from commonground.suggest import meant
from commonground.user_code import is_code

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
    `list FILE.py:Class` runs that file and says so of a method or model of yours.
    """
    from commonground.terminal import standard_output

    if is_code(name or what):
        standard_output().print(_own(name or what))
        return
    what = "algorithms" if what == "methods" else what  # as the documentation calls them
    if name is None:
        what = _listed(what)
    elif what == "models":
        name = _listed(name)
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


def _listed(name: str) -> str:
    """The name by which something is listed: every pretrained model by the same."""
    (pretrained,) = (each for each in _model_names() if each.startswith(PRETRAINED))
    return pretrained if name.startswith(PRETRAINED) or f"{name}:" == PRETRAINED else name


def _of_any_kind(name: str, further: str | None) -> RenderableType:
    """What has this name, whatever it is."""
    if further is None:
        for names, _, explain in _KINDS.values():
            if name in names():
                return explain(name)
    elif any(name in names() for names, _, _ in _KINDS.values()):
        raise ConfigError(f"'{name}' is listed by itself, without '{further}' behind it: commonground list {name}")
    every = [*_KINDS, *(each for names, _, _ in _KINDS.values() for each in names())]
    raise ConfigError(
        f"there is no '{name}' to list{meant(name, _KINDS if further else every)}; name one of {', '.join(_KINDS)}, or "
        "a method, a data set, a model or an experiment"
    )


def _algorithm_names() -> list[str]:
    return sorted(catalogue.methods())


@dataclass(frozen=True)
class _Explained:
    """What is said of a method or a model."""

    paragraphs: list[str]
    settings: list[Setting]
    source: str = ""


def _method(name: str, values: bool = True) -> _Explained:
    """What is said of a method, without what its settings may be if nobody asks."""
    declared = catalogue.methods()[name]
    try:
        settings = settings_from(declared.fields(annotated=values), declared.docs)
        return _Explained(paragraphs(declared.docs[0]), settings, declared.constant("source"))
    except NotDeclaredError:  # then it is imported, and PyTorch with it
        from commonground.algorithms import registry, yardsticks

        cls = (registry | yardsticks)[name]
        return _Explained(paragraphs(cls.__doc__), settings_of(cls), cls.source)


def _network(name: str) -> _Explained:
    key = PRETRAINED if name.startswith(PRETRAINED) else name
    declared = catalogue.models()[key]
    try:
        options = settings_from(declared.arguments(catalogue.model_arguments(key)), declared.docs)
        return _Explained(paragraphs(declared.docs[0]), options)
    except NotDeclaredError:
        from commonground.models import model_options_class

        cls, skipped = model_options_class(name)
        return _Explained(paragraphs(cls.__doc__), settings_of(cls, skipped))


def _algorithms() -> RenderableType:
    table = Table("name", "what", "settings", "paper")
    for name in _algorithm_names():
        found = _method(name, values=False)
        settings = ", ".join(f"{setting.name}={setting.default}" for setting in found.settings)
        table.add_row(name, found.paragraphs[0].split(" (")[0].splitlines()[0].rstrip("."), settings, found.source)
    return Group(table, Text("commonground list NAME explains a method and its settings"))


def _algorithm(name: str) -> RenderableType:
    found = _method(name)
    example = f"commonground train {name}" + "".join(f" --set {s.name}={s.default}" for s in found.settings[:1])
    return Group(
        *_text([*found.paragraphs, f"Paper: {found.source}."]),
        _settings(found.settings, "It has no settings of its own."),
        Text(f"\n{example}"),
    )


def _data_names() -> list[str]:
    return list(catalogue.data_names())


def _data() -> RenderableType:
    table = Table("name", "what", "from")
    for entry in catalogue.data_entries():
        table.add_row(entry.name, entry.text, entry.origin)
    table.add_row("FILE.py:function", "your own function that returns clients", "--data FILE.py:function")
    table.add_row(
        "FILE.csv", "your own table (.csv, .tsv, .jsonl, .parquet, …, or a folder)", "--client-column and --target"
    )
    return table


def _one_data_set(name: str) -> RenderableType:
    entry = next(entry for entry in catalogue.data_entries() if entry.name == name)
    return Group(*_text([f"{entry.text}; from {entry.origin}."]), Text(f"commonground train fedrep --data {name}"))


def _own(code: str) -> RenderableType:
    """What is said of a user's method, or module, and of its settings."""
    from commonground.algorithms import Algorithm
    from commonground.user_code import load_object

    found = load_object(code, "class", "method or a module")
    if not isinstance(found, type):
        raise ConfigError(f"'{code}' is no class; a method or a module is one")
    method = issubclass(found, Algorithm)
    if issubclass(found, Algorithm):
        found.check_fields()
    settings = settings_of(found, () if method else ("shape", "classes"))
    option, prefix = ("", "") if method else ("fedrep --model ", "model.")
    example = "".join(f" --set {prefix}{one.name}={one.default}" for one in settings[:1])
    return Group(
        *_text(paragraphs(found.__dict__.get("__doc__"))),
        _settings(settings, "It has no settings of its own."),
        Text(f"\ncommonground train {option}{code}{example}"),
    )


def _model_names() -> list[str]:
    return list(catalogue.model_texts())


def _models() -> RenderableType:
    table = Table("name", "what")
    for name, text in catalogue.model_texts().items():
        table.add_row(name, text)
    table.add_row("FILE.py:Class", "your own nn.Module, called with (sample shape, classes)")
    return Group(table, Text("commonground list models NAME explains a model's options"))


def _model(name: str) -> RenderableType:
    found = _network(name)
    first = "".join(f" --set model.{option.name}=…" for option in found.settings[:1])
    return Group(
        *_text(found.paragraphs),
        _settings(found.settings, "It has no options."),
        Text(f"\ncommonground train fedrep --model {name}{first}"),
    )


def _experiment_names() -> list[str]:
    return list(catalogue.experiment_names())


def _experiments() -> RenderableType:
    table = Table("name", "what", "from")
    for entry in catalogue.experiment_entries():
        table.add_row(entry.name, entry.text, entry.origin)
    return table


def _experiment(name: str) -> RenderableType:
    entry = next(entry for entry in catalogue.experiment_entries() if entry.name == name)
    return Group(
        *_text([f"{entry.text}; from {entry.origin}."]), Text(f"commonground reproduce {name} --out runs/{name}")
    )


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

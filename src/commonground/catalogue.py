"""What there is to choose from: methods, models, data sets and experiments, as their files declare them."""

from __future__ import annotations

import ast
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from commonground.declared import ROOT, Declared, calls_of, declared_classes, evaluated, named_value
from commonground.errors import ConfigError, DataError
from commonground.partition_forms import partition_values
from commonground.suggest import meant

__all__ = [
    "PRETRAINED",
    "Entry",
    "check_declared",
    "check_experiment",
    "check_file",
    "check_known",
    "check_method",
    "check_names",
    "check_settings",
    "data_entries",
    "data_names",
    "experiment_entries",
    "experiment_names",
    "methods",
    "model_arguments",
    "model_texts",
    "models",
    "tasks",
    "unknown_data",
    "unknown_model",
]

PRETRAINED = "hf:"
"""How the names of pretrained models, and of data sets of the same hub, begin."""

_SOURCES = ROOT / "data" / "sources" / "named.py"
_GLUE = ROOT / "data" / "sources" / "glue.py"
_BUILD = ROOT / "models" / "build.py"
_TABLES = ROOT / "data" / "tables" / "read.py"


@dataclass(frozen=True)
class Entry:
    """A line of a list.

    Attributes:
        name: as it is given.
        text: what it is, in a line.
        origin: the paper or place it is from.
    """

    name: str
    text: str
    origin: str


def check_known(what: str, name: str, known: Iterable[str]) -> None:
    """Refuse a name that is none.

    Raises:
        ConfigError: says which one may be meant, and all there are.
    """
    names = sorted(known)
    if name.endswith(".py"):
        raise ConfigError(f"'{name}' names a file, and no {what} in it; write {name}:NAME")
    if name not in names:
        raise ConfigError(f"unknown {what} '{name}'{meant(name, names)}; known are {', '.join(names)}")


def check_method(name: str) -> str:
    """A method's name as it is, unless there is no such method; ``file.py:Class`` is looked at elsewhere."""
    if ":" not in name:
        check_known("algorithm", name, {*methods(), *_loaded("algorithms.base", "registry", "yardsticks")})
    return name


def check_settings(title: str, given: Iterable[str], known: Collection[str]) -> None:
    """Refuse a hyperparameter that a method does not have.

    Args:
        title: of the method.
        given: names of hyperparameters.
        known: of those that it has.
    """
    for option in given:
        if option not in known:
            raise ConfigError(
                f"{title} has no setting '{option}'{meant(option, known)}; it has {', '.join(known) or 'none'}"
            )


def check_declared(name: str, given: Iterable[str]) -> None:
    """:func:`check_settings` of a method by name, as its file declares it; methods of a user's own are looked at
    elsewhere.
    """
    declared = methods().get(name)
    if declared is not None:
        check_settings(str(declared.constant("title")), given, declared.field_names())


def check_names(values: Mapping[str, Any]) -> None:
    """Refuse data, a model, a task or a partition of which a run's settings give a name that is none; paths, pretrained
    models and code of a user's own are looked at elsewhere.

    Raises:
        DataError, ConfigError: the same that loading, building or dealing them would raise.
    """
    data, model, task, partition = (values.get(key) for key in ("data", "model", "task", "partition"))
    if isinstance(data, str) and _is_word(data) and data not in data_names() and not Path(data).exists():
        raise unknown_data(data)
    if isinstance(model, str) and _is_word(model) and model not in models():
        raise unknown_model(model)
    if isinstance(task, str) and not any(".py:" in str(value) for value in values.values()):  # which may define some
        check_known("task", task, {*tasks(), *_loaded("tasks.base", "tasks")})
    if isinstance(partition, str) and ".py:" not in partition:
        partition_values(partition)


def check_file(name: str) -> None:
    """Refuse data by a name that can be nothing but a file's, by its ending, where there is no such file.

    Raises:
        DataError: the same that reading it would raise.
    """
    path, known = (
        Path(name).expanduser(),
        [evaluated(named_value(n, _TABLES), _TABLES) for n in ("TEXT", "LINES", "BINARY")],
    )
    endings = (*known[0][:3], *known[1], *known[2], ".json")
    if name.startswith(PRETRAINED) or path.exists():
        return
    if name.lower().removesuffix(".gz").endswith(endings):
        raise DataError(f"there is no file {path}")
    if len(path.parts) > 1 and ":" not in name:
        raise _nowhere(path)


def _nowhere(path: Path) -> DataError:
    """What a path is told that leads to nothing."""
    here = "" if path.is_absolute() else f", seen from '{Path.cwd()}'"
    hub = f"; of the Hugging Face hub it is {PRETRAINED}{path}" if here and len(path.parts) == 2 else ""
    return DataError(f"there is no file or folder '{path}'{here}{hub}")


def _is_word(name: str) -> bool:
    """Whether it can be nothing but a name: neither a path nor of a form with a colon."""
    return name.replace("-", "").replace("_", "").isalnum()


def unknown_data(name: str) -> DataError:
    """What a name of data is told that stands for nothing."""
    tables: str = evaluated(named_value("FORMS", _TABLES), _TABLES)
    path = Path(name).expanduser()
    if len(path.parts) > 1 and not path.exists():
        return _nowhere(path)
    return DataError(
        f"unknown data {name!r}{meant(name, data_names())}; it is one of {', '.join(data_names())}, the path of a "
        f"table ({tables}), of a folder of pictures, of a .json or .jsonl file of instructions, hf:OWNER/NAME, or "
        "file.py:function"
    )


def unknown_model(name: str) -> ConfigError:
    """What a name of a model is told that is none."""
    known = [each for each in models() if each != PRETRAINED]
    return ConfigError(
        f"unknown model '{name}'{meant(name, known)}; known are {', '.join(known)}, hf:NAME_OR_FOLDER and file.py:Class"
    )


def check_experiment(name: str) -> None:
    """Refuse an experiment that there is not."""
    check_known("experiment", name, {*experiment_names(), *_loaded("papers.experiment", "experiments")})


def _loaded(module: str, *registries: str) -> Iterator[str]:
    """Names that a program which is running has added itself."""
    found = sys.modules.get(f"commonground.{module}")
    for registry in registries if found is not None else ():
        yield from getattr(found, registry)


@cache
def methods() -> dict[str, Declared]:
    """Algorithms, and what they are measured by."""
    return {cls.name: cls for cls in declared_classes("algorithms").values() if cls.name}


@cache
def tasks() -> tuple[str, ...]:
    """What data can be for."""
    return tuple(cls.name for cls in declared_classes("tasks").values() if cls.name)


@cache
def models() -> dict[str, Declared]:
    """Networks, and under :data:`PRETRAINED` how pretrained models are adapted."""
    classes = declared_classes("models")
    table = named_value("_MODELS", _BUILD)
    assert isinstance(table, ast.Dict)
    named = {ast.literal_eval(key): value.id for key, value in zip(table.keys, table.values, strict=True)
             if key is not None and isinstance(value, ast.Name)}  # fmt: skip
    return {name: classes[cls] for name, cls in named.items()} | {PRETRAINED: classes["LoRAOptions"]}


def model_arguments(name: str) -> tuple[str, ...]:
    """Arguments of a model's class that are no options."""
    skipped: tuple[str, ...] = evaluated(named_value("PRESET" if name == PRETRAINED else "GIVEN", _BUILD), _BUILD)
    return skipped


def model_texts() -> dict[str, str]:
    """Models, each with what it is in a line."""
    texts = {name: cls.docs[0].splitlines()[0] for name, cls in models().items() if name != PRETRAINED}
    adapted: dict[str, str] = evaluated(named_value("ADAPTED", _BUILD), _BUILD)
    return texts | adapted


def data_names() -> tuple[str, ...]:
    """Data sets by name."""
    return tuple(str(_value(call, 0, _SOURCES, known)) for call, known in _sources())


def data_entries() -> tuple[Entry, ...]:
    """Data sets."""
    return tuple(Entry(*(_value(call, n, _SOURCES, known) for n in range(3))) for call, known in _sources())


def _sources() -> Iterator[tuple[ast.Call, dict[str, Any]]]:
    """Calls that declare a data set; the one for GLUE's tasks comes once for each, with their names and titles."""
    for call in calls_of("SourceInfo", _SOURCES):
        if isinstance(call.args[0], ast.Constant):
            yield call, {}
        else:
            for name, title in _glue().items():
                yield call, {"name": name, "task": SimpleNamespace(title=title)}


def _glue() -> dict[str, str]:
    table = named_value("TASKS", _GLUE)
    assert isinstance(table, ast.Dict)
    titles = [_value(task, 1, _GLUE, {}) for task in table.values if isinstance(task, ast.Call)]
    return {ast.literal_eval(key): title for key, title in zip(table.keys, titles, strict=True) if key is not None}


def experiment_names() -> tuple[str, ...]:
    """The papers' experiments by name."""
    return tuple(sorted(_value(call, 0, file, {}) for file, call in _experiments()))


def experiment_entries() -> tuple[Entry, ...]:
    """The papers' experiments, in the order of their names."""
    entries = [Entry(*(_value(call, n, file, {}) for n in range(3))) for file, call in _experiments()]
    return tuple(sorted(entries, key=lambda entry: entry.name))


def _experiments() -> Iterator[tuple[Path, ast.Call]]:
    for file in sorted((ROOT / "papers").rglob("*.py")):
        for call in calls_of("Experiment", file):
            yield file, call


def _value(call: ast.Call, number: int, file: Path, known: dict[str, Any]) -> Any:
    return evaluated(call.args[number], file, **known)

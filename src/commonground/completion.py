"""What a shell can complete: the names there are, read off the source files, since importing them loads PyTorch.

Every name has one place, where it is declared. Here it is looked up in the syntax tree of that file, in milliseconds.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import click
from click.shell_completion import CompletionItem

__all__ = [
    "VARIABLE",
    "complete_algorithm",
    "complete_data",
    "complete_experiment",
    "complete_listed",
    "complete_model",
    "complete_setting",
    "declared_algorithms",
    "declared_data",
    "declared_experiments",
    "declared_models",
]

VARIABLE = "_COMMONGROUND_COMPLETE"
"""Of the environment: that a shell asks for completions, as click names it."""

_HERE = Path(__file__).parent


# -- names, as they are declared --------------------------------------------------------------------------------------


@cache
def declared_algorithms() -> dict[str, tuple[str, ...]]:
    """Methods by name, each with its settings, those of classes it derives from first."""
    classes = _classes(_HERE / "algorithms")
    named = {}
    for cls in classes.values():
        for statement in cls.body:
            match statement:
                case ast.Assign(targets=[ast.Name("name")], value=ast.Constant(str(name))):
                    named[name] = _fields(cls, classes)
    return named


@cache
def declared_models() -> dict[str, tuple[str, ...]]:
    """Models by name, each with its options; ``hf:`` are all pretrained ones."""
    classes = _classes(_HERE / "models")
    named = {"hf:": tuple(name for name in _arguments(classes["LoRAOptions"]) if name != "generative")}
    for node in ast.walk(_tree(_HERE / "models" / "build.py")):
        match node:
            case ast.AnnAssign(target=ast.Name("_MODELS"), value=ast.Dict(keys, values)):
                for key, value in zip(keys, values, strict=True):
                    if isinstance(key, ast.Constant) and isinstance(value, ast.Name):
                        named[str(key.value)] = _arguments(classes[value.id])
    return named


@cache
def declared_data() -> tuple[str, ...]:
    """Data sets by name."""
    sources = _HERE / "data" / "sources"
    named = list(_first_arguments([sources / "__init__.py"], "SourceInfo"))
    for node in ast.walk(_tree(sources / "glue.py")):
        match node:
            case ast.Assign(targets=[ast.Name("TASKS")], value=ast.Dict(keys)):
                named += [str(key.value) for key in keys if isinstance(key, ast.Constant)]
    return tuple(named)


@cache
def declared_experiments() -> tuple[str, ...]:
    """The papers' experiments by name."""
    return tuple(sorted(_first_arguments(sorted((_HERE / "papers").rglob("*.py")), "Experiment")))


def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text("utf-8"))


def _classes(folder: Path) -> dict[str, ast.ClassDef]:
    trees = map(_tree, sorted(folder.glob("*.py")))
    return {node.name: node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)}


def _fields(cls: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> tuple[str, ...]:
    """A dataclass's fields."""
    above = [_fields(classes[b.id], classes) for b in cls.bases if isinstance(b, ast.Name) and b.id in classes]
    names = [name for fields in above for name in fields]
    for statement in cls.body:
        match statement:
            case ast.AnnAssign(target=ast.Name(name), annotation=said) if "ClassVar" not in ast.unparse(said):
                names.append(name)
    return tuple(dict.fromkeys(names))


def _arguments(cls: ast.ClassDef) -> tuple[str, ...]:
    """What a model's constructor takes beside the sample's shape and the number of classes."""
    for statement in cls.body:
        if isinstance(statement, ast.FunctionDef) and statement.name == "__init__":
            given = statement.args
            names = (each.arg for each in (*given.args, *given.kwonlyargs))
            return tuple(name for name in names if name not in ("self", "shape", "classes"))
    return ()


def _first_arguments(files: Iterable[Path], called: str) -> Iterator[str]:
    for file in files:
        for node in ast.walk(_tree(file)):
            match node:
                case ast.Call(func=ast.Name(name), args=[ast.Constant(str(first)), *_]) if name == called:
                    yield first


# -- what click asks --------------------------------------------------------------------------------------------------


def complete_algorithm(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """Methods; or a file of one's own (``file.py:Class``)."""
    return _matching(declared_algorithms(), begun) or _file(begun)


def complete_data(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """Data sets, or a file."""
    return _matching(declared_data(), begun) or _file(begun)


def complete_model(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """Models, or a file of one's own."""
    return _matching(declared_models(), begun) or _file(begun)


def complete_experiment(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """The papers' experiments."""
    return _matching(declared_experiments(), begun)


def complete_setting(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """``KEY=`` of the methods that are named before it, and ``model.KEY=`` of the model; of all of them if none is."""
    # Behind an option that has no value yet click has not sorted the words before it.
    given = [*(context.params.get("methods") or ()), context.params.get("algorithm"), *context.args]
    names = [str(method).partition(":")[0].removesuffix("+ft") for method in given if method]
    methods, models = declared_algorithms(), declared_models()
    of_methods = [methods[name] for name in names if name in methods] if names else methods.values()
    model = str(context.params.get("model"))
    model = "hf:" if model.startswith("hf:") else model
    of_models = [models[model]] if model in models else models.values()
    keys = [key for keys in of_methods for key in keys] + [f"model.{key}" for keys in of_models for key in keys]
    return _matching([f"{key}=" for key in dict.fromkeys(keys)], begun)


def complete_listed(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """What ``commonground list`` takes: a kind, a name of this kind, or any name at all."""
    kinds = {
        "algorithms": declared_algorithms, "data": declared_data, "models": declared_models,
        "experiments": declared_experiments,
    }  # fmt: skip
    if parameter.name == "name":
        return _matching(kinds.get(str(context.params.get("what")), tuple)(), begun)
    return _matching([*kinds, *(name for names in kinds.values() for name in names() if begun)], begun)


def _matching(names: Iterable[str], begun: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in names if name.startswith(begun)]


def _file(begun: str) -> list[CompletionItem]:
    return [CompletionItem(begun, type="file")]

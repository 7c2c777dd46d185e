"""What methods, models, data sets and experiments say of themselves, read off their files: importing loads PyTorch.

Every name has one place, where it is declared. Here it is looked up in the syntax tree of that file, in milliseconds.
What stands there is worked out as far as it is made of constants, names of ours and a few light modules' names.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

__all__ = [
    "NOTHING",
    "Declared",
    "NotDeclaredError",
    "Parameter",
    "calls_of",
    "declared_classes",
    "evaluated",
    "named_value",
]

ROOT = Path(__file__).parent
LIGHT = frozenset({"collections.abc", "math", "pathlib", "pydantic", "typing"})
"""Modules outside of ours that what is declared may use."""

NOTHING = object()
"""In place of a default or an annotation where there is none."""


class NotDeclaredError(Exception):
    """Something is said in a way that only importing it can tell."""


@dataclass(frozen=True)
class Parameter:
    """A field of a dataclass, or an argument of a constructor.

    Attributes:
        annotation, default: their values; :data:`NOTHING` where there is none.
    """

    name: str
    annotation: Any
    default: Any


@dataclass(frozen=True)
class Declared:
    """A class as its file declares it.

    Attributes:
        node: its definition.
        file: where it stands.
        above: what it derives from as far as the same folder declares it, the nearest first.
    """

    node: ast.ClassDef
    file: Path
    above: tuple[Declared, ...] = ()

    @property
    def docs(self) -> tuple[str, ...]:
        """Its docstring, then those of what it derives from."""
        own = ast.get_docstring(self.node) or ""
        return (own, *(doc for each in self.above for doc in each.docs))

    def constant(self, name: str) -> Any:
        """A class variable that is written without annotation; None if there is none."""
        for statement in self.node.body:
            match statement:
                case ast.Assign(targets=[ast.Name(found)], value=value) if found == name:
                    return evaluated(value, self.file)
        return next((value for each in self.above if (value := each.constant(name)) is not None), None)

    @property
    def name(self) -> str | None:
        """The name by which it is asked for; None if it has none of its own."""
        name: str | None = Declared(self.node, self.file).constant("name")
        return name

    def field_names(self) -> tuple[str, ...]:
        """A dataclass's fields, those of classes it derives from first."""
        names = [name for each in reversed(self.above) for name in each.field_names()]
        return tuple(dict.fromkeys([*names, *(name for name, _ in self._own_fields())]))

    def fields(self, annotated: bool = True) -> list[Parameter]:
        """The same with their defaults and, if it is asked for, what they may be."""
        found = {field.name: field for each in reversed(self.above) for field in each.fields(annotated)}
        for name, node in self._own_fields():
            default = NOTHING if node.value is None else evaluated(node.value, self.file)
            found[name] = Parameter(name, evaluated(node.annotation, self.file) if annotated else NOTHING, default)
        return list(found.values())

    def _own_fields(self) -> Iterator[tuple[str, ast.AnnAssign]]:
        for statement in self.node.body:
            match statement:
                case ast.AnnAssign(annotation=ast.Name("ClassVar") | ast.Subscript(value=ast.Name("ClassVar"))):
                    continue
                case ast.AnnAssign(target=ast.Name(name)):
                    yield name, statement

    def argument_names(self, skip: Iterable[str]) -> tuple[str, ...]:
        """What its constructor takes."""
        return tuple(argument.arg for argument, _ in self._arguments() if argument.arg not in skip)

    def arguments(self, skip: Iterable[str]) -> list[Parameter]:
        """The same, with what they may be and their defaults."""
        return [
            Parameter(argument.arg, *(NOTHING if node is None else evaluated(node, self.file) for node in nodes))
            for argument, default in self._arguments()
            if argument.arg not in skip
            for nodes in ((argument.annotation, default),)
        ]

    def _arguments(self) -> Iterator[tuple[ast.arg, ast.expr | None]]:
        for statement in self.node.body:
            if isinstance(statement, ast.FunctionDef) and statement.name == "__init__":
                given = statement.args
                bare = [None] * (len(given.args) - len(given.defaults))
                yield from list(zip(given.args, [*bare, *given.defaults], strict=True))[1:]
                yield from zip(given.kwonlyargs, given.kw_defaults, strict=True)


@cache
def declared_classes(folder: str) -> dict[str, Declared]:
    """The classes of all files of one of our folders, by their names."""
    nodes = {
        node.name: (node, file)
        for file in sorted((ROOT / folder).glob("*.py"))
        for node in _tree(file).body
        if isinstance(node, ast.ClassDef)
    }

    def made(name: str) -> Declared:
        node, file = nodes[name]
        bases = [base.id for base in node.bases if isinstance(base, ast.Name) and base.id in nodes]
        return Declared(node, file, tuple(map(made, bases)))

    return {name: made(name) for name in nodes}


def calls_of(name: str, file: Path) -> Iterator[ast.Call]:
    """Where a file calls something."""
    for node in ast.walk(_tree(file)):
        match node:
            case ast.Call(func=ast.Name(called)) if called == name:
                yield node


@cache
def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text("utf-8"))


# -- values -----------------------------------------------------------------------------------------------------------


def evaluated(node: ast.expr | None, file: Path, **known: Any) -> Any:
    """The value of an expression of one of our files.

    Args:
        node: the expression.
        file: where it stands, and where its names are looked up.
        known: further names with their values.

    Raises:
        NotDeclaredError: it takes more than is known here.
    """
    if node is None:
        raise NotDeclaredError(f"{file} does not declare what is looked for")
    try:
        return eval(compile(ast.Expression(node), str(file), "eval"), {}, _Names(known, file))
    except NotDeclaredError:
        raise
    except Exception as error:
        raise NotDeclaredError(f"{file}, line {node.lineno}: {error}") from error


def named_value(name: str, file: Path) -> ast.expr | None:
    """What a file's top level gives a name to; None if nothing."""
    for statement in _tree(file).body:
        match statement:
            case ast.Assign(targets=[ast.Name(found)], value=value) if found == name:
                return value
            case ast.AnnAssign(target=ast.Name(found), value=value) if found == name:
                return value
    return None


class _Names(dict[str, Any]):
    """Names of a file's top level, each worked out when it is asked for."""

    def __init__(self, known: dict[str, Any], file: Path) -> None:
        super().__init__(known)
        self._file = file

    def __missing__(self, name: str) -> Any:
        value = named_value(name, self._file)
        if value is not None:
            return evaluated(value, self._file)
        for statement in _tree(self._file).body:
            match statement:
                case ast.ImportFrom(module=str(module), names=aliases):
                    for alias in aliases:
                        if (alias.asname or alias.name) == name:
                            return _imported(module, alias.name)
        raise KeyError(name)  # then Python looks among its own


def _imported(module: str, name: str) -> Any:
    """A name of another module."""
    if module in LIGHT:
        return getattr(import_module(module), name)
    file = ROOT.parent.joinpath(*module.split(".")).with_suffix(".py")
    if not file.is_relative_to(ROOT) or not file.is_file():
        raise NotDeclaredError(f"'{name}' of {module} is not known without importing it")
    return _Names({}, file)[name]

"""Empty modules in the place of packages that a peer imports and, in what is measured, does not use.

There is no torchvision for the build of PyTorch that this library installs, and loggers on the web are not wanted.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class _Named(type):
    """A class of which any attribute is a stand-in, too."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Named(name, (Nothing,), {})


class Nothing(metaclass=_Named):
    """Stands for a class or function that is named and not used; with it a chain of no transforms can be made."""

    def __init__(self, *args: Any, **options: Any) -> None:
        pass

    def __call__(self, *args: Any, **options: Any) -> Any:
        if len(args) == 1 and not options:
            return args[0]  # a transform that changes nothing: the pictures are ready
        raise NotImplementedError("a stand-in was used: this part of the peer needs the real package")


class _Module(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Named(name, (Nothing,), {"__module__": self.__name__})


class _Finder(MetaPathFinder, Loader):
    def __init__(self, names: Sequence[str]) -> None:
        self.names = names

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.split(".")[0] in self.names else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def install(*names: str) -> None:
    """From now on these packages are empty, whether installed or not."""
    sys.meta_path.insert(0, _Finder(names))

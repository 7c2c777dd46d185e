"""One file per algorithm. A file put into this folder is found by itself."""

import importlib
import pkgutil

from commonground.algorithms.base import Algorithm, Batch, Client, Output, Server, Tensors, Update, registry, yardsticks
from commonground.algorithms.factory import check_methods, check_object, make_algorithm

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = [
    "Algorithm",
    "Batch",
    "Client",
    "Output",
    "Server",
    "Tensors",
    "Update",
    "check_methods",
    "check_object",
    "make_algorithm",
    "registry",
    "yardsticks",
]

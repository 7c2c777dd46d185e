"""The papers' experiments: reported values beside measured ones. A module put into this folder is found by itself."""

import importlib
import pkgutil

from commonground.papers.base import Experiment, Scale, experiments

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["Experiment", "Scale", "experiments"]

"""The papers' experiments: reported values beside measured ones, a folder per paper.

A module put into a paper's folder is found by itself.
"""

import importlib
import pkgutil

from commonground.papers.experiment import Experiment, experiments
from commonground.papers.request import Scale

for _module in pkgutil.walk_packages(__path__, f"{__name__}."):
    importlib.import_module(_module.name)

__all__ = ["Experiment", "Scale", "experiments"]

"""CommonGround: federated representation learning. Many clients, one shared representation, a model for each.

Names are loaded when they are first used, and PyTorch with them: a command's help is not to wait for it.
"""

from __future__ import annotations

import os as _os
import sys as _sys
from importlib import import_module as _import_module
from types import ModuleType as _ModuleType
from typing import TYPE_CHECKING

from commonground.stopping import end_while_loading as _end_while_loading
from commonground.stopping import is_command as _is_command

if TYPE_CHECKING:
    from commonground.adapt import adapt, forget_clients, keep_clients
    from commonground.adapters import load_adapter
    from commonground.algorithms import Algorithm, Client, Server, Tensors, Update
    from commonground.compare import compare, plan_comparison
    from commonground.data import (
        IID,
        Column,
        Dirichlet,
        Features,
        FederatedDataset,
        Labels,
        LogNormal,
        Shards,
        Source,
        load_data,
    )
    from commonground.engine import Observer, Run, load_run, train
    from commonground.errors import CommonGroundError
    from commonground.export import ExportedModel, export_adapter, export_model, load_exported, table_inputs
    from commonground.models import build_model
    from commonground.plan import plan
    from commonground.prediction import predict_rows, predict_tests
    from commonground.tasks import AnswerTokens, Classification, MultiLabel, Regression, Task

    __version__: str

if _is_command():
    _end_while_loading()

# Before PyTorch is loaded. GNU OpenMP's threads spin a long time while they wait for each other, which stalls everybody
# on a machine whose cores are busy: beside three other processes a language model's rounds took over twice as long.
# With short spins a quiet machine is as fast as before, benchmarks/lora_round.py shows. No number depends on it.
if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & set(_os.environ):
    _os.environ["GOMP_SPINCOUNT"] = "2000"

_ROOMS = {
    "adapt": "adapt forget_clients keep_clients",  # heads for new clients, tried or kept
    "adapters": "load_adapter",  # a LoRA adapter into a model
    "algorithms": "Algorithm Client Server Tensors Update",  # what an algorithm is written in
    "compare": "compare plan_comparison",  # several methods side by side, and what that would need
    "data": "FederatedDataset Source load_data "  # data of many clients; samples before they are dealt; a source, dealt
    "IID Column Dirichlet Features Labels LogNormal Shards",  # partitions: who gets which samples
    "engine": "Observer Run load_run train",  # run an algorithm, and take up its results again
    "errors": "CommonGroundError",  # every error raised on purpose
    "export": "ExportedModel export_adapter export_model load_exported table_inputs",  # models taken away
    "plan": "plan",  # what a run would need
    "prediction": "predict_rows predict_tests",  # a run's models on rows, and on what it was tested on
    "models": "build_model",  # the papers' networks
    "tasks": "AnswerTokens Classification MultiLabel Regression Task",  # what is learnt
}
_ROOM = {name: room for room, names in _ROOMS.items() for name in names.split()}


class _Package(_ModuleType):
    """This package, whose functions ``adapt`` and ``compare`` have packages of their own names below them.

    Python puts a package's name here when it is loaded; the function of that name is what stays.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if isinstance(value, _ModuleType) and _ROOM.get(name) == name:
            value = getattr(value, name)
        super().__setattr__(name, value)


_sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        value: object = version("commonground")
    elif name in _ROOM:
        value = getattr(_import_module(f"{__name__}.{_ROOM[name]}"), name)
    else:
        return _room(name)
    globals()[name] = value
    return value


def _room(name: str) -> object:
    """A package or module of ours by its name, as in ``commonground.data``."""
    from importlib.util import find_spec

    if name.startswith("_") or find_spec(f"{__name__}.{name}") is None:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return _import_module(f"{__name__}.{name}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})


__all__ = [
    "IID",
    "Algorithm",
    "AnswerTokens",
    "Classification",
    "Client",
    "Column",
    "CommonGroundError",
    "Dirichlet",
    "ExportedModel",
    "Features",
    "FederatedDataset",
    "Labels",
    "LogNormal",
    "MultiLabel",
    "Observer",
    "Regression",
    "Run",
    "Server",
    "Shards",
    "Source",
    "Task",
    "Tensors",
    "Update",
    "adapt",
    "build_model",
    "compare",
    "export_adapter",
    "export_model",
    "forget_clients",
    "keep_clients",
    "load_adapter",
    "load_data",
    "load_exported",
    "load_run",
    "plan",
    "plan_comparison",
    "predict_rows",
    "predict_tests",
    "table_inputs",
    "train",
]

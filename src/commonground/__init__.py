"""CommonGround: federated representation learning. Many clients, one shared representation, a model for each."""

import os as _os
from importlib.metadata import version as _version

# Before PyTorch is loaded: threads that spin while they wait made language models 25 times slower on a machine whose
# cores were busy (measured); threads that sleep cost next to nothing on a quiet one. No number depends on it.
_os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from commonground.adapters import export_adapter, load_adapter  # LoRA adapters out and in again
from commonground.algorithms import Algorithm, Client, Server, Tensors, Update  # what an algorithm is written in
from commonground.data import FederatedDataset, load_data  # data of many clients
from commonground.engine import Run, train  # run an algorithm
from commonground.errors import CommonGroundError  # every error raised on purpose
from commonground.models import build_model  # the papers' networks

__version__ = _version("commonground")

__all__ = [
    "Algorithm",
    "Client",
    "CommonGroundError",
    "FederatedDataset",
    "Run",
    "Server",
    "Tensors",
    "Update",
    "build_model",
    "export_adapter",
    "load_adapter",
    "load_data",
    "train",
]

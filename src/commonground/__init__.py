"""CommonGround: federated representation learning. Many clients, one shared representation, a model for each."""

import os as _os
from importlib.metadata import version as _version

# Before PyTorch is loaded. GNU OpenMP's threads spin a long time while they wait for each other, which stalls everybody
# on a machine whose cores are busy: beside three other processes a language model's rounds took over twice as long.
# With short spins a quiet machine is as fast as before, benchmarks/lora_round.py shows. No number depends on it.
if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & set(_os.environ):
    _os.environ["GOMP_SPINCOUNT"] = "2000"

from commonground.adapt import export_adapter  # LoRA adapters out …
from commonground.adapters import load_adapter  # … and in again
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

"""CommonGround: federated representation learning. Many clients, one shared representation, a model for each."""

import os as _os
from importlib.metadata import version as _version

from commonground.stopping import completes as _completes
from commonground.stopping import end_while_loading as _end_while_loading
from commonground.stopping import is_command as _is_command

if _is_command():
    _end_while_loading()

# Before PyTorch is loaded. GNU OpenMP's threads spin a long time while they wait for each other, which stalls everybody
# on a machine whose cores are busy: beside three other processes a language model's rounds took over twice as long.
# With short spins a quiet machine is as fast as before, benchmarks/lora_round.py shows. No number depends on it.
if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & set(_os.environ):
    _os.environ["GOMP_SPINCOUNT"] = "2000"

# A shell that completes a command line wants an answer at once: then no name is here, and PyTorch is not loaded.
if not _completes():
    from commonground.adapt import adapt, keep_clients  # heads for new clients, tried or kept
    from commonground.adapters import load_adapter  # a LoRA adapter into a model
    from commonground.algorithms import Algorithm, Client, Server, Tensors, Update  # what an algorithm is written in
    from commonground.compare import compare  # several methods side by side
    from commonground.data import (
        IID,  # partitions: who gets which samples; at random, …
        Column,  # … by a column of the data, …
        Dirichlet,  # … by shares of classes drawn from a Dirichlet distribution, …
        Features,  # … by original classes under labels that all clients share, …
        FederatedDataset,  # data of many clients
        Labels,  # … a few classes each, …
        LogNormal,  # … unequally many, …
        Shards,  # … or shards of equal labels
        Source,  # samples before they are dealt to clients
        load_data,  # a source, dealt
    )
    from commonground.engine import Observer, Run, load_run, train  # run an algorithm, and take up its results again
    from commonground.errors import CommonGroundError  # every error raised on purpose
    from commonground.export import (
        ExportedModel,
        export_adapter,
        export_model,  # models taken away
        load_exported,
        table_inputs,  # raw rows for them
    )
    from commonground.models import build_model  # the papers' networks
    from commonground.tasks import AnswerTokens, Classification, MultiLabel, Regression, Task  # what is learnt

__version__ = _version("commonground")

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
    "keep_clients",
    "load_adapter",
    "load_data",
    "load_exported",
    "load_run",
    "table_inputs",
    "train",
]

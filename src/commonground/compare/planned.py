"""A comparison before it begins: what its runs would need (``compare --dry-run``)."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commonground.algorithms import Algorithm
from commonground.compare.comparing import Comparing
from commonground.compare.observer import ComparisonObserver, SilentComparison
from commonground.counted import counted
from commonground.data import FederatedDataset
from commonground.engine.observer import completed
from commonground.plan import Plan, plan_of
from commonground.plan.table import human_seconds
from commonground.table import Column, Table
from commonground.terminal import human_bytes

if TYPE_CHECKING:
    from torch import nn

__all__ = ["ComparisonPlan", "MethodPlan", "plan_comparison"]


COSTS_NOTHING = frozenset({"lr", "body_lr", "head_lr", "server_lr", "momentum", "weight_decay"})
"""Settings that change what a step does, and not how many there are, nor what is sent."""
REPORT = 3  # times the size of a run's report that a comparison's, with the figures beside it, has at most


@dataclass(frozen=True)
class MethodPlan:
    """What a method's runs will need.

    Attributes:
        method: its label.
        title: its name in tables.
        candidates: plans of its run with the first seed, for each candidate of a grid; one without a grid.
        seeds: how many runs count.
        share: of the training samples on which the candidates of a grid are tried for each seed.
        start: seconds until a run begins: its data dealt, its model built and tried.
    """

    method: str
    title: str
    candidates: tuple[Plan, ...]
    seeds: int
    share: float
    start: float

    @property
    def plan(self) -> Plan:
        """Of the candidate that takes longest: which one counts in the end nobody knows before."""
        return max(self.candidates, key=lambda plan: plan.seconds)

    @property
    def tried(self) -> int:
        """Candidates that are tried for each seed; 0 where there is nothing to choose."""
        return len(self.candidates) if len(self.candidates) > 1 else 0

    @property
    def differ(self) -> bool:
        """Whether candidates cost unlike."""
        return len(set(map(id, self.candidates))) > 1

    @property
    def sent(self) -> int:
        """Bytes that travel in one of its runs, at most where candidates differ."""
        return max(_sent(plan) for plan in self.candidates)

    @property
    def sent_exact(self) -> bool:
        """Whether every run sends so many."""
        return all(plan.sent.exact and _sent(plan) == self.sent for plan in self.candidates)

    @property
    def memory(self) -> int:
        """Bytes of the run that needs most."""
        return max(plan.memory.together for plan in self.candidates)

    @property
    def runs(self) -> int:
        """All runs, those among them that choose from a grid."""
        return self.seeds * (1 + self.tried)

    @property
    def seconds(self) -> float:
        """Of all runs, one after the other: until they begin, training and tests; at most, where candidates differ."""
        trials = self.share * sum(plan.seconds for plan in self.candidates) if self.tried else 0.0
        return self.runs * self.start + self.seeds * (trials + self.plan.seconds)

    @property
    def disk(self) -> int:
        """Bytes that its runs leave at most, which have no reports of their own; of candidates only results stay."""
        kept = [sum(size for name, size in plan.files.items() if name != "report.html") for plan in self.candidates]
        return self.seeds * max(kept)


@dataclass(frozen=True, repr=False)
class ComparisonPlan:
    """What a comparison will need.

    Attributes:
        methods: in their order.
        done: runs that are in the folder already; the plan is of all of them.
    """

    methods: tuple[MethodPlan, ...]
    done: int = 0

    @property
    def seconds(self) -> float:
        """Of all runs, as long as the machine is as busy as it was just now."""
        return sum(method.seconds for method in self.methods)

    @property
    def disk(self) -> int:
        """Bytes that the folder will have at most."""
        report = max(plan.files.get("report.html", 0) for method in self.methods for plan in method.candidates)
        return sum(method.disk for method in self.methods) + REPORT * report

    @property
    def memory(self) -> int:
        """Bytes of the run that needs most; runs come one after the other."""
        return max(method.memory for method in self.methods)

    def __repr__(self) -> str:
        runs = sum(method.runs for method in self.methods)
        return f"<ComparisonPlan of {len(self.methods)} methods, {runs} runs: about {human_seconds(self.seconds)}>"

    def to_dict(self) -> dict[str, Any]:
        """All figures, for JSON."""
        return {
            "seconds": self.seconds,
            "disk_bytes_at_most": self.disk,
            "memory_bytes": self.memory,
            "runs_done": self.done,
            "methods": [
                {
                    "method": method.method,
                    "runs": method.runs,
                    "seconds": method.seconds,
                    "run": method.plan.to_dict(),
                }
                for method in self.methods
            ],
        }

    def table(self) -> Table:
        """A row for each method."""
        names = ("runs", "a run", "all runs", "sent by a run", "memory")
        columns = (Column("method"), *(Column(name, numeric=True) for name in names))
        rows = []
        for method in self.methods:
            sent, longest = human_bytes(method.sent), human_seconds(method.plan.seconds)
            figures = (
                f"{method.runs:,}",
                f"at most {longest}" if method.differ else longest,
                human_seconds(method.seconds),
                sent if method.sent_exact else f"at most {sent}",
                human_bytes(method.memory),
            )
            rows.append({"method": method.title, **dict(zip(names, figures, strict=True))})
        return Table("a dry run of the comparison", columns, rows)

    def sentences(self, out: Path) -> list[str]:
        """What is said below the table.

        Args:
            out: the folder that the comparison would write.
        """
        runs = sum(method.runs for method in self.methods)
        free = self.methods[0].plan.disk_free
        told = [
            f"about {human_seconds(self.seconds)} for {runs:,} runs, by rounds of each method timed just now; the "
            "command's start, files and the report come to it",
            f"disk: up to {human_bytes(self.disk)}; {human_bytes(free)} are free",
            f"files: {out}, which the comparison would write; this wrote nothing",
        ]
        told += [f"{counted(self.done, 'run')} there already; the plan is of all of them"] if self.done else []
        if any(method.differ for method in self.methods):
            told.append(
                "candidates of the grid cost unlike: what a run needs is what the dearest of them does, and all runs "
                "are counted with that one chosen"
            )
        advice = {m.title: dict.fromkeys(sentence for p in m.candidates for sentence in p.advice) for m in self.methods}
        told += [f"{title} will not fit: {sentence}" for title, sentences in advice.items() for sentence in sentences]
        if self.disk > free and not any("disk" in sentence for sentences in advice.values() for sentence in sentences):
            told.append("the disk is too small for all runs together: choose another --out, or fewer --seeds")
        return told


def plan_comparison(
    methods: Sequence[str | Algorithm],
    data: FederatedDataset | str | os.PathLike[str] = "digits",
    seeds: int = 3,
    out: str | Path | None = None,
    *,
    reference: str | None = None,
    to_accuracy: float | None = None,
    to_metric: float | None = None,
    grid: Mapping[str, Sequence[Any]] | None = None,
    local_only: bool = True,
    model: str | nn.Module | None = None,
    validation: float = 0.2,
    observer: ComparisonObserver | None = None,
    data_dir: str | None = None,
    **settings: Any,
) -> ComparisonPlan:
    """What a comparison would need: some rounds of each method are computed to be timed, and nothing is written.

    Args:
        methods, data, seeds, out, reference, to_accuracy, to_metric, grid, local_only, model, validation, data_dir:
            as of :func:`~commonground.compare.compare`.
        observer: hears of notes.
        **settings: likewise.

    Raises:
        CommonGroundError: what the comparison would refuse, in one sentence.
    """
    folder = Path(out) if out is not None else None
    work = Comparing(
        methods, data, seeds, folder, reference, to_accuracy, to_metric, grid or {}, local_only, model,
        validation, completed(observer, SilentComparison()), data_dir, settings, None, None, False,
    )  # fmt: skip
    first = work.seeds[0]
    dealt = work.first(first)
    planned = []
    for label, method in work.methods.items():
        starts: list[float] = []
        plans: dict[tuple[tuple[str, str], ...], Plan] = {}
        for number, chosen in enumerate(work.candidates[label]):
            if (key := _costing(chosen)) not in plans:
                began = time.perf_counter()
                setup = work.setup_of(label, first, dealt, number)
                starts.append(time.perf_counter() - began)
                plans[key] = plan_of(setup, work.folder_of(label, first))
        each = tuple(plans[_costing(chosen)] for chosen in work.candidates[label])
        planned.append(MethodPlan(label, method.title, each, len(work.seeds), 1 - validation, max(starts)))
    folders = [work.folder_of(label, seed) for label in work.methods for seed in work.seeds]
    done = sum(path is not None and (path / "summary.json").is_file() for path in folders)
    return ComparisonPlan(tuple(planned), done)


def _sent(plan: Plan) -> int:
    """Bytes that travel, at most."""
    return plan.sent.up[1] + plan.sent.down[1]


def _costing(chosen: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Of a candidate's settings those that may say how much there is to do."""
    return tuple((name, repr(value)) for name, value in chosen.items() if name not in COSTS_NOTHING)

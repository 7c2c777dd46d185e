"""A comparison as its folder holds it: several methods, each with the runs of several seeds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from commonground.counted import counted_between
from commonground.errors import RunError
from commonground.report.format import number
from commonground.report.read import RunFiles, algorithm_title, headline_of, read_json, read_run
from commonground.tasks import Headline

__all__ = ["ComparisonFiles", "MethodFiles", "read_comparison"]


@dataclass(frozen=True)
class MethodFiles:
    """One method of a comparison.

    Attributes:
        title: for people.
        entry: what ``comparison.json`` says of it.
        runs: the runs whose folders are here.
        color: number of its colour, the same in every figure.
    """

    title: str
    entry: Mapping[str, Any] = field(repr=False)
    runs: list[RunFiles] = field(repr=False)
    color: int

    def value(self, key: str, part: str = "mean") -> float | None:
        """A figure over seeds; one without a spread is its own mean."""
        value = self.entry.get(key)
        if isinstance(value, Mapping):
            return number(value.get(part))
        return number(value) if part == "mean" else None

    def metric(self, key: str) -> dict[str, float | None]:
        """Mean and deviation over seeds of one of the task's other metrics; None where there is none."""
        value = (self.entry.get("metrics") or {}).get(key) or {}
        return {part: number(value.get(part)) for part in ("mean", "std")}

    def clients(self, key: str) -> float | None:
        """For how many clients one of the task's other metrics is defined; None where the file does not say."""
        return number(((self.entry.get("metrics") or {}).get(key) or {}).get("clients"))


@dataclass(frozen=True)
class ComparisonFiles:
    """A comparison as read from its folder; ``missing`` are runs it names that are not here."""

    folder: Path
    headline: Headline
    entry: Mapping[str, Any] = field(repr=False)
    methods: list[MethodFiles] = field(repr=False)
    missing: list[str] = field(repr=False)

    @property
    def rounds(self) -> str:
        """How many rounds the runs have, in words; empty if it does not say."""
        counts = self.entry.get("rounds_between", [self.entry.get("rounds")])
        return counted_between(counts, "round") if all(number(count) for count in counts) else ""

    @property
    def seeds(self) -> int:
        """How many."""
        return len(self.entry.get("seeds") or [0])

    @property
    def judged(self) -> str:
        """With which models the figures are."""
        return str(self.entry.get("judged", "after the last round"))

    @property
    def over(self) -> str:
        """What a mean is over, for a sentence."""
        return f"mean over {self.seeds} seeds" if self.seeds > 1 else "one seed"

    @property
    def reference(self) -> str:
        """The title of the method that the others are compared with; empty if there is none."""
        name = next((d["reference"] for m in self.methods if (d := m.entry.get("differences"))), "")
        # By its label; earlier versions wrote down the algorithm, which may have several variants.
        same = [m.title for key in ("method", "algorithm") for m in self.methods if m.entry.get(key) == name]
        return next(iter(same), str(name))

    def best(self, key: str) -> list[MethodFiles]:
        """The methods that are best in a figure: one, or those that are equally good."""
        best = self.headline.best(method.value(key) for method in self.methods)
        return [method for method in self.methods if method.value(key) == best is not None]

    @property
    def contrast(self) -> tuple[MethodFiles, MethodFiles] | None:
        """The best method beside Local Only, and the one to ask whether it helps: Local Only, else the reference, else
        the next one.
        """
        alone = [method for method in self.methods if method.entry.get("method") == "local"]
        means = {id(m): m.value(self.headline.personal) for m in self.methods if m not in alone}
        best = self.headline.best(means.values())
        own = next((method for method in self.methods if best is not None and means.get(id(method)) == best), None)
        others = [method for method in self.methods if method is not own]
        if own is None or not others:
            return None
        reference = [method for method in others if method.title == self.reference]
        return own, [*alone, *reference, *others][0]


def read_comparison(folder: Path) -> ComparisonFiles:
    """Read ``comparison.json`` and the runs beneath.

    Raises:
        RunError: it is missing or damaged, or a run is.
    """
    path = folder / "comparison.json"
    entry = read_json(path)
    listed = entry.get("methods")
    if not isinstance(listed, list) or not listed:
        raise RunError(f"'{path}' is damaged: it should hold a list of methods")
    headline = headline_of(entry, path)
    methods, missing = [], []
    for index, one in enumerate(listed):
        name = one.get("title") or one.get("algorithm") if isinstance(one, dict) else None
        if not name or not isinstance(one.get(headline.personal), dict):
            raise RunError(f"'{path}' is damaged: method {index + 1} should have a title and a {headline.personal}")
        runs = []
        for run in one.get("runs") or []:
            if (folder / str(run) / "summary.json").is_file():
                runs.append(read_run(folder / str(run)))
            else:
                missing.append(str(run))
        methods.append(MethodFiles(str(one.get("title") or algorithm_title(str(name))), one, runs, index))
    return ComparisonFiles(folder, headline, entry, methods, missing)

"""What a run's figures are called, how they are written and which way is better: for every text, table and page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from commonground.errors import ConfigError
from commonground.tasks.base import Task, tasks
from commonground.tasks.rank import is_share, less_is_better

__all__ = ["FEW_TESTS", "Headline", "Metric", "in_figures"]

Figures = npt.NDArray[np.float64]

FEW_TESTS = 5  # test samples below which a client's own figure is coarse

_NAMES = {"auc": "AUC", "f1": "F1", "macro_f1": "macro F1", "mae": "MAE", "mse": "MSE", "r2": "R²", "rmse": "RMSE"}
_NAMES_OF_ONE = {"classes": "class"}
_PLAIN = (1e-4, 1e9)  # sizes of numbers that are written out
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Metric:
    """A metric, for people.

    Attributes:
        key: its name in files (``rmse``).
        percent: whether it is a share, written in percent.
    """

    key: str
    percent: bool

    @property
    def name(self) -> str:
        """In a sentence: ``accuracy``, ``RMSE``."""
        return _NAMES.get(self.key, self.key.replace("_", " "))

    @property
    def title(self) -> str:
        """The name where a heading begins with it."""
        return f"{self.name[:1].upper()}{self.name[1:]}"

    @property
    def sign(self) -> str:
        """What follows the name of a column of bare numbers: `` %`` or nothing."""
        return " %" if self.percent else ""

    def show(self, value: float | None) -> str:
        """A value with its unit; a dash where there is none."""
        return "–" if value is None else f"{self.bare(value)}{self.sign}"

    def bound(self, off: float) -> str:
        """How far off a figure can be, rounded up to thousandths."""
        return self.show(math.ceil(1000 * off) / 1000) if self.percent else f"{math.ceil(1000 * off) / 1000:g}"

    def bare(self, value: float | None) -> str:
        """A value without its unit, for a column that names it."""
        if value is None:
            return "–"
        return in_percent(value) if self.percent else in_figures(value)

    def spread(self, value: Mapping[str, float | None], raised: bool = False) -> str:
        """A ``mean`` with its ``std``, without the unit; both have as many decimals.

        Args:
            value: both, as far as there are such.
            raised: in powers of ten, whatever the size.
        """
        mean, std = value["mean"], value["std"]
        if mean is None or (self.percent and std is None):
            return self.bare(mean)
        if self.percent:
            return f"{in_percent(mean)} ± {in_percent(std or 0.0)}"
        if std is None:
            return in_figures(mean, raised=raised)
        larger = max(abs(mean), std)
        return " ± ".join(in_figures(number, 3, like=larger, raised=raised) for number in (mean, std))

    def spreads(self, values: Sequence[Mapping[str, float | None]]) -> list[str]:
        """:meth:`spread` of a column's values, all in one notation: in powers of ten if one of them needs that."""
        sizes = [max(abs(v["mean"] or 0.0), v["std"] or 0.0) for v in values]
        raised = not self.percent and any(size and not _PLAIN[0] <= size < _PLAIN[1] for size in sizes)
        return [self.spread(value, raised) for value in values]

    def changes(self, values: Sequence[float | None]) -> list[str]:
        """Differences with their signs, in percentage points or in the metric's own unit, all with as many decimals."""
        larger = max((abs(value) for value in values if value is not None), default=0.0)
        return [
            "–"
            if value is None
            else f"{100 * value:+.1f}"
            if self.percent
            else in_figures(value, 3, like=larger, sign="+")
            for value in values
        ]


@dataclass(frozen=True)
class Headline(Metric):
    """A task's headline metric, by which models are compared.

    Attributes:
        higher_is_better: whether more of it is better.
        counted: what the outputs are (``classes``, ``targets``).
        divides: whether a sample is of some of the outputs alone.
    """

    higher_is_better: bool
    counted: str
    divides: bool

    @classmethod
    def of(cls, about: Mapping[str, Any] | Task) -> Headline:
        """Of a task, or of what ``summary.json`` or ``comparison.json`` holds (classification, where it names no task).

        Raises:
            ConfigError: it names a task that nobody has defined.
        """
        task: Task | type[Task]
        if isinstance(about, Task):
            task, metric = about, about.metric
        else:
            name = str(about.get("task", "classification"))
            if name not in tasks:
                raise ConfigError(f"the task '{name}' is not defined here; known are {', '.join(tasks)}")
            task = tasks[name]
            metric = str(about.get("metric", task.metric))
        if metric == task.metric:
            return cls(metric, task.percent, task.higher_is_better, task.counted, task.divides)
        rank = {} if isinstance(about, Task) else about.get("rank_by") or {}
        up = bool(rank["higher_is_better"]) if rank.get("metric") == metric else not less_is_better(metric)
        return cls(metric, is_share(metric), up, task.counted, task.divides)

    @classmethod
    def ranking(cls, summary: Mapping[str, Any]) -> Headline:
        """The metric by which a run's user ranks: the task's headline unless ``rank_by`` says otherwise.

        Args:
            summary: of a run.
        """
        rank = summary.get("rank_by")
        return cls.of(summary if rank is None else {**summary, "metric": rank["metric"]})

    # -- names in files -----------------------------------------------------------------------------------------

    @property
    def personal(self) -> str:
        """The key of each client's own model."""
        return f"personal_{self.key}"

    @property
    def shared(self) -> str:
        """The key of the one global model."""
        return f"global_{self.key}"

    @property
    def worst_tenth(self) -> str:
        """The percentile beyond which the worst tenth of the clients lies: ``p10`` or ``p90``."""
        return "p10" if self.higher_is_better else "p90"

    @property
    def worst(self) -> str:
        """The worst client's: ``min`` or ``max``."""
        return "min" if self.higher_is_better else "max"

    def others(self, about: Mapping[str, Any]) -> list[Metric]:
        """The task's other metrics, as ``metrics`` of a summary or of a comparison's method names them."""
        names = [name for name in about.get("metrics") or {} if name != self.key]
        return [Metric(name, is_share(name)) for name in names]

    # -- words --------------------------------------------------------------------------------------------------

    @property
    def better(self) -> str:
        """``higher`` or ``lower``."""
        return "higher" if self.higher_is_better else "lower"

    @property
    def percentile(self) -> str:
        """What :attr:`worst_tenth` is, in words."""
        return f"{self.worst_tenth[1:]}th percentile"

    @property
    def counted_one(self) -> str:
        """One of the outputs: ``class``, ``target``."""
        return _NAMES_OF_ONE.get(self.counted, self.counted.removesuffix("s"))

    # -- order --------------------------------------------------------------------------------------------------

    def from_worst(self, value: float) -> float:
        """A key that sorts values from the worst to the best."""
        return value if self.higher_is_better else -value

    def best(self, values: Iterable[float | None]) -> float | None:
        """The best of some values; None if there are none."""
        return max((value for value in values if value is not None), key=self.from_worst, default=None)

    def few_tests(self, values: Figures, tests: Figures, least: int = 1) -> str:
        """A sentence on clients with few test samples, if one of the worst tenth is among them; else nothing.

        Args:
            values: [C] each client's; NaN where there is none.
            tests: [C] its test samples; NaN where they are not known.
            least: test samples of a client of whom the worst tenth is told.
        """
        told = tests >= least
        values, tests = values[told], tests[told]
        few, known = int((tests < FEW_TESTS).sum()), ~np.isnan(values)
        from_worst = np.lexsort((tests[known], values[known] * (1 if self.higher_is_better else -1)))
        last = int((tests[known][from_worst[: math.ceil(known.sum() / 10)]] < FEW_TESTS).sum())
        if not last:
            return ""
        have = f"{'has' if few == 1 else 'have'} fewer than {FEW_TESTS} test samples"
        return (
            f"{few:,} of {len(tests):,} clients {have}, {last:,} of them in the worst tenth "
            f"(--worst-min-rows {FEW_TESTS} leaves them out of it)."
        )


def in_percent(share: float) -> str:
    """A share as a bare percentage. Means of the same numbers in another order, which differ in their last bits, read
    alike, also where they end in a half.
    """
    return f"{round(100 * share, 9):.1f}"


def in_figures(
    value: float, figures: int = 4, *, like: float | None = None, sign: str = "", raised: bool = False
) -> str:
    """A number in a few significant figures, written out unless it is very small or large.

    Args:
        value: the number.
        figures: how many of them.
        like: with as many decimals as this number has.
        sign: ``+`` to write the sign of positive ones, too.
        raised: in powers of ten, whatever its size.

    >>> in_figures(0.31274), in_figures(123456.7), in_figures(0.00213, like=0.31274), in_figures(1.5e-7)
    ('0.3127', '123,457', '0.0021', '1.500·10⁻⁷')
    """
    size = abs(value if like is None else like)
    if raised or (size and not _PLAIN[0] <= size < _PLAIN[1]):
        digits, exponent = f"{value:{sign}.{figures - 1}e}".split("e")
        return f"{digits}·10{str(int(exponent)).translate(_RAISED)}"
    decimals = max(0, figures - 1 - math.floor(math.log10(size))) if size else figures - 1
    return f"{value:{sign},.{decimals}f}"

"""What RoLoRA's experiments report of their measurements: cells, costs, curves and what is claimed of all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from commonground.papers.claims import judge
from commonground.papers.figures import Curve, Figure, mean_curve
from commonground.papers.outcome import Cell, Outcome
from commonground.papers.rolora.protocol import Found
from commonground.statistics import Values

__all__ = ["Conditions", "cell", "cost_row", "curves", "paired"]


EXACT = 1e-6  # aggregation error of an exact average in single precision


def cell(condition: str, name: str, paper: float | None, measured: Found) -> Cell:
    """A table's number with its interval over seeds, in percent."""
    return Cell.over_seeds(condition, name, paper, measured.accuracies)


def cost_row(condition: str, name: str, measured: Found) -> dict[str, Any]:
    """What stands beside an accuracy: how exact averages were, bytes, and the rate used."""
    runs = measured.details
    errors = [e for run in runs for e in run.error]
    return {
        "condition": condition,
        "method": name,
        "accuracy (%)": round(float(measured.accuracies.mean()), 2),
        "learning rate": measured.rate,
        "aggregation error, mean": float(np.mean(errors)) if errors else 0.0,
        "aggregation error, largest": max(errors, default=0.0),
        "bytes up per client and round": round(float(np.mean([r.bytes_up for r in runs]))),
        "of these factors": round(float(np.mean([r.factors_up for r in runs]))),
        "rounds": measured.results[0].rounds[-1],
        "seconds": round(float(np.mean([r.seconds for r in runs])), 1),
    }


def curves(measured: Mapping[str, Found], x: Literal["rounds", "uploaded"] = "rounds") -> Figure:
    """Test accuracy of several methods, over rounds or over what all clients have sent."""
    lines: dict[str, Curve] = {}
    for name, one in measured.items():
        places = one.results[0].rounds if x == "rounds" else [b / 1e6 for b in one.details[0].uploaded]
        lines[name] = mean_curve([float(p) for p in places], one.curves)
    label = "round" if x == "rounds" else "uploads of all clients (MB)"
    return Figure(label, "test accuracy", lines, percent=True, reads="Means over seeds with 95 % intervals.")


def paired(one: Found, other: Found) -> Values:
    """Differences of two measurements in percentage points, one per seed."""
    return one.accuracies - other.accuracies


@dataclass
class Conditions:
    """Measurements by condition and method, with what the experiments report of all of them.

    Attributes:
        measured: what :func:`measure` gave.
        source: of the paper, for claims.
        outcome: what is added to.
    """

    measured: dict[tuple[str, str], Found]
    source: str
    outcome: Outcome = field(default_factory=Outcome)

    def of(self, condition: str, name: str) -> Found | None:
        """One measurement, if it was asked for."""
        return self.measured.get((condition, name))

    def costs(self, title: str = "accuracy, exactness and bytes") -> None:
        """The table of everything."""
        self.outcome.add_table(title, [cost_row(*key, one) for key, one in self.measured.items()])

    def exactness(self, share: float = 0.5) -> None:
        """Judge the averages: exact for RoLoRA and FFA-LoRA, not for LoRA; and what they send beside LoRA.

        Args:
            share: of LoRA's bytes that is claimed: half with equal layers, all of it where the budget is equal.
        """
        for name in ("RoLoRA", "FFA-LoRA"):
            errors = self._errors(name)
            if errors:
                judge(
                    self.outcome,
                    f"{name}'s averages are exact: largest aggregation error of any round (below {EXACT:g})",
                    "Section 4, equations (3) and (4)",
                    "0",
                    [max(e) for e in errors],
                    "below",
                    EXACT,
                )
        if errors := self._errors("LoRA"):
            judge(
                self.outcome,
                "LoRA's averages are not: its mean aggregation error",
                "equations (1) and (2)",
                "above 0",
                [float(np.mean(e)) for e in errors],
                "above",
                EXACT,
            )
        for name in ("RoLoRA", "FFA-LoRA"):
            ratios = self._ratios(name)
            if ratios:
                what = "half of" if share == 0.5 else "as much as" if share == 1 else f"{share:g} of"
                judge(
                    self.outcome,
                    f"{name} sends {what} LoRA's factors (share of its bytes up without the task head, ± 1 %)",
                    "Section 6.1",
                    share,
                    ratios,
                    "within",
                    share,
                    tolerance=0.01 * share,
                )

    def _errors(self, name: str) -> list[list[float]]:
        """Aggregation errors by seed, over all conditions."""
        runs = [one.details for (_, method), one in self.measured.items() if method == name]
        by_seed = [[e for arm in runs for e in arm[k].error] for k in range(len(runs[0]))] if runs else []
        return by_seed if all(by_seed) else []

    def _ratios(self, name: str) -> list[float]:
        found: list[list[float]] = []
        for (condition, method), one in self.measured.items():
            lora = self.of(condition, "LoRA")
            if method == name and lora is not None:
                pairs = zip(one.details, lora.details, strict=True)
                # An odd number of rounds has one more of RoLoRA's B; layers whose sides differ make that visible.
                found.append([a.factors_up / b.factors_up for a, b in pairs])
        return [float(np.mean(seed)) for seed in zip(*found, strict=True)]

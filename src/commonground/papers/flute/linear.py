"""What FLUTE's Figures 1 and 3 share: FLUTE, FedRep and FedRep(RI) on the same problems, and how they are judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from commonground.errors import ConfigError, DivergenceError
from commonground.papers.claims import claim
from commonground.papers.experiment import Request, Settings
from commonground.papers.figures import Curve, Figure, mean_curve, median_curve
from commonground.papers.outcome import Claim, Outcome
from commonground.statistics import Values, as_array, median_interval, student_interval
from commonground.theory.checks import at_least, positive
from commonground.theory.flute.fedrep import fedrep, moment_start
from commonground.theory.flute.method import Convention, flute
from commonground.theory.flute.problem import Generator, models, random_start, sample_problem
from commonground.theory.flute.references import local_least_squares, mean_client_error, rank_k_floor
from commonground.theory.flute.trajectory import Trajectory

__all__ = ["ComparisonSettings", "compare_all", "report_comparison", "short", "thinned"]

SEEDS = 20


class ComparisonSettings(Settings):
    """The numbers of Figures 1 and 3 (§7.1, App. C.1)."""

    generator: Generator = "spectrum"
    d: int = 10
    ks: tuple[int, ...] = (2, 4, 6, 8)
    clients: tuple[int, ...] = (15, 30)
    samples: tuple[int, ...] = (12, 20)
    noise_variance: float = 0.3
    step: float = 0.03
    alpha: float | None = None  # 1/(10d)
    rounds: int = 500
    every: int = 5  # rounds between two points of a curve
    horizons: tuple[int, ...] = (10, 50, 100, 200)  # rounds to judge at, beside the last
    within: float = 0.05
    fedrep_steps: tuple[float, ...] = (0.03, 0.1)  # tried beside `step`
    sum_or_mean: Literal["sum", "mean", "mean-B"] = "sum"
    loss: Literal["square", "half-square"] = "square"

    def check(self) -> None:
        """Refuse settings that make no sense before anything is run.

        Raises:
            ConfigError: naming the setting.
        """
        for name, values in (("ks", self.ks), ("clients", self.clients), ("samples", self.samples)):
            if not values or len(set(values)) < len(values):
                raise ConfigError(f"{name} is {list(values)}; it must name at least one value, each once")
        at_least("d", self.d, 1, "inputs")
        for clients in self.clients:
            at_least("clients", clients, 1)
            for k in self.ks:
                at_least("k", k, 1, "columns of the representation B")
                if k > min(self.d, clients):
                    raise ConfigError(f"k is {k}; it must be at most min(d, M) = {min(self.d, clients)}")
        for samples in self.samples:
            at_least("samples", samples, 1, "per client")
        at_least("noise_variance", self.noise_variance, 0)
        at_least("rounds", self.rounds, 1)
        at_least("every", self.every, 1)
        at_least("within", self.within, 0)
        for step in (self.step, *self.fedrep_steps):
            positive("a step size", step)
        positive("alpha", self.start_deviation)

    @property
    def judged(self) -> list[int]:
        """The rounds at which methods are compared: the horizons before the last round, and the last."""
        return [*sorted(h for h in set(self.horizons) if 0 < h < self.rounds), self.rounds]

    @property
    def start_deviation(self) -> float:
        """α of the random start."""
        return 1 / (10 * self.d) if self.alpha is None else self.alpha


@dataclass(frozen=True)
class Cell:
    """One (M, N, k): every method on the same problems, of S seeds."""

    clients: int
    samples: int
    k: int
    flute: Trajectory
    fedrep: Trajectory
    random: Trajectory  # FedRep(RI)
    best: Trajectory  # FedRep with the step of least training loss
    best_step: float
    floor: Values
    local: Values
    zero: Values  # mean ‖φ_i‖

    @property
    def name(self) -> str:
        """How it is named in texts."""
        return f"M = {self.clients}, N = {self.samples}, k = {self.k}"

    @property
    def rounds(self) -> list[int]:
        """The rounds recorded."""
        return self.flute.rounds

    def gain(self, other: Trajectory, round: int | None = None) -> Values:
        """How far FLUTE's error lies below another method's after a round (by default the last): [S]."""
        at = -1 if round is None else _index(self.rounds, round)
        return as_array(other.error[:, at] - self.flute.error[:, at])

    def rounds_saved(self, other: Trajectory, within: float) -> Values:
        """How many rounds earlier FLUTE comes within a share of the lower of both methods' last errors: [S]."""
        target = (1 + within) * torch.minimum(self.flute.error[:, -1], other.error[:, -1])
        return _first(other, target) - _first(self.flute, target)


def compare_all(request: Request, settings: ComparisonSettings) -> list[Cell]:
    """Run every (M, N, k) for the request's seeds.

    Raises:
        ConfigError: settings make no sense.
        DivergenceError: a method leaves every range, with the cell it did so in.
    """
    settings.check()
    seeds = request.seed_range(SEEDS)
    convention = Convention(settings.sum_or_mean, settings.loss)
    steps = tuple(dict.fromkeys((settings.step, *settings.fedrep_steps)))
    grid = [(m, n, k) for m in settings.clients for n in settings.samples for k in settings.ks]
    cells = []
    for m, n, k in request.progress(grid, "FLUTE and FedRep", len(grid)):
        phi = models(settings.generator, seeds, settings.d, m, request.device)
        problem = sample_problem(seeds, phi, n, settings.noise_variance)
        start = random_start(problem, k, settings.start_deviation)
        try:
            path = flute(problem, k, settings.rounds, settings.step, start, convention=convention, every=settings.every)
            moments = moment_start(problem, k)
            tried = [fedrep(problem, k, settings.rounds, step, moments, every=settings.every) for step in steps]
            random = fedrep(problem, k, settings.rounds, settings.step, start[0], every=settings.every)
        except DivergenceError as error:
            raise DivergenceError(f"with M = {m}, N = {n}, k = {k}: {error}") from None
        losses = [float(t.loss[:, -1].mean()) for t in tried]
        best = losses.index(min(losses))
        local = mean_client_error(local_least_squares(problem), phi)
        references = (rank_k_floor(phi, k), local, mean_client_error(torch.zeros_like(phi), phi))
        cells.append(Cell(m, n, k, path, tried[0], random, tried[best], steps[best], *map(as_array, references)))
    return cells


def report_comparison(cells: Sequence[Cell], settings: ComparisonSettings, source: str) -> Outcome:
    """Figures, tables and claims about all cells."""
    outcome = Outcome(settings=settings.model_dump(mode="json"))
    _figures(outcome, cells, settings)
    outcome.add_table("error after the last round", [_row(cell) for cell in cells])
    outcome.add_table(
        "FedRep's error minus FLUTE's after some rounds (positive: FLUTE is ahead)",
        [_horizon_row(cell, settings) for cell in cells],
    )
    outcome.claims = _claims(cells, settings, source)
    local = sum(_verdict(cell.local - _last(cell.flute)) == "Local least squares" for cell in cells)
    above = sum(_verdict(cell.local - _last(cell.flute)) == "FLUTE" for cell in cells)
    convention = f"{settings.sum_or_mean} over clients, {settings.loss} loss"
    outcome.notes += [
        f"Local least squares (every client alone, no rank limit) has the lower error in {local} of {len(cells)} "
        f"settings, FLUTE in {above}, judged by the median of the paired difference; a rank-k model cannot go below "
        "about the rank-k floor, however many samples there are. Where N is close to d, the mean of Local least "
        "squares is heavy-tailed: its median is drawn.",
        f"FLUTE: eqs. (5) and (6) with γ1 = 1/4, γ2 = 1/8, {convention}, η_l = η_r = {settings.step:g}, "
        f"α = {settings.start_deviation:g}. Samples are drawn once and used in every round.",
        "The paper does not say how it ran FedRep. Here: Collins et al.'s Algorithm 2 with all clients, the mean over "
        f"clients, the same step η = {settings.step:g} on the same loss, from the method-of-moments start; FedRep(RI) "
        "from the QR factor of FLUTE's random B. FedRep's best step is the one of least training loss at the end "
        f"among {', '.join(f'{s:g}' for s in dict.fromkeys((settings.step, *settings.fedrep_steps)))}.",
        "The paper does not say how many rounds it ran, nor which are its first few; claims are judged after "
        f"{settings.rounds}, with earlier rounds in a table. With γ1 = 2γ2 FLUTE and FedRep have the same stationary "
        "points, so that differences are of speed and of what a finite run has fitted by then; they shrink where both "
        "have converged.",
        'A claim "above" holds if the 95 % interval of the paired difference lies above 0, fails if below, is open '
        "if it includes 0. Rounds saved: how many rounds earlier FLUTE comes within "
        f"{100 * settings.within:g} % of the lower of both last errors (a method that does not counts the last round "
        f"plus {settings.every}); medians over seeds.",
    ]
    if settings.generator == "spectrum" and len(settings.clients) > 1:
        outcome.notes.append(
            "With this generator Φ's singular values do not depend on M, so that the φ_i themselves shrink like 1/√M "
            "and with them every method's error and the floor: beside the error we judge it as a share of the mean "
            "‖φ_i‖."
        )
    return outcome


def _claims(cells: Sequence[Cell], settings: ComparisonSettings, source: str) -> list[Claim]:
    last = f"after {settings.rounds} rounds"
    horizons = settings.judged
    claims = [
        claim(
            f"FLUTE outperforms FedRep, {cell.name}: FedRep's error minus FLUTE's {last}, above 0",
            source,
            "FLUTE eventually outperforms FedRep",
            cell.gain(cell.fedrep),
            "above",
        )
        for cell in cells
    ]
    claims += [
        claim(
            f"FLUTE outperforms FedRep(RI) in fewer rounds, {cell.name}: rounds saved (median), above 0",
            source,
            "in much fewer iterations",
            cell.rounds_saved(cell.random, settings.within),
            "above",
            center="median",
        )
        for cell in cells
    ]
    for m, n in [(m, n) for m in settings.clients for n in settings.samples]:
        group = [c for c in cells if (c.clients, c.samples) == (m, n)]
        over = f"M = {m}, N = {n}, mean over k"
        claims += [
            claim(
                f"FedRep is ahead at first, {over}: FLUTE's error minus FedRep's after {early} rounds, above 0",
                source,
                "FedRep converges to a relatively small error within the few initial epochs",
                _mean([-cell.gain(cell.fedrep, early) for cell in group]),
                "above",
            )
            for early in horizons[:1]
            if len(horizons) > 1
        ]
        claims += [
            claim(
                f"FLUTE outperforms FedRep, {over}: FedRep's error minus FLUTE's after {round_} rounds, above 0",
                source,
                "FLUTE eventually outperforms FedRep",
                _mean([cell.gain(cell.fedrep, round_) for cell in group]),
                "above",
            )
            for round_ in horizons[1:]
        ]
        claims.append(
            claim(
                f"FLUTE outperforms FedRep with its best step, {over}: FedRep's error minus FLUTE's {last}, above 0",
                source,
                None,
                _mean([cell.gain(cell.best) for cell in group]),
                "above",
            )
        )
        if len(group) > 1:
            few, many = min(group, key=lambda c: c.k), max(group, key=lambda c: c.k)
            claims.append(
                claim(
                    f"The gain over FedRep is larger for small k, M = {m}, N = {n}: gain at k = {few.k} minus gain at "
                    f"k = {many.k} {last}, above 0",
                    source,
                    "more pronounced where k is relatively small",
                    few.gain(few.fedrep) - many.gain(many.fedrep),
                    "above",
                )
            )
            claims.append(
                claim(
                    f"The gap between the convergence rates narrows with k, M = {m}, N = {n}: rounds saved against "
                    f"FedRep at k = {few.k} minus those at k = {many.k} (median), above 0",
                    source,
                    "narrows as k increases",
                    few.rounds_saved(few.fedrep, settings.within) - many.rounds_saved(many.fedrep, settings.within),
                    "above",
                    center="median",
                )
            )
    return claims + _claims_about_clients(cells, settings, last)


def _claims_about_clients(cells: Sequence[Cell], settings: ComparisonSettings, last: str) -> list[Claim]:
    few, many = min(settings.clients), max(settings.clients)
    claims: list[Claim] = []
    if few == many:
        return claims
    for n in settings.samples:
        for relative in (False, True):

            def error(m: int, n: int = n, relative: bool = relative) -> Values:
                chosen = [c for c in cells if (c.clients, c.samples) == (m, n)]
                return _mean([_last(c.flute) / (c.zero if relative else 1.0) for c in chosen])

            what = "FLUTE's error as a share of the mean ‖φ_i‖" if relative else "FLUTE's error"
            claims.append(
                claim(
                    f"The error falls with M, N = {n}, mean over k: {what} at M = {few} minus that at M = {many} "
                    f"{last}, above 0",
                    "Liu, Shen and Yang 2024, §7.1 and App. C.1",
                    None if relative else "the average error decreases when M increases",
                    error(few) - error(many),
                    "above",
                )
            )
    return claims


def _figures(outcome: Outcome, cells: Sequence[Cell], settings: ComparisonSettings) -> None:
    error = "(1/M) Σ ‖Bw_i − φ_i‖"
    for cell in cells:
        paths = {"FLUTE": cell.flute, "FedRep": cell.fedrep, "FedRep(RI)": cell.random}
        shown = thinned(cell.rounds)
        x = [cell.rounds[i] for i in shown]
        lines = {name: short(mean_curve(x, as_array(path.error)[:, shown])) for name, path in paths.items()}
        ends = [0, cell.rounds[-1]]
        lines["rank-k floor"] = short(mean_curve(ends, np.repeat(cell.floor[:, None], 2, axis=1)))
        lines["Local least squares (median)"] = short(median_curve(ends, np.repeat(cell.local[:, None], 2, axis=1)))
        outcome.figures[f"error by round, {cell.name}"] = Figure("round", error, lines)
    for m in settings.clients:
        for n in settings.samples:
            group = sorted((c for c in cells if (c.clients, c.samples) == (m, n)), key=lambda c: c.k)
            ks = [c.k for c in group]
            finals = {
                "FLUTE": [_last(c.flute) for c in group],
                "FedRep": [_last(c.fedrep) for c in group],
                "FedRep(RI)": [_last(c.random) for c in group],
                "rank-k floor": [c.floor for c in group],
            }
            lines = {name: mean_curve(ks, np.stack(values, axis=1)) for name, values in finals.items()}
            lines["Local least squares (median)"] = median_curve(ks, np.stack([c.local for c in group], axis=1))
            outcome.figures[f"error after {settings.rounds} rounds, M = {m}, N = {n}"] = Figure("k", error, lines)


def thinned(rounds: Sequence[int], most: int = 20) -> list[int]:
    """Indices of the rounds a curve is drawn through: close together at first, where it bends, and always the last."""
    last = len(rounds) - 1
    return sorted({0, last, *(round(v) for v in np.geomspace(1, max(last, 1), most) if v <= last)})


def short(curve: Curve) -> Curve:
    """A curve's numbers to five significant digits, so that its files stay small."""
    parts = (
        None if part is None else [float(f"{v:.5g}") for v in part] for part in (curve.mean, curve.low, curve.high)
    )
    return Curve(curve.x, *parts)  # type: ignore[arg-type]


def _row(cell: Cell) -> dict[str, Any]:
    row: dict[str, Any] = {"M": cell.clients, "N": cell.samples, "k": cell.k, "rank-k floor": _rounded(cell.floor)}
    for name, path in (("FLUTE", cell.flute), ("FedRep", cell.fedrep), ("FedRep(RI)", cell.random)):
        mean, low, high = (float(v) for v in student_interval(_last(path)))
        row |= {name: round(mean, 4), f"{name} low": round(low, 4), f"{name} high": round(high, 4)}
    lowest = cell.flute.error.mean(dim=0)
    return row | {
        "FedRep, best step": _rounded(_last(cell.best)),
        "best step": cell.best_step,
        "Local least squares": _rounded(cell.local),
        "Local least squares, median": round(float(np.median(cell.local)), 4),
        "lower of FLUTE and Local": _verdict(cell.local - _last(cell.flute)),
        "FLUTE's lowest error": round(float(lowest.min()), 4),
        "in round": cell.rounds[int(lowest.argmin())],
    }


def _horizon_row(cell: Cell, settings: ComparisonSettings) -> dict[str, Any]:
    row: dict[str, Any] = {"M": cell.clients, "N": cell.samples, "k": cell.k}
    for round_ in settings.judged:
        mean, low, high = (float(v) for v in student_interval(cell.gain(cell.fedrep, round_)))
        row[f"round {round_}"] = round(mean, 4)
        row[f"round {round_} ahead"] = "FLUTE" if low > 0 else "FedRep" if high < 0 else "open"
    return row


def _verdict(local_minus_flute: Values) -> str:
    _, low, high = (float(v) for v in median_interval(local_minus_flute))
    return "FLUTE" if low > 0 else "Local least squares" if high < 0 else "open"


def _index(rounds: Sequence[int], round: int) -> int:
    """Index of the first recorded round not before a round."""
    return next(i for i, r in enumerate(rounds) if r >= round)


def _first(path: Trajectory, target: torch.Tensor) -> Values:
    """First recorded round with an error of at most ``target``, or one recording step after the last: [S]."""
    reached = path.error <= target[:, None]
    rounds = torch.tensor(path.rounds, dtype=torch.float64, device=target.device)
    beyond = rounds[-1] + (rounds[1] - rounds[0] if len(rounds) > 1 else 1)
    return as_array(torch.where(reached.any(dim=1), rounds[reached.int().argmax(dim=1)], beyond))


def _last(path: Trajectory) -> Values:
    return as_array(path.error[:, -1])


def _mean(per_cell: Sequence[Values]) -> Values:
    """Mean over cells: [S]."""
    values: Values = np.mean(per_cell, axis=0)
    return values


def _rounded(values: Values) -> float:
    return round(float(values.mean()), 4)

"""How FLUTE's Figures 1 and 3 are judged, drawn and told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from commonground.papers.claims import claim, tally
from commonground.papers.figures import Curve, Figure, mean_curve, median_curve
from commonground.papers.flute.linear import EQUAL, ComparisonSettings, ProblemCell
from commonground.papers.outcome import Claim, Outcome
from commonground.statistics import Values, as_array, median_interval, student_interval
from commonground.theory.flute.trajectory import Trajectory

__all__ = ["report_comparison", "short", "thinned"]

READS = (
    "Lines are means over seeds, bands their 95 % intervals. One number η does not mean one speed: FedRep's gradient "
    "here carries FLUTE's factor 2 (its own paper's loss is halved, so that its η = 0.06 is this 0.03), is averaged "
    "over clients where FLUTE's is added, and acts on an orthonormal B; at FLUTE's effective step both contract alike "
    "per round near the solution."
)


def report_comparison(cells: Sequence[ProblemCell], settings: ComparisonSettings, source: str) -> Outcome:
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
    judged = _by_cell(cells, settings)
    outcome.add_table("where FLUTE is ahead", _cell_rows(cells, judged))
    each, fewer = judged.values()
    outcome.notes += [
        f"Settings in which FLUTE outperforms FedRep after {settings.rounds} rounds: {_where(cells, each)}. In which "
        f"it needs fewer rounds than FedRep(RI): {_where(cells, fewer)}. Single settings are in a table and are no "
        "claims: near 0 some change their verdict with the seeds; what the seeds agree on are the counts and the means "
        "over k.",
        f"Local least squares (every client alone, no rank limit) has the lower error in {local} of {len(cells)} "
        f"settings, FLUTE in {above}, judged by the median of the paired difference; a rank-k model cannot go below "
        "about the rank-k floor, however many samples there are. Where N is close to d, the mean of Local least "
        "squares is heavy-tailed: its median is drawn.",
        f"FLUTE: eqs. (5) and (6) with γ1 = {settings.gamma1:g}, γ2 = {settings.gamma2:g}, {convention}, "
        f"η_l = η_r = {settings.step:g}, α = {settings.start_deviation:g}. Samples are drawn once and used in every "
        "round.",
        "The paper does not say how it ran FedRep. Here: Collins et al.'s Algorithm 2 with all clients, the mean over "
        f"clients, the same step η = {settings.step:g} on the same loss, from the method-of-moments start; FedRep(RI) "
        "from the QR factor of FLUTE's random B. FedRep's best step is the one of least training loss at the end "
        f"among {', '.join(f'{s:g}' for s in dict.fromkeys((settings.step, *settings.fedrep_steps)))}. FLUTE's "
        "effective step is M/(λ_k + λ_(k+1)) times FLUTE's η, with which both contract alike per round near Φ_k with "
        "known Φ.",
        "The paper does not say how many rounds it ran, nor which are its first few; claims are judged after "
        f"{settings.rounds}, with earlier rounds in a table. With γ1 = 2γ2 FLUTE and FedRep have the same stationary "
        "points, so that differences are of speed and of what a finite run has fitted by then; they shrink where both "
        "have converged.",
        'A claim "above" holds if the 95 % interval of the paired difference lies above 0, fails if below, is open '
        "if it includes 0. Rounds saved: how many rounds earlier FLUTE comes within "
        f"{100 * settings.within:g} % of the lower of both last errors (a method that does not counts the last round "
        f"plus {min(settings.recorded_every, settings.rounds)}); medians over seeds.",
    ]
    gone = [f"{int((~cell.finished).sum())} at {cell.name}" for cell in cells if not cell.finished.all()]
    if gone:
        outcome.notes.append(
            f"A method diverges with some seeds: {'; '.join(gone)}. Figures and the table of errors leave these out; "
            "in claims they count with the last error within range, 10¹² times what it should be."
        )
    if settings.generator == "spectrum" and len(settings.clients) > 1:
        outcome.notes.append(
            "With this generator Φ's singular values do not depend on M, so that the φ_i themselves shrink like 1/√M "
            "and with them every method's error and the floor: beside the error we judge it as a share of the mean "
            "‖φ_i‖."
        )
    return outcome


def _where(cells: Sequence[ProblemCell], claims: Sequence[Claim]) -> str:
    """How many cells' claims hold, and in which rows and columns of the grid."""
    held = [cell for cell, one in zip(cells, claims, strict=True) if one.holds]
    if not 0 < len(held) < len(cells):
        return tally(claims)
    by_n, by_k = Counter(cell.samples for cell in held), Counter(cell.k for cell in held)
    parts = [f"{count} with N = {n}" for n, count in sorted(by_n.items())]
    parts += [f"{count} with k = {k}" for k, count in sorted(by_k.items())]
    return f"{tally(claims)} (those that hold: {', '.join(parts)})"


def _by_cell(cells: Sequence[ProblemCell], settings: ComparisonSettings) -> dict[str, list[Claim]]:
    """The paper's two statements judged in every cell: for the table and for counts, since single ones are near 0."""
    gains = [claim(cell.name, "", None, cell.gain(cell.fedrep), "above") for cell in cells]
    saved = [
        claim(cell.name, "", None, cell.rounds_saved(cell.random, settings.within), "above", center="median")
        for cell in cells
    ]
    return {
        f"FedRep's error minus FLUTE's after {settings.rounds} rounds": gains,
        "rounds saved against FedRep(RI) (median)": saved,
    }


def _cell_rows(cells: Sequence[ProblemCell], judged: dict[str, list[Claim]]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [{"M": cell.clients, "N": cell.samples, "k": cell.k} for cell in cells]
    for what, claims in judged.items():
        for row, one in zip(rows, claims, strict=True):
            row |= {what: round(one.measured, 4), f"{what}, low": round(one.low, 4)}
            row |= {f"{what}, high": round(one.high, 4)}
            row[f"{what}, FLUTE is ahead"] = {True: "yes", False: "no", None: "open"}[one.holds]
    return rows


def _claims(cells: Sequence[ProblemCell], settings: ComparisonSettings, source: str) -> list[Claim]:
    last = f"after {settings.rounds} rounds"
    horizons = settings.judged
    claims: list[Claim] = []
    for m, n in [(m, n) for m in settings.clients for n in settings.samples]:
        group = [c for c in cells if (c.clients, c.samples) == (m, n)]
        over = f"M = {m}, N = {n}, mean over k"
        claims.append(
            claim(
                f"FLUTE outperforms FedRep(RI) in fewer rounds, {over}: rounds saved (median), above 0",
                source,
                "in much fewer iterations",
                _mean([cell.rounds_saved(cell.random, settings.within) for cell in group]),
                "above",
                center="median",
            )
        )
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
            for round_ in horizons[1:] or horizons
        ]
        claims += [
            claim(
                f"FLUTE outperforms FedRep with {which}, {over}: FedRep's error minus FLUTE's {last}, above 0",
                source,
                None,
                _mean(gains),
                "above",
            )
            for which, gains in (
                ("its best step", [cell.gain(cell.best) for cell in group]),
                ("FLUTE's effective step", [cell.gain(cell.equal) for cell in group]),
            )
        ]
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


def _claims_about_clients(cells: Sequence[ProblemCell], settings: ComparisonSettings, last: str) -> list[Claim]:
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


def _figures(outcome: Outcome, cells: Sequence[ProblemCell], settings: ComparisonSettings) -> None:
    error = "(1/M) Σ ‖Bw_i − φ_i‖"
    for cell in cells:
        shown, kept = thinned(cell.rounds), cell.finished
        x = [cell.rounds[i] for i in shown]
        errors = {name: as_array(path.error)[kept][:, shown] for name, path in cell.paths.items()}
        lines = {name: short(mean_curve(x, values)) for name, values in errors.items()}
        ends = [0, cell.rounds[-1]]
        lines["rank-k floor"] = short(mean_curve(ends, np.repeat(cell.floor[:, None], 2, axis=1)))
        lines["Local least squares (median)"] = short(median_curve(ends, np.repeat(cell.local[:, None], 2, axis=1)))
        outcome.figures[f"error by round, {cell.name}"] = Figure("round", error, lines, reads=READS)
    for m in settings.clients:
        for n in settings.samples:
            group = sorted((c for c in cells if (c.clients, c.samples) == (m, n)), key=lambda c: c.k)
            ks = [c.k for c in group]
            finals = {
                "FLUTE": [_last(c.flute) for c in group],
                "FedRep": [_last(c.fedrep) for c in group],
                EQUAL: [_last(c.equal) for c in group],
                "FedRep(RI)": [_last(c.random) for c in group],
                "rank-k floor": [c.floor for c in group],
            }
            kept = np.all([c.finished for c in group], axis=0)
            lines = {name: mean_curve(ks, np.stack(values, axis=1)[kept]) for name, values in finals.items()}
            lines["Local least squares (median)"] = median_curve(ks, np.stack([c.local for c in group], axis=1))
            title = f"error after {settings.rounds} rounds, M = {m}, N = {n}"
            outcome.figures[title] = Figure("k", error, lines, reads=READS)


def thinned(rounds: Sequence[int]) -> list[int]:
    """Indices of the rounds a curve is drawn through: close together at first, where it bends, and always the last."""
    last = len(rounds) - 1
    return sorted({0, last, *(round(v) for v in np.geomspace(1, max(last, 1), 20) if v <= last)})


def short(curve: Curve) -> Curve:
    """A curve's numbers to five significant digits, so that its files stay small."""
    return curve.changed(lambda values: [float(f"{v:.5g}") for v in values])


def _row(cell: ProblemCell) -> dict[str, Any]:
    row: dict[str, Any] = {"M": cell.clients, "N": cell.samples, "k": cell.k, "rank-k floor": _rounded(cell.floor)}
    for name, path in (("FLUTE", cell.flute), ("FedRep", cell.fedrep), ("FedRep(RI)", cell.random)):
        mean, low, high = (float(v) for v in student_interval(_last(path)[cell.finished]))
        row |= {name: round(mean, 4), f"{name} low": round(low, 4), f"{name} high": round(high, 4)}
    lowest = as_array(cell.flute.error)[cell.finished].mean(axis=0)
    return row | {
        "seeds with a diverging run": int((~cell.finished).sum()),
        "FedRep, best step": _rounded(_last(cell.best)[cell.finished]),
        "best step": cell.best_step,
        EQUAL: _rounded(_last(cell.equal)[cell.finished]),
        "that step": float(f"{cell.equal_step:.3g}"),
        "Local least squares": _rounded(cell.local),
        "Local least squares, median": round(float(np.median(cell.local)), 4),
        "lower of FLUTE and Local": _verdict(cell.local - _last(cell.flute)),
        "FLUTE's lowest error": round(float(lowest.min()), 4),
        "in round": cell.rounds[int(lowest.argmin())],
    }


def _horizon_row(cell: ProblemCell, settings: ComparisonSettings) -> dict[str, Any]:
    row: dict[str, Any] = {"M": cell.clients, "N": cell.samples, "k": cell.k}
    for round_ in settings.judged:
        mean, low, high = (float(v) for v in student_interval(cell.gain(cell.fedrep, round_)))
        row[f"round {round_}"] = round(mean, 4)
        row[f"round {round_} ahead"] = "FLUTE" if low > 0 else "FedRep" if high < 0 else "open"
    return row


def _verdict(local_minus_flute: Values) -> str:
    _, low, high = (float(v) for v in median_interval(local_minus_flute))
    return "FLUTE" if low > 0 else "Local least squares" if high < 0 else "open"


def _last(path: Trajectory) -> Values:
    return as_array(path.error[:, -1])


def _mean(per_cell: Sequence[Values]) -> Values:
    """Mean over cells: [S]."""
    values: Values = np.mean(per_cell, axis=0)
    return values


def _rounded(values: Values) -> float:
    return round(float(values.mean()), 4)

"""FedRep's Theorem 1 by number: contraction of every round and distance after it against the bound (11)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from commonground.errors import DivergenceError
from commonground.papers.claims import fraction
from commonground.papers.experiment import Experiment
from commonground.papers.fedrep.linear import (
    Count,
    Counts,
    NotNegative,
    Positive,
    Positives,
    ProblemSettings,
    at_its_start,
    uneven,
)
from commonground.papers.figures import Curve, Figure, median_curve
from commonground.papers.outcome import Claim, Outcome
from commonground.papers.request import Request
from commonground.theory.linear import (
    Alternation,
    StartName,
    SubsetExtremes,
    Trajectory,
    alternate,
    check_dimensions,
    clients_per_round,
    contraction_factor,
    distance_bound,
    draw_problem,
    draw_samples,
    drawn_extremes,
    make_start,
    sample_size_unit,
    step_limit,
    subset_extremes,
)
from commonground.theory.threads import one_thread

__all__: list[str] = []

SOURCE = "Collins et al. 2021, Theorem 1 (11)"
LEMMA = "Collins et al. 2021, Lemma 6"
UNIT = "m over κ⁴k²d/(E0²rn) + κ⁴k³log(rn)/E0²"
SEEDS = 200
LEAST_SHARE = 0.95
SURE = f"at least {LEAST_SHARE:.0%} stands for the theorem's high probability"
ROUNDING = 1e-10  # distances below are not judged: their ratio is the rounding's


class Theorem1Settings(ProblemSettings):
    """Settings; the theorem names no numbers. d, k and n are those of the paper's figures.

    Attributes:
        m: fresh samples per client and round, and for the start.
        r: participation rates.
        noise: 0 in the theorem.
        start: the method of moments on samples of its own (Algorithm 2).
        step: η, or None for ``step_share`` times the theorem's limit 1/(4 σ̄_max,*²), least over the seeds.
        step_share: see ``step``.
    """

    n: Count = 100
    m: Counts = (3, 5, 20, 50)
    r: Positives = (1.0, 0.1)
    noise: NotNegative = 0.0
    rounds: Count = 60
    start: StartName = "moments-fresh"
    step: Positive | None = None
    step_share: Positive = 1.0


@one_thread()
def run(request: Request) -> Outcome:
    """Carry it out."""
    settings = request.choose(Theorem1Settings(), Theorem1Settings())
    s = settings
    s.check_space()
    check_dimensions(s.d, s.k, s.n, s.noise)
    counts = {r: clients_per_round(s.n, r) for r in s.r}
    seeds = request.seed_range(SEEDS)
    outcome = Outcome(settings=settings.model_dump(mode="json"))
    problem = draw_problem(seeds, s.d, s.k, s.n, s.noise, s.scaling, request.device)
    table: list[dict[str, Any]] = []
    steps: list[dict[str, Any]] = []
    away: list[str] = []
    silent: list[str] = []
    for r, count in counts.items():
        over = subset_extremes(problem, count)
        drawn = drawn_extremes(problem, count, s.rounds)
        limit = float(step_limit(over.largest).min())
        step = s.step or s.step_share * limit
        steps.append(_constants(r, step, limit, over, drawn))
        lines: dict[str, Curve] = {}
        ratios: dict[str, Curve] = {}
        diverged = 0
        for m in request.progress(s.m, f"r = {r:g}"):
            start = make_start(s.start, problem, draw_samples(problem, m))
            method = Alternation(None, step)
            result = alternate(problem, method, start, s.rounds, m=m, r=r, on_divergence="most")
            gone = int(result.went_away.sum())
            diverged += 2 * gone > len(seeds)
            if gone:
                away.append(f"m = {m}, r = {r:g}: {gone} of {len(seeds)} seeds")
            row, claims, bound, factor = _judge(s, r, m, count, step, over, drawn, result)
            if beyond := int((factor == 0).sum()):
                silent.append(f"m = {m}, r = {r:g} ({beyond} of {len(seeds)} seeds)")
            table.append(row)
            outcome.claims += (
                claims if m == max(s.m) else []
            )  # "for m large enough": one that is too small refutes nothing
            distance = result.distance.clamp(min=1e-17)
            lines[f"m = {m}"] = median_curve(range(s.rounds + 1), distance)
            if m == max(s.m):
                lines[f"bound (11), m = {m}"] = median_curve(range(s.rounds + 1), bound.clamp(min=1e-17))
            last = max(int((result.distance[:, :-1] > ROUNDING).all(0).sum()), 1)
            contraction = result.distance[:, 1:] / result.distance[:, :-1].clamp(min=1e-300)
            ratios[f"m = {m}"] = median_curve(range(1, last + 1), contraction[:, :last].clamp(min=1e-17))
            if m == max(s.m):
                level = factor[:, None].expand(-1, last)
                ratios[f"Lemma 6's factor, m = {m}"] = median_curve(range(1, last + 1), level.clamp(min=0))
        if diverged == len(s.m) and step > limit:
            raise DivergenceError(
                f"FedRep diverges at step size {step:g} (r = {r:g}), above Theorem 1's limit of {limit:.3g}: for every "
                "m most seeds end more than twice as far from B* as they start; use a smaller one, such as "
                f"step={limit:.3g}"
            )
        reads = (
            "Lines are medians over seeds, bands their 95 % intervals; the theorem's line is for the largest m (each m "
            "has its own, with its own start)."
        )
        outcome.figures[f"distance and bound, r = {r:g}"] = Figure(
            "round", "principal angle distance", lines, log_y=True, reads=reads
        )
        outcome.figures[f"contraction per round, r = {r:g}"] = Figure(
            "round", "distance over that of the round before", ratios, reads=reads
        )
    outcome.add_table("what the theorem says and what was measured", table)
    outcome.add_table("constants of the theorem", steps)
    outcome.notes = _notes(settings, table, steps, away)
    if silent:
        outcome.notes.append(
            f"1 − ηE0σ̄²_min/2 is negative at {'; '.join(silent)}: Lemma 6's factor is its root, so the theorem says "
            "nothing there; the factor is shown as 0 and the claims are left open."
        )
    return outcome


def _constants(r: float, step: float, limit: float, over: SubsetExtremes, drawn: SubsetExtremes) -> dict[str, Any]:
    return {
        "r": r,
        "subsets": {"all": "all (exact)", "search": "most extreme found"}.get(over.over, over.over),
        "σ̄_min (median)": float(over.smallest.median()),
        "σ̄_max (median)": float(over.largest.median()),
        "σ̄_min of subsets drawn": float(drawn.smallest.median()),
        "σ̄_max of subsets drawn": float(drawn.largest.median()),
        "step": step,
        "theorem's limit": limit,
        "within the theorem": step <= limit * (1 + 1e-12),
    }


def _judge(
    s: Theorem1Settings,
    r: float,
    m: int,
    count: int,
    step: float,
    over: SubsetExtremes,
    drawn: SubsetExtremes,
    run: Trajectory,
) -> tuple[dict[str, Any], list[Claim], torch.Tensor, torch.Tensor]:
    """A row of the table, the claims, the bound [S, T + 1] and Lemma 6's factor [S]."""
    distance = run.distance
    E0 = 1 - distance[:, 0].square()
    size = torch.tensor(step, dtype=distance.dtype, device=distance.device)
    factor = contraction_factor(size, E0, over.smallest)
    strict = contraction_factor(size, E0, drawn.smallest)
    bound = distance_bound(factor, distance[:, 0], s.rounds)
    judged = distance[:, :-1] > ROUNDING
    ratio = distance[:, 1:] / distance[:, :-1].clamp(min=1e-300)
    below = (distance <= bound * (1 + 1e-9)) | (distance <= ROUNDING)
    contracts = (ratio <= factor[:, None] * (1 + 1e-9)) | ~judged
    strictly = (ratio <= strict[:, None] * (1 + 1e-9)) | ~judged
    unit = sample_size_unit(s.d, s.k, count, over.kappa, E0)
    seen = ratio[judged] if bool(judged.any()) else ratio.new_ones(1)
    row = {
        "r": r,
        "m": m,
        UNIT: float((m / unit).median()),
        "E0 (median)": float(E0.median()),
        "Lemma 6's factor (median)": float(factor.median()),
        "contraction (median)": float(seen.median()),
        "contraction (worst)": float(seen.max()),
        "rounds within the factor": float((contracts & judged).sum() / judged.sum().clamp(min=1)),
        "seeds within it in every round": f"{int(contracts.all(1).sum())} of {len(distance)}",
        "the same with the drawn subsets' σ̄_min": f"{int(strictly.all(1).sum())} of {len(distance)}",
        "seeds within (11) in every round": f"{int(below.all(1).sum())} of {len(distance)}",
        "last distance (median)": float(distance[:, -1].median()),
    }
    where = f"r = {r:g}, m = {m} (share of seeds; {SURE})"
    claims = [
        fraction(
            f"The distance is within (11) after every one of {s.rounds} rounds, {where}",
            SOURCE,
            "holds for m large enough",
            below.all(1),
            LEAST_SHARE,
        ),
        fraction(
            f"Every round contracts the distance by √(1 − ηE0σ̄²_min/2) or more, {where}",
            LEMMA,
            "holds for m large enough",
            contracts.all(1),
            LEAST_SHARE,
        ),
    ]
    if m <= s.k or not bool(judged.any()) or bool((factor == 0).any()):  # nothing to judge, or to judge by
        claims = [replace(claim, holds=None) for claim in claims]
    return row, claims, bound, factor


def _enough(table: list[dict[str, Any]]) -> str:
    """From which m on everything held, per r."""
    parts = []
    for r in dict.fromkeys(row["r"] for row in table):
        rows = sorted((row for row in table if row["r"] == r), key=lambda row: -int(row["m"]))
        held = []
        for row in rows:
            within = (row["seeds within it in every round"], row["seeds within (11) in every round"])
            if any(text.split(" of ")[0] != text.split(" of ")[1] for text in within):
                break
            held.append(row)
        if held:
            parts.append(f"r = {r:g}: from m = {held[-1]['m']} on, {held[-1][UNIT]:.2g} times that")
        else:
            parts.append(f"r = {r:g}: at no m shown")
    return f"Both statements hold in every round of every seed at {'; '.join(parts)}."


def _notes(s: Theorem1Settings, table: list[dict[str, Any]], steps: list[dict[str, Any]], away: list[str]) -> list[str]:
    notes = [
        f"Both scales are the same: the theorem names no numbers (here d = {s.d}, k = {s.k}, n = {s.n}; the figures "
        "have 10, 2 and 100).",
        f"Fresh samples in every round, start {s.start}; a seed's claim holds only if all its rounds do. Rounds that "
        f"begin below {ROUNDING:g} are not judged (rounding).",
        "The theorem does not name its c, so it does not say which m is enough: it is judged at the largest here, and "
        f"the table gives m over what c multiplies. {_enough(table)}",
    ]
    if any(row["subsets"] != "all (exact)" for row in steps):
        notes.append(
            "Where the subsets of rn clients are too many, σ̄_min and σ̄_max are the most extreme that a local search "
            "finds; a σ̄_min found too large makes the bound stricter than the theorem's. For r < 1 some subset is "
            "always nearly degenerate: the theorem's factor is then close to 1 and says little; the table also judges "
            "with the subsets that were drawn."
        )
    notes += uneven(s.r, [s.n])
    beyond = [row for row in steps if not row["within the theorem"]]
    if beyond:
        notes.append(
            "The step size is above the theorem's limit for r = "
            + ", ".join(f"{row['r']:g}" for row in beyond)
            + ": what is measured there is outside it."
        )
    if s.noise:
        notes.append(
            f"The theorem is for labels without noise; here its variance is {s.noise:g}, so distances have a floor."
        )
    notes += at_its_start(s.m, s.k)
    if away:
        notes.append(f"FedRep diverges (ends more than twice as far from B* as it starts) at {'; '.join(away)}.")
    return notes


Experiment("fedrep-theorem1", "FedRep's contraction per round against Theorem 1", SOURCE, run, float64=True)

"""FedRep's Figure 4: error of a new client against its own number of samples."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from commonground.papers.claims import claim, fraction
from commonground.papers.experiment import Experiment
from commonground.papers.fedrep.linear import (
    HEAD_LIMIT,
    Count,
    Counts,
    LinearCase,
    LinearSettings,
    Positive,
    at_its_start,
    refuse_divergence,
    refuse_rise,
    safe_step,
    uneven,
)
from commonground.papers.figures import Figure, median_curve
from commonground.papers.outcome import Claim, Outcome
from commonground.papers.request import Request
from commonground.theory.linear import (
    Alternation,
    clients_per_round,
    expected_error,
    fedsgd,
    new_client_error,
    random_start,
)
from commonground.theory.subspace import orthonormal
from commonground.theory.threads import one_thread

__all__: list[str] = []

SOURCE = "Collins et al. 2021, Figure 4"
SEEDS = 40
FAR = "FedSGD from a random start"
NAMES = ("Local Only", "FedSGD", FAR, "FedRep")

Errors = dict[tuple[str, int], torch.Tensor]  # by method and samples of a new client


class Fig4Settings(LinearSettings):
    """Settings; the paper names (d, k) = (20, 2) and n = 100 training clients.

    Attributes:
        n, m: training clients and their samples; m is not in the paper: d/2, too few for a client alone.
        m_new: samples of a new client; None for a grid around k and d. k and d are always in it.
        new_clients: per seed.
        rounds, r, start, step: as in ``fedrep-fig1``.
        small: an error counts as accurate below this share of the signal ‖θ‖².
    """

    d: Count = 20
    n: Count = 100
    m: Count = 10
    m_new: Counts | None = None
    new_clients: Count = 200
    rounds: Count = 200
    step: Positive | None = None
    small: Positive = 0.01

    @property
    def grid(self) -> list[int]:
        """The numbers of samples, ascending."""
        d, k = self.d, self.k
        chosen = self.m_new or (
            1,
            k + 1,
            k + 2,
            2 * k,
            k + 4,
            2 * k + 4,
            d // 2,
            3 * d // 4,
            d - 2,
            d + 2,
            3 * d // 2,
            2 * d,
        )
        return sorted({m for m in (*chosen, k, d) if m >= 1})


@one_thread()
def run(request: Request) -> Outcome:
    """Carry it out."""
    settings = request.choose(Fig4Settings(), Fig4Settings())
    settings.check([settings.n])
    seeds = request.seed_range(SEEDS)
    count = clients_per_round(settings.n, settings.r)
    outcome = Outcome(settings=settings.model_dump(mode="json"))
    case = LinearCase(settings, settings.n, settings.m, device=request.device)
    problem, data, start = case.draw(seeds)
    step = settings.step or safe_step(problem, count)
    method = Alternation(None, step)
    fedrep = case.run((problem, data, start), method)
    refuse_divergence(fedrep, method, case, (problem, data, start))
    single_step = settings.step or min(step, HEAD_LIMIT)
    near, far = (
        fedsgd(problem, begin, settings.rounds, single_step, data, settings.r, "most")
        for begin in (start, random_start(problem))
    )
    refuse_rise(near, single_step, case, problem)
    grid = settings.grid
    errors: Errors = {}
    formula: Errors = {}
    signal = float(problem.theta.square().sum(-1).mean())
    bases = {"Local Only": None, "FedSGD": near.B, FAR: far.B, "FedRep": fedrep.B}
    for m in request.progress(grid, "samples of a new client"):
        for name in NAMES:
            basis = bases[name]
            errors[name, m], _ = new_client_error(problem, basis, m, settings.new_clients)
            formula[name, m] = _expected(settings, m, signal, basis, problem.B_star)
    start_and_end = {
        name: each[:, [0, -1]]
        for name, each in (("FedSGD", near.distance), (FAR, far.distance), ("FedRep", fedrep.distance))
    }
    outcome.claims = [
        *_claims_of_distances(settings, start_and_end),
        *_claims_of_errors(settings, grid, errors, formula, signal),
    ]
    for what in ("mean", "median"):
        outcome.figures[f"error of new clients, {what}"] = _figure(what, grid, errors)
    outcome.add_table(
        "error of new clients",
        [
            {
                "m_new": m,
                "method": name,
                "mean": float(errors[name, m].mean()),
                "median": float(errors[name, m].flatten().quantile(0.5)),
                "expected mean": _shown(formula[name, m]),
            }
            for m in grid
            for name in NAMES
        ],
    )
    outcome.add_table(
        "distance of the representation to B*",
        [
            {"method": name, "start": float(each[:, 0].median()), "end": float(each[:, 1].median())}
            for name, each in start_and_end.items()
        ],
    )
    outcome.notes = _notes(settings, step, signal)
    return outcome


def _figure(what: str, grid: list[int], errors: Errors) -> Figure:
    """The mean or median error of new clients against their number of samples."""
    return Figure(
        "samples of the new client m_new",
        "mean squared error on noise-free test data",
        {
            name: median_curve(grid, torch.stack([_middle(what, errors[name, m]) for m in grid], 1).clamp(min=1e-34))
            for name in NAMES
        },
        log_y=True,
        reads=f"Lines are medians over seeds of the {what} over new clients, bands their 95 % intervals. FedSGD "
        "begins at FedRep's start, which knows most of the truth already and flatters it: from a random start its "
        "representation serves new clients no better than one drawn at random.",
    )


def _notes(settings: Fig4Settings, step: float, signal: float) -> list[str]:
    return [
        "Both scales are the paper's setting; m, rounds, participation, start and step size are ours (the paper is "
        "silent).",
        f"{settings.n} training clients of m = {settings.m} samples, {settings.rounds} rounds, r = {settings.r:g}, "
        f"step size {step:.3g} and the same start for FedRep and FedSGD; {settings.new_clients} new clients per seed, "
        "the same for all. The paper names no start for FedSGD; the second line begins at random, as a method without "
        "FedRep's start would.",
        f"Errors are ‖θ̂ − θ‖², the expectation over noise-free test samples; predicting 0 has {signal:.3g}. The mean "
        "is infinite within one sample of k (a learned representation) and of d (Local Only): read the medians there.",
        "'Expected mean' is e + (σ² + e) k/(m_new − k − 1) for m_new > k + 1, where e is what of θ lies outside the "
        "representation (it acts as noise, as x is Gaussian); for m_new < k and for Local Only see expected_error.",
        *uneven([settings.r], [settings.n]),
        *at_its_start([settings.m], settings.k),
    ]


def _claims_of_distances(settings: Fig4Settings, start_and_end: dict[str, torch.Tensor]) -> list[Claim]:
    """Who learns the representation.

    Args:
        settings: of the experiment.
        start_and_end: distances to the true representation by method, [S, 2].
    """
    near, far, fedrep = (start_and_end[name].unbind(1) for name in ("FedSGD", FAR, "FedRep"))
    closer = claim(
        "FedRep ends closer than it starts (log10 of the distance at the end over that at the start)",
        SOURCE,
        "learns the representation",
        (fedrep[1] / fedrep[0]).clamp(min=1e-17).log10(),
        "below",
    )
    return [
        claim(
            "FedSGD ends no closer to the true representation than it starts (distance at the end less that at the "
            "start, which is FedRep's)",
            SOURCE,
            "does not learn the representation",
            near[1] - near[0],
            "above",
        ),
        claim(
            "From a random start FedSGD comes no nearer than half-way (distance at the end over that at the start)",
            SOURCE,
            "does not learn the representation",
            far[1] / far[0],
            "above",
            0.5,
        ),
        _where_it_moves(settings, closer),
    ]


def _where_it_moves(settings: Fig4Settings, about_fedrep: Claim) -> Claim:
    """A claim of the paper about FedRep, open where it stays at its start."""
    return about_fedrep if settings.m > settings.k else replace(about_fedrep, holds=None)


def _middle(what: str, errors: torch.Tensor) -> torch.Tensor:
    return errors.mean(1) if what == "mean" else errors.quantile(0.5, dim=1)


def _expected(
    settings: Fig4Settings, m: int, signal: float, basis: torch.Tensor | None, B_star: torch.Tensor
) -> torch.Tensor:
    """Expected error per seed over heads in all directions, of squared length ``signal``: [S]."""
    s = settings
    if basis is None:
        return B_star.new_full((len(B_star),), expected_error(s.d, m, s.noise, signal))
    own = orthonormal(basis)
    beyond = (B_star - own @ (own.mT @ B_star)).square().sum((1, 2)) * signal / s.k
    each = [expected_error(s.k, m, s.noise, signal - e, e) for e in beyond.tolist()]
    return B_star.new_tensor(each)


def _shown(formula: torch.Tensor) -> float | str:
    mean = float(formula.mean())
    return mean if mean < math.inf else "infinite"


def _claims_of_errors(
    settings: Fig4Settings, grid: list[int], errors: Errors, formula: Errors, signal: float
) -> list[Claim]:
    s, claims = settings, []
    m = grid[-1]
    text = f"FedSGD's error over FedRep's at m_new = {m} (log10 of the ratio of mean errors; tenfold or more)"
    gap = (errors["FedSGD", m].mean(1) / errors["FedRep", m].mean(1).clamp(min=1e-300)).log10()
    claims.append(_where_it_moves(s, claim(text, SOURCE, "large error for FedSGD", gap, "above", 1.0)))
    medians = {key: each.quantile(0.5, dim=1) for key, each in errors.items()}
    enough = [m for m in grid if m >= s.k]
    accurate = torch.stack([medians["FedRep", m] <= s.small * signal for m in enough], 1).all(1)
    text = (
        f"FedRep's median error is at most {s.small:g} of the signal at every m_new ≥ k = {s.k} shown (share of seeds)"
    )
    least = None if s.m > s.k else 1.0
    claims.append(_where_it_moves(s, fraction(text, SOURCE, "accurate as long as m_new ≥ k", accurate, least)))
    reached = torch.stack([medians["Local Only", m] <= s.small * signal for m in grid], 1)
    first = torch.tensor(grid, dtype=torch.float64, device=reached.device)[reached.int().argmax(1)]
    never = ~reached.any(1)
    first[never] = float(grid[-1])  # at least so many
    text = (
        f"Samples Local Only needs for that, over d (median error; the fewest that suffice; not within {grid[-1]} "
        f"in {int(never.sum())} seeds)"
    )
    claims.append(claim(text, SOURCE, "Ω(d)", (first / s.d), "above", 0.9))
    text = f"{FAR}: its error over FedRep's at m_new = {m} (log10 of the ratio of mean errors; tenfold or more)"
    wider = (errors[FAR, m].mean(1) / errors["FedRep", m].mean(1).clamp(min=1e-300)).log10()
    claims.append(_where_it_moves(s, claim(text, SOURCE, "large error for FedSGD", wider, "above", 1.0)))
    for name, unknowns in (("FedRep", s.k), ("Local Only", s.d)):
        # The mean of one client's error has a variance only three samples beyond that.
        usable = [m for m in grid if (m > unknowns + 3 or m < unknowns - 3) and bool((formula[name, m] > 0).all())]
        if not usable:
            continue
        ratio = torch.stack([errors[name, m].mean(1) / formula[name, m] for m in usable], 1).mean(1)
        what = (
            "σ²k/(m_new − k − 1) and the representation's part"
            if name == "FedRep"
            else "‖θ‖²(1 − m/d), or σ²d/(m − d − 1)"
        )
        text = f"{name}'s mean error over {what} (mean ratio over {len(usable)} m_new)"
        claims.append(
            claim(text, "Collins et al. 2021, Section 4", "1 (derived here)", ratio, "within", 1.0, tolerance=0.05)
        )
    return claims


Experiment("fedrep-fig4", "error of a new client against its own number of samples", SOURCE, run, float64=True)

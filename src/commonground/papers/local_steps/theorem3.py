"""Theorems 3 and 4: with weak feature noise one average of local models knows what global updates have yet to learn."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from commonground.errors import DivergenceError
from commonground.papers.claims import claim, fraction
from commonground.papers.experiment import Experiment
from commonground.papers.figures import Curve, Figure, mean_curve, median_curve
from commonground.papers.local_steps.features import (
    PAPER,
    SEEDS,
    FeatureSettings,
    by_group,
    in_every_client,
    remarks,
)
from commonground.papers.outcome import Claim, Outcome
from commonground.papers.request import Request
from commonground.theory.features import (
    FeatureModel,
    Problem,
    State,
    Trajectory,
    descend,
    doubling_rounds,
    draw_problem,
    error_of,
    feature_threshold,
    learning_rounds,
    recorded_rounds,
)
from commonground.theory.threads import one_thread

__all__: list[str] = []

THEOREM_3, THEOREM_4 = f"{PAPER}, Theorem 3", f"{PAPER}, Theorem 4"
SMALL_ERROR = 0.01
SHOWN = 5  # figures end at so many times the stated rounds


class Theorem3Settings(FeatureSettings):
    """What it is run with: :class:`~commonground.papers.local_steps.features.FeatureSettings`, under Parameter 2.

    Attributes:
        rho: ρ; None: 1/d (Parameter 2: 1/poly(d)), unless ``gap`` is set.
        stated_share: Theorem 3 is judged after this multiple of 1/(ηα³σ0) rounds; its own constant is open.
        control_rhos: other ρ, as shares of Parameter 1's (α³/K0)^(1/3), for one-shot averaging.
    """

    stated_share: float = 1.0
    control_rhos: tuple[float, ...] = (0.25, 0.5, 0.75, 1.0)

    def model(self) -> FeatureModel:
        """See the base class; ρ = 1/d by default."""
        if self.rho is None and self.gap is None:
            return self.model_copy(update={"rho": 1 / self.d}).model()
        return super().model()

    def stated_rounds(self, model: FeatureModel) -> int:
        """The t of Theorem 3."""
        return max(1, math.floor(self.stated_share * learning_rounds(model, self.eta, local=True)))


@dataclass(frozen=True)
class _Runs:
    problem: Problem
    shared: Trajectory
    local: Trajectory
    average: State
    average_error: torch.Tensor  # [S, N]
    stated: int

    @property
    def at_stated(self) -> int:
        """Where the stated round is among those recorded."""
        return self.shared.rounds.index(self.stated)


def _one_shot(settings: Theorem3Settings, request: Request, points: int) -> tuple[Problem, Trajectory, torch.Tensor]:
    model = settings.model()
    problem = draw_problem(model, request.seed_range(SEEDS), request.device)
    steps = settings.steps(model)
    record = recorded_rounds(steps, points)
    local = descend(problem, "local", settings.eta, steps, record=record, dynamics=settings.dynamics)
    return problem, local, error_of(problem, local.final.averaged(), settings.directions)


@one_thread()
def _run(request: Request) -> Outcome:
    settings = request.choose(Theorem3Settings(), Theorem3Settings())
    model = settings.model()
    outcome = Outcome(settings=settings.model_dump(mode="json"))
    problem, local, error = _one_shot(settings, request, settings.points)
    stated = settings.stated_rounds(model)
    rounds = max(settings.global_rounds(model), stated)
    early = doubling_rounds(model, settings.eta, local.gamma[:, 0])
    most = min(int(early.clamp_max(rounds).max()), rounds)
    record = {*recorded_rounds(rounds, settings.points), *recorded_rounds(stated, settings.points)}
    record |= {
        stated,
        *recorded_rounds(min(rounds, SHOWN * stated), 3 * settings.points),
        *recorded_rounds(max(most, 1), settings.points),
    }
    shared = descend(
        problem,
        "global",
        settings.eta,
        rounds,
        record=sorted(record),
        dynamics=settings.dynamics,
        units=settings.directions,
    )
    runs = _Runs(problem, shared, local, local.final.averaged(), error, stated)
    outcome.claims = [*_theorem_3(runs, early), *_theorem_4(runs)]
    outcome.add_table("beside the theorems", _beside(runs, early))
    _draw(runs, outcome)
    _weak_noise(settings, request, outcome, runs)
    outcome.notes += [
        *remarks(settings, model),
        f"{rounds} rounds of global updates, {local.rounds[-1]} local steps before the one average.",
        f"Theorem 3 holds below Ω̃(1/(ηα³σ0)) rounds with an open constant; it is judged at t = {stated}, that is "
        f"{settings.stated_share:g}/(ηα³σ0), and, with the constant of its proof (K for N, see doubling_rounds), round "
        "by round. It bounds Γ of the normal features alone; the confounding ones are shown beside.",
        "Theorem 3 says nothing of test error, nor of later rounds: random filters already carry some signal, so "
        "test errors fall while Γ is still of the order of its start, and global updates do learn every feature "
        "some rounds later (see the table).",
        "Test errors are analytic but for the direction of the noise.",
    ]
    return outcome


def _theorem_3(runs: _Runs, early: torch.Tensor) -> list[Claim]:
    model, gamma = runs.problem.model, runs.shared.gamma[:, :, 0]  # [S, R, m, K]
    rounds = torch.tensor(runs.shared.rounds, device=early.device)
    within = rounds <= early[:, None]
    not_doubled = gamma.amax((2, 3)) <= 2 * gamma[:, :1].amax((2, 3))
    claims = [
        fraction(
            "no Γ, of any feature, is beyond twice the largest at the start before round K/(12ηα³ max Γ⁽⁰⁾) (share of "
            "seeds, in every recorded round)",
            f"{PAPER}, Appendix D.1",
            "always",
            not_doubled | ~within,
        )
    ]
    groups = {"normal": slice(model.K0, None), "confounding": slice(model.K0)}
    for kind, which in groups.items():
        part = gamma[:, :, :, which]
        if not part.shape[-1]:
            continue
        now, start = part[:, runs.at_stated], part[:, 0].amax((1, 2))
        paper = "Õ(σ0)" if kind == "normal" else "nothing: the theorem is about normal features"
        claims += [
            claim(
                f"largest Γ of the {kind} features after {runs.stated} global rounds, as a multiple of its start "
                f"(median; Õ is judged by log d = {math.log(model.d):.1f})",
                THEOREM_3,
                paper,
                (now.amax((1, 2)) / start),
                "below",
                math.log(model.d),
                center="median",
            ),
            in_every_client(
                f"a {kind} feature is not learned (Γ < 1/(m^(1/3)α)) after {runs.stated} global rounds",
                THEOREM_3,
                paper,
                now.amax(1) < feature_threshold(model),
                of="seed and feature",
            ),
        ]
    return claims


def _theorem_4(runs: _Runs) -> list[Claim]:
    model = runs.problem.model
    level = feature_threshold(model) / model.K
    learned = runs.average.gamma[:, 0].amax(1)  # [S, K]
    claims = [
        in_every_client(
            f"one-shot averaging has learned a feature: max Γ is at least {level:.3f}, 1/K of the learned level "
            "1/(m^(1/3)α), as 1/K of the clients learn it",
            f"{THEOREM_4}, (1)",
            "Ω̃(1) for every k",
            learned >= level,
            of="seed and feature",
        ),
        claim(
            "smallest max Γ over the features after one-shot averaging, as a multiple of σ0",
            f"{THEOREM_4}, (1)",
            "Ω̃(1)/σ0",
            (learned.amin(1) / model.sigma_0),
            "above",
            math.log(model.d),
        ),
    ]
    for kind, mask in by_group(model).items():
        claims.append(
            in_every_client(
                f"a {kind} client's test error after one-shot averaging is at most {SMALL_ERROR:.0%}",
                f"{THEOREM_4}, (2)",
                "at most 1/poly(d)",
                runs.average_error[:, mask] <= SMALL_ERROR,
            )
        )
    assert runs.shared.test_error is not None
    now = runs.shared.test_error[:, runs.at_stated].mean(1) - runs.average_error.mean(1)
    claims.append(
        claim(
            f"global updates after {runs.stated} rounds have a larger test error than one-shot averaging after its one "
            "round of communication (mean over clients, difference in percentage points)",
            f"{PAPER}, Section 7",
            "generalises better",
            100 * now,
            "above",
        )
    )
    return claims


def _beside(runs: _Runs, early: torch.Tensor) -> list[dict[str, Any]]:
    """What the theorems leave out: test errors and when global updates learn."""
    model = runs.problem.model
    assert runs.shared.test_error is not None
    learned = runs.shared.gamma[:, :, 0].amax(2) >= feature_threshold(model)  # [S, R, K]
    rows = []

    def row(what: str, values: torch.Tensor) -> None:
        values = values.double()
        rows.append({"what": what, "median": float(values.median()), "least": float(values.min())})
        rows[-1]["most"] = float(values.max())

    if bool(early.isfinite().all()):
        row("rounds up to which no Γ can have doubled (with the proof's constant)", early)
    for kind, mask in by_group(model).items():
        row(
            f"test error at round {runs.stated}, {kind} clients",
            runs.shared.test_error[:, runs.at_stated, mask].mean(1),
        )
        row(
            f"test error after {runs.shared.rounds[-1]} rounds, {kind} clients",
            runs.shared.test_error[:, -1, mask].mean(1),
        )
        row(f"test error of the one-shot average, {kind} clients", runs.average_error[:, mask].mean(1))
        part = learned[:, :, : model.K0] if kind == "confounding" else learned[:, :, model.K0 :]
        done = part.all(2)
        row(f"all {kind} features learned by global updates at the end", done[:, -1])
        if bool(done.any(1).all()):
            first = torch.tensor(runs.shared.rounds, device=done.device)[done.int().argmax(1)]
            row(f"first recorded round with all {kind} features learned by global updates", first)
    return rows


def _draw(runs: _Runs, outcome: Outcome) -> None:
    model = runs.problem.model
    shown = sum(r <= SHOWN * runs.stated for r in runs.shared.rounds)
    lines: dict[str, Curve] = {}
    for what, run in (("global updates", runs.shared), ("local updates, own feature", runs.local)):
        for kind, mask in by_group(model).items():
            if run is runs.shared:
                part = run.gamma[:, :shown, 0].amax(2)[:, :, model.held[mask].unique()]
            else:
                own = run.gamma.amax(3)[:, :, torch.arange(model.N, device="cpu"), model.held]  # [S, R, N]
                part = own[:, : sum(r <= SHOWN * runs.stated for r in run.rounds), mask]
            lines[f"{what}, {kind}"] = median_curve(run.rounds[: part.shape[1]], part.median(2).values)
    positive = all(min(line.low or line.mean) > 0 for line in lines.values())
    outcome.figures["signal intensity Γ"] = Figure(
        "rounds or local steps",
        "largest Γ over filters",
        lines,
        log_y=positive,
        reads=f"Lines are medians over seeds of the median feature, bands their 95 % intervals; Theorem 3 is judged at "
        f"round {runs.stated}. Local steps need no communication before the one average.",
    )
    assert runs.shared.test_error is not None
    errors: dict[str, Curve] = {}
    x = runs.shared.rounds[:shown]
    for kind, mask in by_group(model).items():
        errors[f"global updates, {kind} clients"] = mean_curve(x, runs.shared.test_error[:, :shown, mask].mean(-1))
        ends = runs.average_error[:, mask].mean(1, keepdim=True).expand(-1, 2)
        errors[f"one-shot average, {kind} clients"] = mean_curve([0, x[-1]], ends)
    outcome.figures["test error"] = Figure("rounds of global updates", "test error", errors, percent=True)


def _weak_noise(settings: Theorem3Settings, request: Request, outcome: Outcome, runs: _Runs) -> None:
    """One-shot averaging against ρ: Theorem 4 needs ρ small, Parameter 1's ρ is its negative control."""
    model = runs.problem.model
    full = math.cbrt(model.alpha**3 / model.K0)
    errors = {model.rho / full: runs.average_error}
    for share in request.progress(settings.control_rhos, "ρ"):
        changed = {"rho": share * full, "gap": None}
        try:
            _, _, error = _one_shot(type(settings).model_validate({**settings.model_dump(), **changed}), request, 2)
        except DivergenceError as divergence:
            outcome.notes.append(f"ρ = {share:g} (α³/K0)^(1/3): {divergence}.")
            continue
        errors[share] = error
    errors = dict(sorted(errors.items()))
    lines = {
        f"{kind} clients": mean_curve(list(errors), torch.stack([e[:, mask].mean(1) for e in errors.values()], 1))
        for kind, mask in by_group(model).items()
    }
    if len(errors) > 1:
        outcome.figures["one-shot averaging against the feature noise"] = Figure(
            "ρ/(α³/K0)^(1/3)", "test error", lines, percent=True
        )
        largest = max(errors)
        outcome.claims.append(
            claim(
                f"control ρ = {largest:g} (α³/K0)^(1/3): one-shot averaging no longer learns, the mean test error of "
                "the confounding clients is above 5 %",
                f"{PAPER}, Parameter 2",
                "ρ = 1/poly(d)",
                errors[largest][:, model.confounded].mean(1),
                "above",
                0.05,
            )
        )


Experiment(
    "local-steps-theorem3",
    "one-shot averaging learns every feature in one round, global updates not within the stated rounds (Theorems 3, 4)",
    f"{PAPER}, Theorems 3 and 4",
    _run,
    float64=True,
)

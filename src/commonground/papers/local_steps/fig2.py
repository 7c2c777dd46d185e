"""Figure 2: averaging gradients leaves the negative signal of confounding features and thins out the positive one."""

from __future__ import annotations

from typing import Any

import torch

from commonground.papers.claims import claim
from commonground.papers.experiment import Experiment
from commonground.papers.figures import Figure, mean_curve
from commonground.papers.local_steps.features import PAPER, SEEDS, FeatureSettings, remarks
from commonground.papers.outcome import Outcome
from commonground.papers.request import Request
from commonground.theory.features import descend, draw_problem, gradient_signals, recorded_rounds, reduced_start
from commonground.theory.threads import one_thread

__all__: list[str] = []

SOURCE = f"{PAPER}, Figure 2"
REMARK = f"{PAPER}, Remark 4.1"
EXACT = 1e-4  # relative; more where the margins of the start, of the order σ0³, keep ν_i from being 1/2


@one_thread()
def _run(request: Request) -> Outcome:
    settings = request.choose(FeatureSettings(), FeatureSettings())
    model = settings.model()
    seeds = request.seed_range(SEEDS)
    problem = draw_problem(model, seeds, request.device)
    signals = gradient_signals(problem)
    own = signals.positive[:, 0], signals.negative[:, 0]  # client 0 holds feature 0, a confounding one
    mean = signals.averaged
    cubes = model.alpha**3, model.rho**3
    exact = max(EXACT, float(reduced_start(problem, local=False).margin.abs().max()))
    x = list(range(1, model.K + 1))
    outcome = Outcome(settings=settings.model_dump(mode="json"))
    parts = {"before averaging (the client that holds feature 1)": own, "after averaging": mean}
    outcome.figures["signals in the gradients at the start"] = Figure(
        f"feature (the first {model.K0} confound)",
        "signal intensity",
        {f"{sign}, {when}": mean_curve(x, pair[i]) for when, pair in parts.items() for i, sign in _SIGNS},
        reads="Lines are means over seeds of what feature patches (positive) and feature noise patches (negative) put "
        "into the negative gradient, in units of the update rule at ν = 1/2; bands their 95 % intervals.",
    )
    rows: list[dict[str, Any]] = []
    for what, value, expected in (
        ("positive signal of feature 1 in its client", own[0][:, 0], cubes[0]),
        ("negative signal of feature 1 in its client", own[1][:, 0], -cubes[1]),
        ("positive signal of feature 1 after averaging", mean[0][:, 0], cubes[0] / model.K),
        ("negative signal of feature 1 after averaging", mean[1][:, 0], -cubes[1] * model.K0 / model.K),
    ):
        rows.append({"signal": what, "paper": expected, "measured": float(value.mean())})
        outcome.claims.append(claim(what, REMARK, expected, value, "within", expected, tolerance=exact * cubes[0]))
    outcome.add_table("feature 1 before and after averaging", rows)
    before, after = -own[0][:, 0] / own[1][:, 0], -mean[0][:, 0] / mean[1][:, 0]
    outcome.claims += [
        claim(
            "positive over negative signal of a confounding feature in its client: it dominates",
            SOURCE,
            cubes[0] / cubes[1],
            before,
            "above",
            1.5,
        ),
        claim(
            "positive over negative signal of a confounding feature after averaging: they nearly cancel",
            SOURCE,
            cubes[0] / (model.K0 * cubes[1]),
            after,
            "within",
            1.0,
            tolerance=0.05,
        ),
        claim(
            f'the negative signal "keeps the same scale", up to K0/K = {model.K0 / model.K:.3g}: averaged over that in '
            "the client",
            SOURCE,
            "same scale",
            (mean[1][:, 0] / own[1][:, 0]),
            "within",
            model.K0 / model.K,
            tolerance=exact,
        ),
        claim(
            'the positive signal "significantly shrinks": averaged over that in the client',
            SOURCE,
            "shrinks",
            (mean[0][:, 0] / own[0][:, 0]),
            "below",
            model.K0 / model.K,
        ),
    ]
    _over_rounds(settings, seeds, outcome, request.device)
    outcome.notes += [
        *remarks(settings, model),
        f"The negative signal keeps its scale up to the factor K0/K = {model.K0 / model.K:.3g}: it shrinks as well, "
        f"K0 = {model.K0} times less than the positive one. Its claim judges that factor, the next one whether the "
        "positive signal shrinks more.",
    ]
    return outcome


_SIGNS = ((0, "positive"), (1, "negative"))


def _over_rounds(settings: FeatureSettings, seeds: range, outcome: Outcome, device: torch.device) -> None:
    """The same while training with global updates: intensities fall with ν_i as clients fit their samples."""
    model = settings.model()
    problem = draw_problem(model, seeds, device)
    rounds = settings.global_rounds(model)
    run = descend(
        problem,
        "global",
        settings.eta,
        rounds,
        record=recorded_rounds(rounds, settings.points),
        dynamics=settings.dynamics,
    )
    nu = 2 * torch.sigmoid(-run.margin).mean(-1)  # [S, R, N], 1 at the start
    alpha, rho = model.alpha**3, model.rho**3
    holders, hidden = (model.held == 0), model.confounded
    share = nu[..., holders].sum(-1) / model.N, nu[..., hidden].sum(-1) / model.N
    lines = {
        "positive, in its first client": alpha * nu[..., 0],
        "negative, in its first client": -rho * nu[..., 0],
        "positive, after averaging": alpha * share[0],
        "negative, after averaging": -rho * share[1],
        "both, after averaging": alpha * share[0] - rho * share[1],
    }
    outcome.figures["signals of feature 1 while training with global updates"] = Figure(
        "rounds", "signal intensity", {name: mean_curve(run.rounds, values) for name, values in lines.items()}
    )


Experiment("local-steps-fig2", "gradient signals before and after averaging (Figure 2)", SOURCE, _run, float64=True)

"""FLUTE's Figure 3: FLUTE, FedRep and FedRep(RI) where Φ has the singular values 2d/(i+1)."""

from __future__ import annotations

from commonground.papers.experiment import Experiment
from commonground.papers.flute.comparison import report_comparison
from commonground.papers.flute.linear import ComparisonSettings, compare_all
from commonground.papers.outcome import Outcome
from commonground.papers.request import Request
from commonground.theory.threads import one_thread

__all__: list[str] = []

SOURCE = "Liu, Shen and Yang 2024, Figure 3 and App. C.1"
PAPER = ComparisonSettings()
SIZES = {"d", "ks", "clients", "samples", "rounds"}


@one_thread()
def _run(request: Request) -> Outcome:
    settings = request.choose(PAPER, PAPER)
    outcome = report_comparison(compare_all(request, settings), settings, SOURCE)
    if settings.model_dump(include=SIZES) == PAPER.model_dump(include=SIZES):
        outcome.notes.insert(0, "Both scales are the paper's own sizes.")
    return outcome


Experiment(
    "flute-fig3",
    "FLUTE, FedRep and FedRep(RI) on linear models, Φ with singular values 2d/(i+1)",
    SOURCE,
    _run,
    float64=True,
)

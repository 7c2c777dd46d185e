"""FLUTE's Figure 1: FLUTE, FedRep and FedRep(RI) where the true models are independent Gaussian vectors."""

from __future__ import annotations

from commonground.papers.experiment import Experiment
from commonground.papers.flute.comparison import report_comparison
from commonground.papers.flute.linear import ComparisonSettings, compare_all
from commonground.papers.outcome import Outcome
from commonground.papers.request import Request
from commonground.theory.threads import one_thread

__all__: list[str] = []

SOURCE = "Liu, Shen and Yang 2024, Figure 1 and §7.1"
# §7.1 gives the generator alone; sizes are App. C.1's, of which we take one M (§7.1 leaves the effect of M to App. C).
PAPER = ComparisonSettings(generator="gaussian", clients=(15,), samples=(12, 20))


@one_thread()
def _run(request: Request) -> Outcome:
    settings = request.choose(PAPER, PAPER)
    outcome = report_comparison(compare_all(request, settings), settings, SOURCE)
    outcome.notes.insert(
        0,
        "Both scales are the same. Figure 1's d, k, M, N, η and number of rounds are not in the text: we take App. "
        "C.1's d = 10, k ∈ {2, 4, 6, 8}, N ∈ {12, 20}, noise variance 0.3, η = 0.03 and M = 15.",
    )
    return outcome


Experiment("flute-fig1", "FLUTE, FedRep and FedRep(RI) on linear models, Gaussian Φ", SOURCE, _run, float64=True)

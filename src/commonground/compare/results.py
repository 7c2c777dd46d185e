"""From finished runs to the figures of a comparison."""

from __future__ import annotations

import os
import platform
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from commonground.compare.adapting import OF_MODEL, is_adapting
from commonground.compare.grid import edge_notes, on_edge
from commonground.compare.methods import FINE_TUNING, Method
from commonground.compare.reaching import notes_on, what_it_costs
from commonground.counted import between, counted
from commonground.engine import Run
from commonground.engine.option_checks import is_chosen
from commonground.keys import numpy_stream
from commonground.privacy import short_epsilon
from commonground.processor import processor
from commonground.statistics import holm, mean, paired_difference, smallest_p, spread
from commonground.tasks import Headline, Target

__all__ = ["Diverged", "GridResult", "summarize"]

PERCENTILES = (5, 25, 50, 75, 95)

FEW_PAIRS = 20  # below, a bootstrap interval covers the mean clearly less often than it says

_AT_THE_END = "after the last round"

# Settings that a method may have of its own and that are always told.
_TOLD = ("lr", "local_epochs", "batch_size")


def _told(config: Mapping[str, Any]) -> dict[str, Any]:
    """The usual settings; steps of local training in the place of epochs where the run counts in steps."""
    names = ("local_steps" if n == "local_epochs" and config["local_steps"] is not None else n for n in _TOLD)
    return {name: config[name] for name in names}


@dataclass(frozen=True)
class GridResult:
    """The candidates of one method and seed.

    Attributes:
        method: its label.
        seed: of the runs.
        candidates: the settings tried.
        scores: mean of the headline metric over clients on validation samples after the last round, one per candidate;
            None for a candidate whose training diverged, or for which the metric is not defined on any client's rows.
        best: which was chosen.
        diverged: candidates whose training diverged.
    """

    method: str
    seed: int
    candidates: Sequence[Mapping[str, Any]]
    scores: Sequence[float | None]
    best: int
    diverged: Collection[int] = ()


@dataclass(frozen=True)
class Diverged:
    """A method that has no figures.

    Attributes:
        method: its label.
        seed: with which training diverged; it was not trained with later ones.
        why: what happened.
    """

    method: str
    seed: int
    why: str


def summarize(
    methods: Mapping[str, Method],
    runs: Mapping[str, Sequence[Run]],
    *,
    reference: str,
    seeds: Sequence[int],
    target: Target | None,
    same_clients: bool,
    candidates: Mapping[str, Sequence[Mapping[str, Any]]],
    tuning: Sequence[GridResult],
    diverged: Sequence[Diverged],
    notes: Sequence[str],
    folder: Path | None,
) -> dict[str, Any]:
    """What ``comparison.json`` holds, without the command.

    Args:
        methods: by label.
        runs: by label, one run per seed, of the methods that have figures.
        reference: label of the method the others are compared with.
        seeds: of the runs.
        target: what is to be reached, if anything.
        same_clients: whether client i is the same one for every seed.
        candidates: by label, the settings of a grid, of which there may be one alone.
        tuning: what a grid has chosen.
        diverged: the other methods.
        notes: sentences that come first in the footnotes.
        folder: of the comparison.
    """
    one, judged = runs[reference][0].summary, _judged(runs)
    headline = Headline.ranking(one)
    entries = [
        _entry(headline, methods[label], of_method, target, folder, candidates[label]) | {"differences": None}
        for label, of_method in runs.items()
    ]
    _add_differences(headline, entries, runs, reference, seeds[0], same_clients)
    rounds = {run.config.rounds for several in runs.values() for run in several}
    return {
        "data": one["data"],
        "task": one["task"],
        "metric": headline.key,
        **({"rank_by": one["rank_by"]} if "rank_by" in one else {}),
        "worst_tenth": {"min_rows": one["worst_tenth"]["min_rows"]},
        "clients": one["clients"],
        "rounds": runs[reference][0].config.rounds,
        **({"rounds_between": [min(rounds), max(rounds)]} if len(rounds) > 1 else {}),
        "seeds": list(seeds),
        "reference": reference,
        "target": None if target is None else target.value,
        "judged": judged,
        "same_clients": same_clients,
        "data_fingerprints": [run.summary["data_fingerprint"] for run in runs[reference]],
        "methods": entries,
        **({"diverged": [{"title": methods[one.method].title, **asdict(one)} for one in diverged]} if diverged else {}),
        "tuning": _tuning(headline, methods, tuning) if tuning else None,
        "notes": [
            *notes,
            *_diverged_notes(methods, diverged),
            *_other_rounds(methods, runs),
            *_kept_rounds(methods, runs),
            *_untrained(methods, runs),
            *_privacy_notes(entries),
            *edge_notes(
                [
                    (methods[each.method].title, on_edge(each.candidates, each.best))
                    for each in tuning
                    if each.method in runs
                ]
            ),
            *_notes(
                headline,
                entries,
                reference,
                seeds,
                target,
                same_clients,
                bool(tuning),
                any(run.config.validation_fraction for of_method in runs.values() for run in of_method),
                judged,
                one["worst_tenth"]["min_rows"],
            ),
        ],
        "versions": {"python": platform.python_version()}
        | {name: version(name) for name in ("commonground", "torch", "numpy", "scipy")},
        "machine": {"platform": platform.platform(), "processor": processor(), "cpus": os.cpu_count()},
    }


def _entry(
    headline: Headline,
    method: Method,
    runs: Sequence[Run],
    target: Target | None,
    folder: Path | None,
    candidates: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    summaries = [run.summary for run in runs]
    ranked = [_values(headline, run)[_ranked(run)] for run in runs]

    def over_seeds(key: str) -> dict[str, float | None]:
        return _spread([own[key] for own in personal])

    personal, shared = [_personal(headline, s) for s in summaries], [_shared(headline, s) for s in summaries]
    others = [metric.key for metric in headline.others(summaries[0])]
    metrics = {key: _over_clients(key, summaries) for key in others}
    rows = {key: _spread([s["metrics"][key]["over_rows"] for s in summaries]) for key in (headline.key, *others)}
    return {
        "method": method.label,
        "algorithm": method.name,
        "title": method.title,
        "settings": _settings(method, runs, candidates),
        "runs": [] if folder is None else [str(run.folder.relative_to(folder)) for run in runs if run.folder],
        headline.personal: over_seeds("mean"),
        f"{headline.personal}_of": summaries[0][f"personal_{summaries[0]['metric']}_of"],
        "last10": over_seeds("last10"),
        headline.shared: None if shared[0] is None else _spread(shared),
        headline.worst_tenth: over_seeds(headline.worst_tenth),
        headline.worst: over_seeds(headline.worst),
        "percentiles": {f"p{q}": _spread([_percentile(each, q) for each in ranked]) for q in PERCENTILES},
        **({"metrics": metrics} if metrics else {}),
        **_privacy(summaries),
        "over_rows": rows,
        "bytes_up": mean([s["bytes_up"] for s in summaries]),
        "bytes_down": mean([s["bytes_down"] for s in summaries]),
        "seconds": mean([s["seconds"] for s in summaries]),
        **({} if target is None else {target.key: what_it_costs(target, runs)}),
        "by_seed": [
            {"seed": s["seed"], headline.shared: whole}
            | {
                f"{headline.personal}_{key}": own[key]
                for key in ("mean", "last10", headline.worst_tenth, headline.worst)
            }
            for s, own, whole in zip(summaries, personal, shared, strict=True)
        ],
    }


def _personal(headline: Headline, summary: Mapping[str, Any]) -> dict[str, Any]:
    """The spread of a metric over clients; of one that is measured at the end alone, without ``last10``."""
    own = summary.get(headline.personal)
    return {"last10": None, **summary["metrics"][headline.key]} if own is None else dict(own)


def _shared(headline: Headline, summary: Mapping[str, Any]) -> float | None:
    """The mean of a metric of the one global model over clients, if there is one."""
    if headline.shared in summary:
        value: float | None = summary[headline.shared]
        return value
    whole = summary["global_metrics"]
    return None if whole is None else whole[headline.key]["mean"]


def _settings(method: Method, runs: Sequence[Run], candidates: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the method was run with: the usual settings, its own, a grid's and its hyperparameters; a list where seeds
    differ.
    """
    named = dict.fromkeys(key for settings in (method.settings, *candidates) for key in settings)
    told: list[dict[str, Any]] = []
    adaptive = any(run.config.optimizer != "sgd" for run in runs)
    for run in runs:
        config = run.config.model_dump()
        own = {key: config[key] for key in named if key in config}
        adapted = {OF_MODEL + name: value for name, value in config["model_options"].items()}
        own |= {key: value for key, value in adapted.items() if is_adapting(key)}
        optimizer = {"optimizer": run.config.optimizer} if adaptive else {}
        fine = {key: config[key] for key in FINE_TUNING if run.config.finetune_epochs and is_chosen(key, config[key])}
        told.append(_told(config) | optimizer | fine | own | vars(method.make(run.config.options)))
    # A seed's choice may leave out what another one's needs: it is nothing there.
    values = {key: [each.get(key) for each in told] for key in dict.fromkeys(key for each in told for key in each)}
    return {key: found[0] if all(value == found[0] for value in found) else found for key, found in values.items()}


def _add_differences(
    headline: Headline,
    entries: Sequence[dict[str, Any]],
    runs: Mapping[str, Sequence[Run]],
    reference: str,
    seed: int,
    same_clients: bool,
) -> None:
    others = [entry for entry in entries if entry["method"] != reference]
    found = [
        paired_difference(
            [_values(headline, run) for run in runs[entry["method"]]],
            [_values(headline, run) for run in runs[reference]],
            same_clients=same_clients,
            rng=numpy_stream(seed, "bootstrap", entry["method"]),
        )
        for entry in others
    ]
    clients, over_seeds = holm([d.p_clients for d in found]), holm([d.p_seeds for d in found])
    for entry, difference, p_adjusted, p_seeds_adjusted in zip(others, found, clients, over_seeds, strict=True):
        adjusted = {"p_adjusted": p_adjusted, "p_seeds_adjusted": p_seeds_adjusted}
        if difference.pairs:
            entry["differences"] = {"reference": reference} | difference.to_dict() | adjusted


def _values(headline: Headline, run: Run) -> Any:
    """The headline metric of every client's own model after the last round, [C]; NaN where it is not defined."""
    return run.clients.numbers(headline.personal)


def _ranked(run: Run) -> Any:
    """[C] clients of whom percentiles are told."""
    return run.clients.numbers("test_samples") >= run.config.worst_min_rows


def _percentile(values: Any, q: int) -> float | None:
    known = values[~np.isnan(values)]
    return float(np.percentile(known, q)) if len(known) else None


def _spread(values: Sequence[float | None]) -> dict[str, float | None]:
    """Mean and deviation over the seeds for which there is a value."""
    known = [value for value in values if value is not None]
    return spread(known) if known else {"mean": None, "std": None}


def _over_clients(key: str, summaries: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """A metric's mean over clients, over the seeds, and for how many clients it is defined (a seed's mean)."""
    own = [summary["metrics"][key] for summary in summaries]
    return _spread([each["mean"] for each in own]) | {"clients": mean([each["clients"] for each in own])}


def _diverged_notes(methods: Mapping[str, Method], diverged: Sequence[Diverged]) -> list[str]:
    """Which methods have no figures, and why."""
    return [f"{methods[one.method].title} is left out, since with seed {one.seed} {one.why}." for one in diverged]


def _other_rounds(methods: Mapping[str, Method], runs: Mapping[str, Sequence[Run]]) -> list[str]:
    """Where methods were given rounds of their own: how many each."""
    rounds = {methods[label].title: {run.config.rounds for run in of_method} for label, of_method in runs.items()}
    if len(set().union(*rounds.values())) == 1:
        return []
    told = (f"{title} {between(counts)}" for title, counts in rounds.items())
    return [f"Methods have rounds of their own: {', '.join(told)}."]


def _kept_rounds(methods: Mapping[str, Method], runs: Mapping[str, Sequence[Run]]) -> list[str]:
    """With early stopping: which rounds' models were kept, and of how many."""
    told = []
    for label, of_method in runs.items():
        early = [(run.summary.get("early_stopping"), run.summary["rounds"]) for run in of_method]
        kept = [f"{each['best_round']} of {rounds}" for each, rounds in early if each is not None]
        told += [f"{methods[label].title} {', '.join(kept)}"] if kept else []
    if not told:
        return []
    return [
        "With early stopping, models and figures are those of the round that was best on validation rows, in place of "
        f"the last: {'; '.join(told)}."
    ]


def _untrained(methods: Mapping[str, Method], runs: Mapping[str, Sequence[Run]]) -> list[str]:
    """How many clients never took part, if their models are such as nobody trained."""
    told: dict[str, list[str]] = {}
    for label, of_method in runs.items():
        counts = [run.summary.get("untrained_clients", 0) for run in of_method]
        if any(counts):
            many = f"{between(counts)} of {counted(of_method[0].summary['clients'], 'client')}"
            told.setdefault(many, []).append(methods[label].title)
    each = " with each seed" if any(len(of_method) > 1 for of_method in runs.values()) else ""
    return [
        f"{', '.join(titles)}: {many} never took part{each}, and what is their own is as at the start; more rounds or "
        "a larger --participation let them train."
        for many, titles in told.items()
    ]


def _privacy(summaries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What of differential privacy belongs beside a method's figures: of the seed that gives away most."""
    told = [summary["privacy"] for summary in summaries if "privacy" in summary]
    return {"privacy": max(told, key=lambda each: float(each["epsilon"]))} if told else {}


def _privacy_notes(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    levels = {entry["privacy"]["level"] for entry in entries if "privacy" in entry}
    told = [f"{entry['title']} {short_epsilon(entry['privacy'])}" for entry in entries if "privacy" in entry]
    whose = "clients" if levels == {"client"} else "single examples" if levels == {"example"} else "clients or examples"
    return [f"Differential privacy of {whose}, in each run: {', '.join(told)}."] if told else []


def _judged(runs: Mapping[str, Sequence[Run]]) -> str:
    """With which models the figures are, in words."""
    early = [run.summary.get("early_stopping") is not None for own in runs.values() for run in own]
    if not any(early):
        return _AT_THE_END
    kept = "after the round that early stopping kept"
    return kept if all(early) else f"{_AT_THE_END}, or {kept}"


def _tuning(headline: Headline, methods: Mapping[str, Method], tuning: Sequence[GridResult]) -> list[dict[str, Any]]:
    key = f"validation_{headline.key}"
    return [
        {
            "method": each.method,
            "title": methods[each.method].title,
            "seed": each.seed,
            "chosen": dict(each.candidates[each.best]),
            key: each.scores[each.best],
            "on_edge": on_edge(each.candidates, each.best),
            "candidates": [
                {"settings": dict(settings), key: score}
                | ({"undefined": True} if score is None and number not in each.diverged else {})
                for number, (settings, score) in enumerate(zip(each.candidates, each.scores, strict=True))
            ],
        }
        for each in tuning
    ]


def _notes(
    headline: Headline,
    entries: Sequence[Mapping[str, Any]],
    reference: str,
    seeds: Sequence[int],
    target: Target | None,
    same_clients: bool,
    tuned: bool,
    held_out: bool,
    judged: str,
    min_rows: int,
) -> list[str]:
    title = next(entry["title"] for entry in entries if entry["method"] == reference)
    many, name = len(seeds) > 1, headline.name
    among = f" with at least {min_rows} test samples" if min_rows > 1 else ""
    by_round = any(entry["last10"]["mean"] is not None for entry in entries)  # other metrics are of the end alone
    last10 = ("" if judged == _AT_THE_END else " up to that one") if by_round else None
    notes = [
        f"{name}: mean over clients of the {name} on each client's own test samples {judged}"
        + (", ± sample standard deviation (n - 1) over seeds; " if many else "; ")
        + ("" if headline.higher_is_better else "lower is better; ")
        + f"worst tenth: {headline.percentile} over clients{among}"
        + ("" if last10 is None else f"; last 10: mean over the evaluated ones of the last 10 rounds{last10}")
        + ".",
    ]
    kinds: dict[str, list[str]] = {}
    for entry in entries:
        kinds.setdefault(entry[f"{headline.personal}_of"], []).append(entry["title"])
    notes += [f"{', '.join(titles)}: the {name} is that of {what}." for what, titles in kinds.items()]
    if any("finetune_epochs" in entry["settings"] for entry in entries):
        how = "; rounds to a target are the global model's before it, or all if only fine-tuning reaches it"
        before = "" if target is None else how
        final = "" if last10 is None else f", so that last 10 is the final {name}"
        when = "after the last round" if judged == _AT_THE_END else "after the round that is kept"
        notes.append(f"Fine-tuned (+FT) once, {when}{final}{before}.")
    found = next((entry["differences"] for entry in entries if entry["differences"]), None)
    if found is not None:
        pairs = found["pairs"]
        tests = sum(entry["differences"] is not None for entry in entries)
        per = "per client, averaged over seeds" if same_clients and many else "per client and seed"
        notes.append(
            f"Δ: difference to {title} {per} ({pairs:,} pair{'s' if pairs != 1 else ''}), "
            + ("in percentage points, " if headline.percent else "")
            + ("" if headline.higher_is_better else "below zero is better, ")
            + (
                "of which there is no interval."
                if pairs < 2
                else "with the 95 % bootstrap interval of its mean over those pairs."
            )
            + (" An interval from so few pairs is too narrow." if 2 <= pairs < FEW_PAIRS else "")
        )
        notes.append(
            "p clients: Wilcoxon signed-rank test over the same pairs, corrected by Holm for "
            f"{counted(tests, 'comparison')}; it speaks of clients under these "
            "training runs."
        )
        notes.append(_about_seeds(len(seeds)))
    notes += [] if target is None else notes_on(target, entries, len(seeds))
    if tuned:
        but = " but those that --validation-fraction holds out" if held_out else ""
        notes.append(
            "Settings of the grid were chosen per method and seed on samples held out of the clients' training data; "
            f"no test sample was used. The runs reported train on all training samples again{but}."
        )
    return notes


def _about_seeds(seeds: int) -> str:
    if seeds == 1:
        return "One seed shows no variation between training runs; --seeds 3 or more does."
    smallest = smallest_p(seeds)
    text = f"p seeds: the same test over the {seeds} seeds' mean differences, not corrected; it cannot go below "
    text += f"{smallest:.2g} with {seeds} seeds"
    return f"{text} and so cannot be significant; 6 seeds reach 0.031." if smallest > 0.05 else f"{text}."

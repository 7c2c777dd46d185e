"""Several methods on the same splits, initial weights and client samples, over several seeds."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torch import nn

from commonground.algorithms import Algorithm
from commonground.compare.grid import candidates, check_grid, edge_notes, on_edge, validation_split
from commonground.compare.methods import COMMON, Method, as_text, folder_name
from commonground.compare.observer import ComparisonObserver, Silent, Step
from commonground.compare.results import Tuning, summarize
from commonground.config import RunConfig
from commonground.data import FederatedDataset
from commonground.engine import Run, run_training
from commonground.engine.loop import OnRound, as_one
from commonground.engine.observer import completed
from commonground.engine.prepare import check_objects, prepare_setup
from commonground.engine.setup import Setup
from commonground.engine.state.files import write_atomically
from commonground.engine.state.folder import FREE, RunFolder
from commonground.engine.tracked import Track, Tracking
from commonground.errors import ConfigError, RunError, UpdateError
from commonground.models import own_copy
from commonground.notebook import html_table, report_link
from commonground.suggest import meant
from commonground.tasks import Headline

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

__all__ = ["Comparison", "compare"]

# Settings of a run that must be equal in every run of a comparison's folder.
_SAME = sorted(COMMON - {"algorithm", "options", "seed"})


@dataclass(frozen=True)
class Comparison:
    """The result of a comparison.

    Attributes:
        result: what ``comparison.json`` holds.
        runs: the runs of every method by its label (``fedavg+ft``), in the order of the seeds; empty if read from a
            folder.
        folder: where the files are, if anywhere.
    """

    result: dict[str, Any]
    runs: dict[str, list[Run]] = field(default_factory=dict, repr=False)
    folder: Path | None = None

    @classmethod
    def read(cls, folder: str | Path) -> Comparison:
        """A finished comparison from its folder.

        Raises:
            RunError: there is none, or it is not readable.
        """
        path = Path(folder) / "comparison.json"
        try:
            return cls(json.loads(path.read_text("utf-8")), {}, Path(folder))
        except (OSError, ValueError) as error:
            raise RunError(f"'{path}' is not a readable comparison: {error}") from None

    def to_dict(self) -> dict[str, Any]:
        """What ``comparison.json`` holds, as a copy."""
        return copy.deepcopy(self.result)

    def table(self) -> Table:
        """The headline metric with differences to the reference, to print with rich; see :meth:`footnotes`."""
        from commonground.compare.tables import headline_table

        return headline_table(self.result).to_rich(framed=False)

    def cost_table(self) -> Table:
        """The last ten rounds, the global model, bytes and seconds, to print with rich."""
        from commonground.compare.tables import cost_table

        return cost_table(self.result).to_rich(framed=False)

    def metric_table(self) -> Table | None:
        """The task's other metrics, to print with rich; None where it has none."""
        from commonground.compare.tables import metric_table

        table = metric_table(self.result)
        return None if table is None else table.to_rich(framed=False)

    def target_table(self) -> Table | None:
        """What the target accuracy costs, to print with rich; None without a target."""
        from commonground.compare.tables import target_table

        table = target_table(self.result)
        return None if table is None else table.to_rich(framed=False)

    def tuning_table(self) -> Table | None:
        """Every candidate of a grid with its score on validation samples; None without a grid."""
        from commonground.compare.tables import tuning_table

        table = tuning_table(self.result)
        return None if table is None else table.to_rich(framed=False)

    def footnotes(self) -> list[str]:
        """What each number is, in sentences."""
        return list(self.result["notes"])

    def to_pandas(self, what: Literal["methods", "runs", "clients", "rounds"] = "methods") -> pd.DataFrame:
        """A row per method (as in ``table.csv``), per run, per client of each run, or per round of each run.

        Raises:
            ConfigError: pandas is not installed, or there is no such table.
            RunError: a run's folder is gone.
        """
        from commonground.compare.frames import frame

        return frame(what, self.result, self.runs, self.folder)

    def __repr__(self) -> str:
        from commonground.compare.tables import headline_table

        table = headline_table(self.result)
        first, second = table.names[:2]
        told = ", ".join(f"{row[first]} {row[second]}" for row in table.rows)
        return f"<Comparison on {self.result['data']}, {len(self.result['seeds'])} seeds: {told}>"

    def _repr_html_(self) -> str:
        from commonground.compare.tables import headline_table

        table = headline_table(self.result)
        names = table.names
        rows = [[str(row[name]) for name in names] for row in table.rows]
        return html_table(rows, header=names, title=table.title, bold=table.bold) + report_link(self.folder)


def compare(
    methods: Sequence[str | Algorithm],
    data: FederatedDataset | str = "digits",
    seeds: int = 3,
    out: str | Path | None = None,
    reference: str | None = None,
    target: float | str | None = None,
    grid: Mapping[str, Sequence[Any]] | None = None,
    local_only: bool = True,
    *,
    to_accuracy: float | None = None,
    model: str | nn.Module | None = None,
    validation: float = 0.2,
    observer: ComparisonObserver | None = None,
    on_round: OnRound | Sequence[OnRound] | None = None,
    track: Track = None,
    data_dir: str | None = None,
    command: str | None = None,
    **settings: Any,
) -> Comparison:
    """Train several methods on the same data splits, initial weights and client samples, and test their differences.

    All draws are keyed by the seed, so that equal seeds give every method the same split, start, participants and
    batch orders. A folder that holds some of the runs already is continued.

    Args:
        methods: each ``NAME[+ft][:KEY=VALUE,…]`` (``fedavg``, ``fedavg+ft``, ``fedprox:mu=0.1``) or an
            :class:`~commonground.algorithms.Algorithm`.
        data: a federated data set (the same for all seeds), or a name, dealt to clients anew for every seed.
        seeds: how many, from the setting ``seed`` (0) upwards.
        out: folder for the files; by default none are written.
        reference: the method the others are compared with, as in ``methods``; by default the first.
        target: a table's column to predict, as in the settings; or, as a number, ``to_accuracy``.
        grid: values to choose from, by setting, for every method that has it and does not set it itself. The choice
            is made for every method and seed on a part of the training data (:func:`validation_split`).
        local_only: add Local Only, the yardstick, unless it is there.
        to_accuracy: between 0 and 1; bytes and seconds until it is reached are reported. For tasks whose metric is
            accuracy alone.
        model: a name, or a module whose present weights every run starts from; by default what suits the data.
        validation: share of the training samples that judges a grid's candidates.
        observer: hears of every run (:class:`~commonground.compare.observer.ComparisonObserver`).
        on_round: called after each round of each run that counts, with its line of ``rounds.jsonl`` and ``method`` and
            ``seed`` in it. What it returns does not matter; if it raises, the comparison ends and can be continued.
        track: where each run that counts is tracked, as of :func:`~commonground.engine.train`.
        data_dir: folder of the data files.
        command: how to repeat it, for the record.
        **settings: any other field of :class:`~commonground.config.RunConfig`, common to all methods;
            hyperparameters in ``options`` go to the methods that have them.

    Returns:
        The finished comparison.

    Raises:
        CommonGroundError: anything wrong with methods, settings, data or files, in one sentence.
    """
    if isinstance(target, str):
        settings["target"] = target
    elif target is not None:
        to_accuracy = target
    work = _Comparing(
        methods, data, seeds, Path(out) if out is not None else None, reference, to_accuracy, grid or {}, local_only,
        model, validation, completed(observer, Silent()), data_dir, settings, on_round, track,
    )  # fmt: skip
    runs = work.run()
    result = summarize(
        work.methods,
        runs,
        reference=work.reference,
        seeds=list(work.seeds),
        target=to_accuracy,
        same_clients=work.same_clients,
        tuning=work.tuning,
        notes=work.notes,
        folder=work.out,
    )
    result["command"] = command or f"commonground.compare.compare({', '.join(work.methods)})"
    comparison = Comparison(result, runs, work.out)
    if work.out is not None:
        _write(comparison, work.out)
    return comparison


class _Comparing:
    """A comparison in progress."""

    def __init__(
        self,
        methods: Sequence[str | Algorithm],
        data: FederatedDataset | str,
        seeds: int,
        out: Path | None,
        reference: str | None,
        target: float | None,
        grid: Mapping[str, Sequence[Any]],
        local_only: bool,
        model: str | nn.Module | None,
        validation: float,
        observer: ComparisonObserver,
        data_dir: str | None,
        settings: Mapping[str, Any],
        on_round: OnRound | Sequence[OnRound] | None,
        track: Track,
    ) -> None:
        if isinstance(methods, str) or not methods:
            raise ConfigError("name at least one method to compare, for example: commonground compare fedrep fedavg")
        check_objects(data, model)
        if seeds < 1:
            raise ConfigError(f"the number of seeds is {seeds}; at least 1 is needed")
        if target is not None and not 0 < target <= 1:
            raise ConfigError(f"the target {target:g} is no accuracy; give a number above 0 and at most 1, such as 0.8")
        if not 0 < validation < 1:
            raise ConfigError(f"the validation share is {validation:g}; it must lie between 0 and 1")
        self.data, self.out, self.validation, self.target = data, out, validation, target
        self.observer, self.data_dir = observer, data_dir
        self.on_round, self.track = as_one(on_round), track
        Tracking(track, out)  # refuses trackers that cannot be
        self.module = model if isinstance(model, nn.Module) else None
        self.common = dict(settings)
        self.common["data"] = data if isinstance(data, str) else data.name
        if model is not None:
            self.common["model"] = model if isinstance(model, str) else type(model).__name__
        for key in {"algorithm"} & set(settings):
            raise ConfigError(f"'{key}' is no setting of a comparison; name the methods")
        first = RunConfig.make({k: v for k, v in self.common.items() if k != "options"}).seed
        self.seeds = range(first, first + seeds)
        self.notes: list[str] = []
        self.tuning: list[Tuning] = []
        self.same_clients = not isinstance(data, str)
        self.methods = self._methods(methods, local_only)
        self.grid = check_grid(grid)
        self._check_options()
        self.candidates = {label: candidates(method, self.grid) for label, method in self.methods.items()}
        self.configs = self._configs()
        self.reference = self._reference(reference) if reference is not None else next(iter(self.methods))

    # -- checks before anything runs ----------------------------------------------------------------------------

    def _methods(self, texts: Sequence[str | Algorithm], local_only: bool) -> dict[str, Method]:
        methods: dict[str, Method] = {}
        for method in map(Method.parse, texts):
            if method.label in methods:
                raise ConfigError(f"the method '{method.label}' is named twice with the same settings")
            method.make()
            methods[method.label] = method
        if local_only and all(method.name != "local" for method in methods.values()):
            methods["local"] = Method("local")
            self.notes.append("Local Only was added as the yardstick; --no-local-only leaves it out.")
            self.observer.note(self.notes[-1])
        return methods

    def _check_options(self) -> None:
        for where, keys in (("the grid's setting", self.grid), ("the setting", self.common.get("options", {}))):
            for key in keys:
                if where == "the grid's setting" and key in COMMON:
                    raise ConfigError(f"{where} '{key}' must be equal for all methods and candidates; give it once")
                if not any(method.has(key) for method in self.methods.values()):
                    near = meant(key, [known for method in self.methods.values() for known in method.known])
                    raise ConfigError(f"no method of this comparison has {where} '{key}'{near}")

    def _configs(self) -> dict[str, list[RunConfig]]:
        """Every method's configuration with the first seed, one per candidate."""
        found: dict[tuple[str, str], str] = {}
        configs: dict[str, list[RunConfig]] = {}
        for label, method in self.methods.items():
            configs[label] = [method.config(self.common, chosen) for chosen in self.candidates[label]]
            first = configs[label][0]
            same = (repr(method.make(first.options)), repr(first.model_copy(update={"options": {}})))
            if same in found:
                raise ConfigError(f"the methods '{found[same]}' and '{label}' are the same with identical settings")
            found[same] = label
        return configs

    def _reference(self, text: str) -> str:
        """The label of the reference method."""
        known = ", ".join(self.methods)
        named = [label for label, method in self.methods.items() if text in (method.name, method.title)]
        if text in self.methods:
            return text
        try:
            parsed: Method | None = Method.parse(text)
        except ConfigError:
            parsed = None
        same = [label for label, method in self.methods.items() if method == parsed] or named
        if len(same) != 1:
            which = "none" if not same else "more than one"
            near = "" if same else meant(text, self.methods)
            raise ConfigError(f"the reference '{text}'{near} names {which} of the compared methods; they are {known}")
        return same[0]

    def _check_folder(self, resolved: Mapping[str, RunConfig]) -> None:
        """Every run that is already there must belong to this comparison."""
        if self.out is None:
            return
        if RunFolder(self.out).exists:
            raise RunError(f"'{self.out}' holds a single run; choose another --out for the comparison")
        if self.out.exists() and not self.out.is_dir():
            raise RunError(f"'{self.out}' is a file; --out needs a folder")
        one = next(iter(resolved.values()))
        for path in sorted(self.out.glob("*/seed-*/config.toml")):
            before = RunFolder(path.parent).config()
            for key in _SAME:
                old, new = getattr(before, key), getattr(one, key)
                if old != new:
                    raise RunError(
                        f"'{self.out}' holds a comparison with {key} = {old!r}, not {new!r} (see '{path.parent}'); "
                        "choose another --out"
                    )
        for label, config in resolved.items():
            for seed in self.seeds if len(self.candidates[label]) == 1 else ():
                folder = RunFolder(self._folder(label, seed) or self.out)
                if folder.exists:
                    folder.check_same(config.model_copy(update={"seed": seed}), free=FREE - {"rounds"})

    # -- runs ---------------------------------------------------------------------------------------------------

    def run(self) -> dict[str, list[Run]]:
        """All runs, by label, in the order of the seeds."""
        runs: dict[str, list[Run]] = {label: [] for label in self.methods}
        steps = self._steps()
        self.observer.plan(steps)
        remaining = iter(steps)
        names: set[tuple[str, ...] | None] = set()
        for seed in self.seeds:
            data = self._load(seed)
            if self.target is not None and data.task.metric != "accuracy":
                raise ConfigError(
                    f"the target is an accuracy, and {data.name} is judged by {Headline.of(data.task).name}; leave it "
                    "out"
                )
            names.add(data.client_names)
            if seed == self.seeds[0]:
                self.observer.note(f"{len(self.methods)} methods on {data.describe()}; {len(self.seeds)} seeds")
                self._check_folder({label: self._setup(label, 0, seed, data).config for label in self.methods})
            for label in self.methods:
                chosen = self._tune(label, seed, data, remaining)
                setup = self._setup(label, chosen, seed, data)
                step = self.observer.step(next(remaining))
                try:
                    run = run_training(
                        setup,
                        out=self._folder(label, seed),
                        resume=True,
                        observer=step,
                        on_round=partial(self._hear, label, seed),
                        track=self.track,
                    )
                except UpdateError as error:
                    raise type(error)(f"{self.methods[label].title}, seed {seed}: {error}") from None
                # What is in files needs no room in memory.
                runs[label].append(run.in_files(self.module, self.methods[label].given))
        self.same_clients = self.same_clients or (len(names) == 1 and None not in names)
        return runs

    def _hear(self, label: str, seed: int, row: dict[str, Any]) -> None:
        if self.on_round is not None:
            self.on_round({"method": label, "seed": seed, **row})

    def _steps(self) -> list[Step]:
        """All runs in their order."""
        plan: list[tuple[str, int, int, Mapping[str, Any] | None]] = []
        for seed in self.seeds:
            for label, method in self.methods.items():
                tried = zip(self.configs[label], self.candidates[label], strict=True)
                if len(self.candidates[label]) > 1:
                    plan += [(method.title, seed, config.rounds, candidate) for config, candidate in tried]
                plan.append((method.title, seed, self.configs[label][0].rounds, None))
        return [Step(number, len(plan), *rest) for number, rest in enumerate(plan, 1)]

    def _load(self, seed: int) -> FederatedDataset:
        given = None if isinstance(self.data, str) else self.data
        changed = any(self.common.get(key) for key in ("feature_noise", "train_samples", "test_samples"))
        if given is not None and not changed:
            return given
        # As a single run would load it, with all its defaults, and limited and noisy before it is split further.
        return self._setup(next(iter(self.methods)), 0, seed, given).data

    def _setup(self, label: str, candidate: int, seed: int, data: FederatedDataset | None, **changed: Any) -> Setup:
        config = self.configs[label][candidate].model_copy(update={"seed": seed, **changed})
        given = self.methods[label].make(config.options) if self.methods[label].given is not None else None
        module = None if self.module is None else own_copy(self.module)
        return prepare_setup(config, data, module, given, data_dir=self.data_dir)

    def _folder(self, label: str, seed: int) -> Path | None:
        return None if self.out is None else self.out / self.methods[label].folder / f"seed-{seed}"

    def _tune(self, label: str, seed: int, data: FederatedDataset, steps: Iterator[Step]) -> int:
        """Try every candidate on validation data made of training samples; the number of the best one."""
        tried = self.candidates[label]
        if len(tried) == 1:
            return 0
        inner, headline = validation_split(data, self.validation, seed), Headline.of(data.task)
        whole = self._folder(label, seed)
        scores: list[float | None] = []
        for number, candidate in enumerate(tried):
            folder = None if whole is None else whole.parent / "tuning" / whole.name / folder_name(as_text(candidate))
            # Validation data were limited before they were split off; each part is smaller than the limit.
            setup = self._setup(label, number, seed, inner, train_samples=None, test_samples=None)
            try:
                run = run_training(setup, out=folder, resume=True, observer=self.observer.step(next(steps)))
            except UpdateError as error:
                # A rate that is too large is an answer, not the end of the comparison.
                self.observer.note(f"{self.methods[label].title} with {as_text(candidate, ', ')}: {error}")
                scores.append(None)
                continue
            if folder is not None:
                for rest in ("checkpoint", "clients", "finetuning"):  # its score is all that is needed
                    shutil.rmtree(folder / rest, ignore_errors=True)
            scores.append(run.summary["metrics"][setup.rank.key]["mean"])
            headline = Headline.ranking(run.summary)
        chosen = headline.best(scores)
        if chosen is None:
            raise UpdateError(f"{self.methods[label].title}, seed {seed}: training diverged with every candidate")
        best = scores.index(chosen)  # the first of equally good ones
        self.tuning.append(Tuning(label, seed, tried, scores, best))
        self.observer.note(
            f"{self.methods[label].title}, seed {seed}: chosen {as_text(tried[best], ', ')} "
            f"(validation {headline.name} {headline.show(chosen)})"
        )
        for note in edge_notes([(self.methods[label].title, on_edge(tried, best))]):
            self.observer.note(note)
        return best


def _write(comparison: Comparison, folder: Path) -> None:
    """``comparison.json``, ``table.csv`` and ``report.html``."""
    from commonground.compare.tables import method_table
    from commonground.report import write_comparison_report

    try:
        write_atomically(folder / "table.csv", method_table(comparison.result).to_csv())
        text = json.dumps(comparison.result, indent=2, ensure_ascii=False, allow_nan=False)
        write_atomically(folder / "comparison.json", text + "\n")
    except OSError as error:
        raise RunError(f"the folder '{folder}' cannot be written: {error.strerror}") from None
    write_comparison_report(folder)

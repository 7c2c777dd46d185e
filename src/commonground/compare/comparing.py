"""The runs of a comparison: checked before any of them, made seed by seed, tuned on validation data."""

from __future__ import annotations

import itertools
import operator
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from numbers import Real
from pathlib import Path
from typing import Any

from torch import nn

from commonground.algorithms import Algorithm
from commonground.compare.adapting import OF_MODEL, check_spelling, is_adapting, of_all, without_defaults
from commonground.compare.grid import candidates, check_grid, edge_notes, on_edge
from commonground.compare.methods import COMMON, FINE_TUNING, Method, as_text, shown
from commonground.compare.observer import ComparisonObserver, Step
from commonground.compare.reaching import asked_target
from commonground.compare.results import Diverged, GridResult
from commonground.config import RunConfig, with_usual_names
from commonground.counted import counted
from commonground.data import FederatedDataset
from commonground.data.validation import validation_split
from commonground.engine import Run, run_training
from commonground.engine.interrupt import more_runs
from commonground.engine.loop import OnRound, as_one
from commonground.engine.option_checks import is_chosen
from commonground.engine.own_metrics import metrics_of
from commonground.engine.prepare import check_objects, checked_algorithm, named, prepare_setup
from commonground.engine.setup import Setup
from commonground.engine.state.folder import FREE, RunFolder
from commonground.engine.tracked import Track, Tracking
from commonground.errors import CommonGroundError, ConfigError, NotFiniteError, RunError, UpdateError
from commonground.existing import check_folder
from commonground.models import is_pretrained, own_copy
from commonground.quoting import folder_name
from commonground.suggest import meant
from commonground.tasks import CLASSIFICATION, Headline, Target
from commonground.tasks.rank import assumed_way

__all__ = ["Comparing"]

# Settings of a run that must be equal in every run of a comparison's folder.
_SAME = sorted(COMMON - {"algorithm", "options", "seed"})


def _told_apart_by(config: RunConfig) -> str:
    """What a method's configuration is beside its hyperparameters."""
    options = sorted(without_defaults(config).items())
    return repr(config.model_copy(update={"options": {}, "model_options": dict(options)}))


class Comparing:
    """A comparison in progress; its arguments are those of :func:`~commonground.compare.compare`.

    Raises:
        ConfigError: methods or settings are none, or do not go together.
    """

    def __init__(
        self,
        methods: Sequence[str | Algorithm],
        data: FederatedDataset | str | os.PathLike[str],
        seeds: int,
        out: Path | None,
        reference: str | None,
        to_accuracy: float | None,
        to_metric: float | None,
        grid: Mapping[str, Sequence[Any]],
        local_only: bool,
        model: str | nn.Module | None,
        validation: float,
        observer: ComparisonObserver,
        data_dir: str | None,
        settings: Mapping[str, Any],
        on_round: OnRound | Sequence[OnRound] | None,
        track: Track,
        allow_other_numerics: bool,
    ) -> None:
        if isinstance(methods, str | Algorithm) or not isinstance(methods, Iterable):
            raise ConfigError(f"methods must be a list of names, such as ['fedrep', 'fedavg'], not {methods!r}")
        if not methods:
            raise ConfigError("name at least one method to compare, for example: commonground compare fedrep fedavg")
        data, settings = named(data), with_usual_names(settings)
        check_objects(data, model, settings)
        if isinstance(seeds, bool) or not hasattr(seeds, "__index__"):
            raise ConfigError(f"seeds is how many, and not {seeds!r}; seed=… is the first of them")
        seeds = operator.index(seeds)
        if seeds < 1:
            raise ConfigError(f"the number of seeds is {seeds}; at least 1 is needed")
        for name, share in (("to_accuracy", to_accuracy), ("to_metric", to_metric), ("validation", validation)):
            if share is not None and (isinstance(share, bool) or not isinstance(share, Real)):
                raise ConfigError(f"{name} must be a number, not {share!r}")
        if reference is not None and not isinstance(reference, str):
            raise ConfigError(f"reference must be the name of a method, not {reference!r}")
        if to_accuracy is not None and to_metric is not None:
            raise ConfigError("give one of to_accuracy and to_metric: there is one target")
        if to_accuracy is not None:
            Target(Headline.of(CLASSIFICATION), to_accuracy)  # refuses what is none, before there are data
        if not 0 < validation < 1:
            raise ConfigError(f"the validation share is {validation:g}; it must lie between 0 and 1")
        self.data, self.out, self.validation = data, out, validation
        self.to_accuracy, self.to_metric = to_accuracy, to_metric
        self.target: Target | None = None  # known once there are data
        self.observer, self.data_dir = observer, data_dir
        self.other_numerics = allow_other_numerics
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
        self.tuning: list[GridResult] = []
        self.diverged: dict[str, Diverged] = {}
        self.same_clients = not isinstance(data, str)
        self.methods = self._methods(methods, local_only)
        self.grid = check_grid(grid)
        self._check_options()
        self._check_adapting()
        self._check_common()
        self.candidates = {label: candidates(method, self.grid, self.common) for label, method in self.methods.items()}
        self._check_grid()
        self._tell_of_passed_over()
        if assumed := assumed_way(self.common.get("rank_by"), metrics_of(self.common.get("metric"))):
            self._note(assumed)
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
            self._note("Local Only was added as the yardstick; --no-local-only leaves it out.")
        return methods

    def _check_options(self) -> None:
        for where, keys in (("the grid's setting", self.grid), ("the setting", self.common.get("options", {}))):
            for key in keys:
                common = key in COMMON or (key.startswith(OF_MODEL) and not is_adapting(key))
                if where == "the grid's setting" and common:
                    check_spelling(key)
                    raise ConfigError(f"{where} '{key}' must be equal for all methods and candidates; give it once")
                if not any(method.has(key) for method in self.methods.values()):
                    near = meant(key, [known for method in self.methods.values() for known in method.known])
                    raise ConfigError(f"no method of this comparison has {where} '{key}'{near}")

    def _check_adapting(self) -> None:
        """Refuse options of adapting a model where it is none that is adapted."""
        for key in self._adapting():
            if not is_pretrained(self.common.get("model")):
                raise ConfigError(
                    f"'{key}' says how a pretrained model is adapted (--model hf:NAME); options of other models must "
                    "be equal for all methods: --set model.NAME=VALUE"
                )

    def _adapting(self) -> list[str]:
        """Options of adapting the model that methods or the grid name."""
        named = itertools.chain(self.grid, *(method.settings for method in self.methods.values()))
        return [key for key in dict.fromkeys(named) if is_adapting(key)]

    def _check_common(self) -> None:
        """Refuse a setting of all methods that says nothing to any of them."""
        passed = set.intersection(*(method.passes_over(self.common) for method in self.methods.values()))
        for key in passed & self.common.keys():
            if is_chosen(key, self.common[key]):
                first = next(iter(self.methods.values()))
                config = RunConfig.make({**first.config(self.common).model_dump(), key: self.common[key]})
                checked_algorithm(config, first.given)
                if key in FINE_TUNING and self.common.get("finetune_epochs"):
                    raise ConfigError(
                        f"--finetune-epochs {self.common['finetune_epochs']} is for methods that leave clients with a "
                        "global model, and none of these does; +ft behind a method's name fine-tunes its global model "
                        "all the same"
                    )

    def _check_grid(self) -> None:
        """Refuse a setting of the grid that says nothing to any method."""
        used = {key for tried in self.candidates.values() for chosen in tried for key in chosen}
        for key in self.grid:
            if key not in used and not any(key in method.settings for method in self.methods.values()):
                raise ConfigError(f"the grid's setting '{key}' says nothing to any method of this comparison")

    def _note(self, sentence: str) -> None:
        """Say something now and under the table."""
        self.notes.append(sentence)
        self.observer.note(sentence)

    def _tell_of_passed_over(self) -> None:
        """Note which methods are run without a setting of all methods, since it says nothing to them."""
        for key, value in self.common.items():
            without = [
                method.title
                for method in self.methods.values()
                if method.name != "local"
                and key in method.passes_over(self.common) - set(FINE_TUNING)
                and key not in method.settings
            ]
            if without and key in RunConfig.model_fields and is_chosen(key, value):
                self._note(f"{key.replace('_', ' ')} {value} says nothing to {', '.join(without)}.")

    def _configs(self) -> dict[str, list[RunConfig]]:
        """Every method's configuration with the first seed, one per candidate."""
        configs: dict[str, list[RunConfig]] = {}
        for label, method in self.methods.items():
            configs[label] = [method.config(self.common, chosen) for chosen in self.candidates[label]]
            for config in configs[label]:
                checked_algorithm(config, None if method.given is None else method.make(config.options))
        self._check_different(configs)
        return configs

    def _check_different(self, configs: Mapping[str, Sequence[RunConfig]]) -> None:
        """Refuse two methods that have the same candidates."""
        found: dict[tuple[tuple[str, str], ...], str] = {}
        for label, own in configs.items():
            make = self.methods[label].make
            same = tuple((repr(make(each.options)), _told_apart_by(each)) for each in own)
            if same in found:
                raise ConfigError(f"the methods '{found[same]}' and '{label}' are the same with identical settings")
            found[same] = label

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

    def _resolved(self, label: str, seed: int, data: FederatedDataset) -> list[RunConfig]:
        """The configuration of each candidate, every automatic setting filled in."""
        method = self.methods[label]
        try:
            return [self._setup(label, number, seed, data).config for number in range(len(self.candidates[label]))]
        except CommonGroundError as error:
            if not method.settings:  # what is refused is not this method's alone
                raise
            raise type(error)(f"{method.title}: {error}") from None

    def _check_folder(self, resolved: Mapping[str, Sequence[RunConfig]]) -> None:
        """Every run that is already there must belong to this comparison."""
        if self.out is None:
            return
        if RunFolder(self.out).exists:
            raise RunError(f"'{self.out}' holds a single run; choose another --out for the comparison")
        check_folder(self.out)
        one = next(iter(resolved.values()))[0]
        for path in sorted(self.out.glob("*/seed-*/config.toml")):
            before = RunFolder(path.parent).config()
            for key in _SAME:
                old, new = getattr(before, key), getattr(one, key)
                if key == "model_options":
                    old, new = of_all(old), of_all(new)
                if old != new:
                    raise RunError(
                        f"'{self.out}' holds a comparison with {key} = {old!r}, not {new!r} (see '{path.parent}'); "
                        "choose another --out"
                    )
        for label, configs in resolved.items():
            for seed in self.seeds:
                folder = RunFolder(self.folder_of(label, seed) or self.out)
                if folder.exists:
                    self._check_same(folder, [config.model_copy(update={"seed": seed}) for config in configs])

    def _check_same(self, folder: RunFolder, candidates: Sequence[RunConfig]) -> None:
        """A run that is already there must be of one of a method's candidates; the nearest says why it is of none."""
        before = folder.config().model_dump()
        refused: list[tuple[int, RunError]] = []
        for config in candidates:
            try:
                return folder.check_same(config, free=FREE - {"rounds"}, other_numerics=self.other_numerics)
            except RunError as error:
                if len(candidates) == 1 and (folder.path.parent / "tuning").is_dir():
                    raise RunError(
                        f"the run in '{folder.path}' has what a grid chose: give the same --grid, or choose another "
                        "--out"
                    ) from None
                refused.append((sum(before[name] != value for name, value in config.model_dump().items()), error))
        raise min(refused, key=lambda found: found[0])[1]

    # -- runs ---------------------------------------------------------------------------------------------------

    def first(self, seed: int) -> FederatedDataset:
        """The data of the first seed, with which all that can be refused is refused.

        Raises:
            CommonGroundError: data, settings or files, in one sentence.
        """
        data = self._load(seed)
        self.target = asked_target(data, self.to_accuracy, self.to_metric)
        seeds = counted(len(self.seeds), "seed")
        self.observer.note(f"{counted(len(self.methods), 'method')} on {data.describe()}; {seeds}")
        # Of every candidate, also where there is no folder: one that cannot run is told before anything does.
        resolved = {label: self._resolved(label, seed, data) for label in self.methods}
        self._check_different(resolved)  # again, since a setting may be the one that follows from the data
        self._check_folder(resolved)
        return data

    def setup_of(self, label: str, seed: int, data: FederatedDataset, candidate: int = 0) -> Setup:
        """A method's run with a seed and one of its candidates."""
        return self._setup(label, candidate, seed, data)

    @more_runs()
    def run(self) -> dict[str, list[Run]]:
        """All runs, by label, in the order of the seeds; without those of methods in ``diverged``.

        A method whose training diverges with one seed is not trained with later ones: means over the seeds that it
        survives are not comparable with the others'.

        Raises:
            CommonGroundError: data, files or a run, in one sentence; also where training of the reference diverges.
        """
        runs: dict[str, list[Run]] = {label: [] for label in self.methods}
        steps = self._steps()
        self._plan(steps)
        names: set[tuple[str, ...] | None] = set()
        for seed in self.seeds:
            data = self.first(seed) if seed == self.seeds[0] else self._load(seed)
            names.add(data.client_names)
            for label in self.methods:
                if label in self.diverged:
                    continue
                try:
                    runs[label].append(self._run(label, seed, data, iter(steps[seed, label])))
                except NotFiniteError as error:
                    self._leave_out(label, seed, error)
                    self._plan(steps)
                except UpdateError as error:
                    raise type(error)(f"{self.methods[label].title}, seed {seed}: {error}") from None
        # The same clients once more are no others: known by their names, or by all of their data.
        data_of = {run.summary["data_fingerprint"] for run in runs[self.reference]}
        same = (len(names) == 1 and None not in names) or (len(data_of) == 1 < len(self.seeds))
        self.same_clients = self.same_clients or same
        return {label: of_method for label, of_method in runs.items() if label not in self.diverged}

    def _run(self, label: str, seed: int, data: FederatedDataset, steps: Iterator[Step]) -> Run:
        """A method's run with a seed, with the best of its candidates."""
        chosen = self._tune(label, seed, data, steps)
        setup = self._setup(label, chosen, seed, data)
        self._check_choice(label, seed, chosen, setup.config)
        run = run_training(
            setup,
            out=self.folder_of(label, seed),
            resume=True,
            observer=self.observer.step(replace(next(steps), rounds=setup.config.rounds)),
            on_round=partial(self._hear, label, seed),
            track=self.track,
            allow_other_numerics=self.other_numerics,
        )
        # What is in files needs no room in memory.
        return run.in_files(self.module, self._given(label, chosen))

    def _check_choice(self, label: str, seed: int, chosen: int, config: RunConfig) -> None:
        """A run that is already there must be of the candidate chosen now, which a wider grid may have changed."""
        path = self.folder_of(label, seed)
        if path is None or len(self.candidates[label]) == 1 or not RunFolder(path).exists:
            return
        try:
            self._check_same(RunFolder(path), [config])
        except RunError:
            # That it is of one of the candidates was checked before anything ran.
            raise RunError(
                f"the grid now chooses {shown(self.candidates[label][chosen])} for {self.methods[label].title}, seed "
                f"{seed}, but the run in '{path}' is of another choice; delete that folder to train it again, or "
                "choose another --out"
            ) from None

    def _leave_out(self, label: str, seed: int, error: NotFiniteError) -> None:
        """A method that diverges has no figures; the others are compared without it, unless it is the reference."""
        title = self.methods[label].title
        if label == self.reference:
            others = "; it is what the others are compared with: name another by --reference"
            raise type(error)(f"{title}, seed {seed}: {error}{others if len(self.methods) > 1 else ''}") from None
        self.diverged[label] = Diverged(label, seed, str(error))
        self.observer.note(f"{title}, seed {seed}: {error}; it is left out of the comparison")

    def _hear(self, label: str, seed: int, row: dict[str, Any]) -> None:
        if self.on_round is not None:
            self.on_round({"method": label, "seed": seed, **row})

    def _steps(self) -> dict[tuple[int, str], list[Step]]:
        """The runs in their order, by seed and method: of its candidates, where there are several, and the one that
        counts.
        """
        plan: dict[tuple[int, str], list[tuple[int, Mapping[str, Any] | None]]] = {}
        for seed in self.seeds:
            for label in self.methods:
                tried = zip(self.configs[label], self.candidates[label], strict=True)
                several = len(self.candidates[label]) > 1
                plan[seed, label] = [(config.rounds, candidate) for config, candidate in tried] if several else []
                plan[seed, label].append((max(config.rounds for config in self.configs[label]), None))
        total, numbers = sum(map(len, plan.values())), itertools.count(1)
        return {
            (seed, label): [Step(next(numbers), total, self.methods[label].title, seed, *rest) for rest in of_run]
            for (seed, label), of_run in plan.items()
        }

    def _plan(self, steps: Mapping[tuple[int, str], Sequence[Step]]) -> None:
        """Tell the observer what there is to do, but for the methods that are left out."""
        kept = (of_run for (_, label), of_run in steps.items() if label not in self.diverged)
        self.observer.plan([step for of_run in kept for step in of_run])

    def _load(self, seed: int) -> FederatedDataset:
        given = None if isinstance(self.data, str) else self.data
        changed = any(self.common.get(key) for key in ("feature_noise", "train_samples", "test_samples"))
        if given is not None and not changed:
            return given
        # As a single run would load it, with all its defaults, limited and noisy; each run holds out rows of its own.
        whole: dict[str, Any] = {"validation_fraction": 0.0, "early_stopping": None}
        return self._setup(next(iter(self.methods)), 0, seed, given, **whole).data

    def _setup(self, label: str, candidate: int, seed: int, data: FederatedDataset | None, **changed: Any) -> Setup:
        config = self.configs[label][candidate].model_copy(update={"seed": seed, **changed})
        given = self._given(label, candidate)
        module = None if self.module is None else own_copy(self.module)
        return prepare_setup(config, data, module, given, data_dir=self.data_dir)

    def _given(self, label: str, candidate: int) -> Algorithm | None:
        """A method that was given as an object, with a candidate's hyperparameters; None of one that has a name."""
        method = self.methods[label]
        return None if method.given is None else method.make(self.configs[label][candidate].options)

    def folder_of(self, label: str, seed: int) -> Path | None:
        """The folder of a method's run with a seed; None if nothing is written."""
        return None if self.out is None else self.out / self.methods[label].folder / f"seed-{seed}"

    def _tune(self, label: str, seed: int, data: FederatedDataset, steps: Iterator[Step]) -> int:
        """Try every candidate on validation data made of training samples; the number of the best one."""
        tried = self.candidates[label]
        if len(tried) == 1:
            return 0
        inner, headline = validation_split(data, self.validation, seed), Headline.of(data.task)
        whole = self.folder_of(label, seed)
        scores: list[float | None] = []
        diverged: set[int] = set()
        for number, candidate in enumerate(tried):
            name = folder_name(as_text(candidate)) or "usual"
            folder = None if whole is None else whole.parent / "tuning" / whole.name / name
            # Validation data were limited before they were split off; each part is smaller than the limit.
            setup = self._setup(label, number, seed, inner, train_samples=None, test_samples=None)
            try:
                run = run_training(
                    setup,
                    out=folder,
                    resume=True,
                    observer=self.observer.step(next(steps)),
                    allow_other_numerics=self.other_numerics,
                )
            except NotFiniteError as error:
                # A rate that is too large is an answer, not the end of the comparison.
                self.observer.note(f"{self.methods[label].title} with {shown(candidate)}: {error}")
                scores.append(None)
                diverged.add(number)
                continue
            if folder is not None:
                for rest in ("checkpoint", "clients", "finetuning"):  # its score is all that is needed
                    shutil.rmtree(folder / rest, ignore_errors=True)
            scores.append(run.summary["metrics"][setup.rank.key]["mean"])
            headline = Headline.ranking(run.summary)
        chosen = headline.best(scores)
        if chosen is None:
            if len(diverged) == len(tried):
                raise NotFiniteError("training diverged with every candidate")
            raise ConfigError(
                f"{self.methods[label].title}, seed {seed}: {headline.name} is not defined on any client's validation "
                "rows, so that no candidate of the grid can be chosen by it; take another --rank-by or --validation"
            )
        best = scores.index(chosen)  # the first of equally good ones
        self.tuning.append(GridResult(label, seed, tried, scores, best, frozenset(diverged)))
        self.observer.note(
            f"{self.methods[label].title}, seed {seed}: chosen {shown(tried[best])} "
            f"(validation {headline.name} {headline.show(chosen)})"
        )
        for note in edge_notes([(self.methods[label].title, on_edge(tried, best))]):
            self.observer.note(note)
        return best

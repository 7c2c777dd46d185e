"""Saving a run's progress in its folder, and taking it up again."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from itertools import zip_longest
from typing import Any

import torch

from commonground.engine.backends.base import Engine
from commonground.engine.evaluation_plan import EvaluationPlan
from commonground.engine.finishing import trained_from
from commonground.engine.more_rounds import not_evaluated
from commonground.engine.numerics import changed_numerics, numerics_of
from commonground.engine.observer import Observer
from commonground.engine.progress import Progress
from commonground.engine.read_trained import read_trained
from commonground.engine.run import Run, at_hand
from commonground.engine.setup import Setup
from commonground.engine.state.checkpoint import Checkpoint
from commonground.engine.state.digests import digest
from commonground.engine.state.folder import RunFolder, plain_settings
from commonground.errors import RunError
from commonground.quoting import quoted

__all__ = ["Keeper"]


class Keeper:
    """Keeps one run's progress; without a folder it keeps nothing.

    Args:
        setup: of the run.
        folder: of the run, if it has one.
        progress: what is saved and restored.
        observer: told what is worth a line.
        other_numerics: go on with other threads, precision or device than before.
    """

    def __init__(
        self,
        setup: Setup,
        folder: RunFolder | None,
        progress: Progress,
        observer: Observer,
        other_numerics: bool = False,
    ) -> None:
        self._other_numerics = other_numerics
        self.setup, self.config = setup, setup.config
        self.folder, self.progress, self.observer = folder, progress, observer
        self._saved_round = 0
        self._saved_at = time.perf_counter()
        self._save_cost = 0.0

    # -- saving -------------------------------------------------------------------------------------------------

    def save(self, engine: Engine) -> None:
        """Write a checkpoint of the last finished round, if it has none yet.

        Raises:
            RunError: it cannot be written; the one before is untouched.
        """
        done = self.progress.done
        if self.folder is None or not self.folder.exists or self.progress.between or done == self._saved_round:
            return
        began = time.perf_counter()
        try:
            personal = engine.save(self.folder.checkpoints.personal(), done)
            clients = {
                "took_part": torch.from_numpy(self.progress.took_part),
                "heard": torch.from_numpy(self.progress.heard),
                **{f"memory/{name}": value for name, value in self.progress.memory.items()},
            }
            settings, files = plain_settings(self.config), self.folder.files
            shared, totals = self.progress.shared, self.progress.totals
            self.folder.save(Checkpoint(done, totals, shared, clients, settings, files, personal))
        except OSError as error:
            good = f"the one of round {self._saved_round} is untouched" if self._saved_round else "there is none yet"
            raise RunError(
                f"the checkpoint of round {done} cannot be written to '{self.folder.checkpoints.path}': "
                f"{error.strerror or error}; {good}"
            ) from None
        self._saved_round = done
        self._saved_at = time.perf_counter()
        self._save_cost = self._saved_at - began

    def save_if_due(self, engine: Engine) -> None:
        """Keep checkpoints under 5 % of the time: after a SIGKILL, the rounds since the last one are repeated."""
        if time.perf_counter() - self._saved_at > max(0.5, 20 * self._save_cost):
            self.save(engine)

    def go_back(self, engine: Engine, round: int) -> None:
        """Take the models of an earlier round, whose checkpoint was kept; lines and totals stay those of all rounds.

        Raises:
            RunError: the checkpoint is gone or damaged.
        """
        if self.folder is None or round == self.progress.done:
            return
        name = self.folder.checkpoints.name_of(round)
        checkpoint = self.folder.load(name)
        if checkpoint is None:
            raise RunError(f"the checkpoint '{name}' of the best round is missing in '{self.folder.checkpoints.path}'")
        self._take(checkpoint)
        engine.load(checkpoint.personal, round)
        engine.last_rounds = self.progress.heard
        self.progress.kept, self.progress.last_scores = round, {}

    def _take(self, checkpoint: Checkpoint) -> None:
        """The server's tensors and what is known of the clients, as they were then."""
        progress = self.progress
        progress.shared = self.setup.laid_out(self.setup.moved(checkpoint.shared))
        progress.took_part = checkpoint.clients["took_part"].numpy()
        progress.heard = checkpoint.clients["heard"].numpy()
        for name, value in checkpoint.clients.items():
            if name.startswith("memory/"):
                progress.memory |= self.setup.moved({name.removeprefix("memory/"): value})

    # -- restoring ----------------------------------------------------------------------------------------------

    def finished(self) -> Run | None:
        """The run in the folder, if nothing of it is left to do.

        Raises:
            RunError: it was on other data or weights, or its results were changed.
        """
        summary = self.folder.summary() if self.folder is not None else None
        if self.folder is None or summary is None or "stopped_after" in summary:
            return None
        early = summary.get("early_stopping", {})
        if summary["rounds"] != self.config.rounds and not early.get("ended_early"):
            return None
        last, tuned = early.get("best_round", self.config.rounds), bool(self.config.finetune_epochs)
        self._check_data(summary["data_fingerprint"], summary.get("base_sha256"))
        self._check_code(summary.get("code"))
        self.folder.check_results()
        best = self.folder.checkpoints.name_of(last) if early else None
        try:
            checkpoint = self.folder.load("finetuned.safetensors" if tuned else best)
        except RunError as error:
            if tuned:
                self.observer.note(f"{error}; fine-tuning is repeated")
            return None  # else the one before is taken, and its last rounds are repeated
        # A fine-tuned model is kept as of the rounds done, whichever of them was the best.
        if checkpoint is not None and checkpoint.round != (summary["rounds"] if tuned else last):
            return None
        self.observer.note(f"the run in '{self.folder.path}' is already finished")
        rows, clients, path = self.folder.rounds.rows(), self.folder.clients(), self.folder.path
        if checkpoint is None:  # removed since; its results are still there
            return Run(self.config, summary, rows, clients, path, partial(read_trained, self.folder))
        trained = trained_from(self.setup, path, checkpoint.shared, checkpoint, tuned)
        return Run(self.config, summary, rows, clients, path, at_hand(trained))

    def restore(self, engine: Engine) -> None:
        """Go back to the folder's newest checkpoint, if there is one, and begin or go on there.

        Raises:
            RunError: it was on other data or weights, computed with something else, or a file is damaged.
        """
        self.progress.totals["numerics"] = [{"after_round": 0, **numerics_of(engine)}]
        if self.folder is None:
            return
        checkpoint = self.folder.load(note=self.observer.note, rows=True)
        if checkpoint is None:
            if (self.folder.path / "summary.json").exists():
                raise RunError(f"the run in '{self.folder.path}' has no checkpoint any more from which it could go on")
            self.folder.rounds.keep(0)
            self.folder.begin(self.config, self.setup.data, self.setup.start)
            return
        progress = self.progress
        self._check_data(checkpoint.totals["data_fingerprint"], checkpoint.totals.get("base_sha256"))
        if not self._other_numerics:
            self._check_code(checkpoint.totals.get("code"), "accept that with --allow-other-numerics, ")
        now, code = progress.totals["numerics"][0] | {"after_round": checkpoint.round}, progress.totals["code"]
        progress.totals |= {**checkpoint.totals, "code": code}
        changed = self._check_numerics(now)
        self._take(checkpoint)
        engine.load(checkpoint.personal, checkpoint.round)
        progress.history = self.folder.resume(checkpoint)  # the last that may refuse, before it changes anything
        progress.done = self._saved_round = checkpoint.round
        self._plan_again(engine)
        if changed:
            self._saved_round = -1  # a checkpoint that knows of it follows at once
            self.save(engine)
        self.folder.go_on(self.config)

    def _check_numerics(self, now: dict[str, Any]) -> bool:
        """Whether the run goes on with something else than before; refused unless its user wants it."""
        assert self.folder is not None
        met = self.progress.totals["numerics"]
        changed = changed_numerics({**met[-1], "after_round": now["after_round"]}, now)
        if changed and not self._other_numerics:
            raise RunError(
                f"the run in '{self.folder.path}' would go on with {changed}, and its numbers would not be those of an "
                "unbroken run: resume it as it began, accept that with --allow-other-numerics, or choose another "
                "--out"
            )
        if changed:
            self.observer.note(
                f"from round {now['after_round'] + 1} on the run computes with {changed}: its numbers are not those of "
                "an unbroken run"
            )
            self.progress.totals["numerics"] = [*met, now]
        return bool(changed)

    def _plan_again(self, engine: Engine) -> None:
        """Leave out what was measured because a round was the last one of fewer."""
        assert self.folder is not None
        plan, task = EvaluationPlan(self.setup), self.setup.data.task
        history = self.progress.history
        planned = [row if plan.is_due(row["round"]) else not_evaluated(row, task) for row in history]
        if planned != history:
            self.progress.history = planned
            self.folder.rounds.replace(planned)
            self._saved_round = -1  # a checkpoint that knows these lines follows at once
            self.save(engine)

    def _check_code(self, before: Mapping[str, str] | None, accept: str = "") -> None:
        """Refuse to go on with, or to tell as its own, what another text of a user's Python file would give."""
        for file, known in (before or {}).items():
            if self.progress.totals["code"].get(file, known) != known:
                raise RunError(
                    f"'{file}' is another one than when the run in '{self.folder.path if self.folder else ''}' was "
                    f"trained with it; put it back, {accept}or choose another --out"
                )

    def _check_start(self) -> None:
        """Refuse to go on where other weights would be those with which clients begin."""
        if self.setup.init_from is None or self.setup.start is None or self.folder is None:
            return
        before = self.folder.start()
        if before is None or digest(before) != digest(self.setup.start):
            raise RunError(
                f"the run in '{self.folder.path}' began with other weights than "
                f"'{self.setup.init_from['from']}' has now"
            )

    def _check_data(self, fingerprint: str, base: str | None) -> None:
        if base != self.progress.totals["base_sha256"]:
            raise RunError(
                f"the run in '{self.folder.path if self.folder else ''}' started from other pretrained weights than "
                f"{self.config.model} has now"
            )
        if fingerprint != self.progress.totals["data_fingerprint"]:
            raise RunError(
                f"the run in '{self.folder.path if self.folder else ''}' was started on other data, or on data that "
                f"this version of commonground reads otherwise (fingerprint {fingerprint[:12]}, now "
                f"{self.progress.totals['data_fingerprint'][:12]}); put them back, continue it with the version that "
                "began it, or choose another --out"
            )
        self._check_start()
        before, now = None if self.folder is None else self.folder.schema(), self.setup.data.schema
        for what in ("inputs", "targets"):
            if before is not None and now is not None and getattr(before, what) != getattr(now, what):
                pairs = zip_longest(getattr(before, what), getattr(now, what), fillvalue="none")
                was, is_now = next((old, new) for old, new in pairs if old != new)
                raise RunError(
                    f"the run in '{self.folder.path if self.folder else ''}' was started on a table with "
                    f"{quoted(str(was))} where {quoted(str(is_now))} is now"
                )

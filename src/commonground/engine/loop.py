"""A run: rounds, evaluation and checkpoints."""

from __future__ import annotations

import contextlib
import copy
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from commonground.algorithms import Algorithm, Server, Tensors
from commonground.algorithms.head_tuning import HeadTuning
from commonground.config import RunConfig
from commonground.data import FederatedDataset
from commonground.devices import use_precision
from commonground.engine.backends.base import CachedShared, ClientResult, Engine, Which, payload_bytes, settle
from commonground.engine.backends.factory import make_engine
from commonground.engine.evaluation import Scores, spread_of
from commonground.engine.interrupt import StopFlag
from commonground.engine.metrics import body_drift, round_metrics
from commonground.engine.more_rounds import check_rounds, not_evaluated
from commonground.engine.observer import Observer, Silent, completed
from commonground.engine.prepare import check_objects, prepare_setup
from commonground.engine.results import client_rows, rounded, summarise, weights_sha256
from commonground.engine.run import Run
from commonground.engine.server_optimizer import step_server
from commonground.engine.setup import Setup
from commonground.engine.state.checkpoint import Checkpoint
from commonground.engine.state.folder import RunFolder, describe, plain_settings
from commonground.engine.state.lock import locked
from commonground.engine.state.segment import Segment
from commonground.engine.trained import States, Trained, read_trained
from commonground.errors import ConfigError, RunError
from commonground.keys import numpy_stream
from commonground.models import FrozenBaseModel, base_sha256_of, reset_counters, tensors_of
from commonground.user_code import is_code

__all__ = ["run_training", "sample_clients", "train"]

# Beyond this many clients, rounds during training are judged on a fixed panel, so that a round's cost depends on the
# sampled clients and not on how many exist; the last evaluation always covers everyone.
PANEL_FROM = 2_000
PANEL = 200


OnRound = Callable[[dict[str, Any]], object]
"""What a user wants to do after each round; see :func:`train`."""


def sample_clients(config: RunConfig, clients: int, round: int) -> list[int]:
    """The participants of a round: ``participation`` · clients of them, without replacement, in ascending order."""
    wanted = config.participants(clients)
    if wanted == clients:
        return list(range(clients))
    chosen = numpy_stream(config.seed, "participants", round).choice(clients, wanted, replace=False, shuffle=False)
    return sorted(int(c) for c in chosen)


def train(
    algorithm: str | Algorithm = "fedrep",
    data: FederatedDataset | str = "digits",
    *,
    model: str | nn.Module | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    observer: Observer | None = None,
    on_round: OnRound | None = None,
    data_dir: str | None = None,
    **settings: Any,
) -> Run:
    """Train one algorithm on one federated data set.

    Args:
        algorithm: a name (``commonground list algorithms``) or an :class:`~commonground.algorithms.Algorithm`.
        data: a federated data set, or a name to load with the ``clients``, ``classes_per_client``, ``partition`` and
            ``seed`` of the settings.
        model: a name, or any ``nn.Module``, of which a copy is trained from its present weights (give ``head=`` and
            ``body=`` name patterns unless the head is its last ``nn.Linear``); by default what suits the data.
        out: folder for the run's files; by default none are written.
        resume: continue the run in ``out``. With more ``rounds`` a finished one goes on as well and ends as a run of so
            many rounds would have, where method and learning rate do not depend on their number.
        observer: hears of every round; an object with some of the methods of :class:`~commonground.engine.Observer`.
        on_round: called after each round with its line of ``rounds.jsonl`` as a dict. If it returns False, the run
            stops there and its results so far are returned, with ``stopped_after`` in the summary; in ``out`` it can be
            continued with ``resume=True``. If it raises, the run ends with the exception and keeps its checkpoint.
        data_dir: folder of the data files (default: ``COMMONGROUND_DATA``, else a cache folder).
        **settings: any field of :class:`~commonground.config.RunConfig`.

    Returns:
        The run, finished or stopped.

    Raises:
        CommonGroundError: anything wrong with settings, data, model or files, in one sentence.
    """
    if not isinstance(algorithm, str | Algorithm):
        raise ConfigError(f"algorithm must be a name or an Algorithm object, such as FedRep(), not {algorithm!r}")
    check_objects(data, model)
    values = dict(settings)
    if isinstance(data, FederatedDataset):
        for key, own in (("clients", data.clients), ("classes_per_client", None), ("partition", None)):
            if values.get(key) not in (None, own):
                raise ConfigError(f"{key}={values[key]!r} splits a data set given by name; this one is split already")
    values["algorithm"] = algorithm if isinstance(algorithm, str) else algorithm.name
    if isinstance(algorithm, Algorithm):
        values["options"] = {name: value for name, value in vars(algorithm).items() if value is not None}
    values["data"] = data if isinstance(data, str) else data.name
    if isinstance(model, str):
        values["model"] = model
    elif model is not None:
        values["model"] = type(model).__name__
    setup = prepare_setup(
        RunConfig.make(values),
        None if isinstance(data, str) else data,
        copy.deepcopy(model) if isinstance(model, nn.Module) else None,
        None if isinstance(algorithm, str) else algorithm,
        data_dir=data_dir,
    )
    folder = Path(out) if out is not None else None
    return run_training(setup, out=folder, resume=resume, observer=observer, on_round=on_round)


def run_training(
    setup: Setup,
    *,
    out: Path | None = None,
    resume: bool = False,
    observer: Observer | None = None,
    on_round: OnRound | None = None,
) -> Run:
    """Carry out a prepared run; see :func:`train`."""
    if on_round is not None and not callable(on_round):
        raise ConfigError(f"on_round must be a function of a round's row, not {on_round!r}")
    hearing = completed(observer, Silent())
    folder = RunFolder(out) if out is not None else None
    torch.set_num_threads(setup.config.threads)
    use_precision(setup.config.precision)
    with locked(folder.path) if folder is not None else contextlib.nullcontext():
        if folder is not None:
            if resume and folder.exists:
                folder.check_same(setup.config)
                check_rounds(folder, setup.config, setup.algorithm)
            else:
                folder.check_free()
                if resume:
                    hearing.note(f"there is no run in '{folder.path}' yet: it begins now")
            folder.remove_parts()
        return _Training(setup, folder, hearing, on_round).run()


class _Training:
    """One run in progress."""

    def __init__(
        self, setup: Setup, folder: RunFolder | None, observer: Observer, on_round: OnRound | None = None
    ) -> None:
        self.setup, self.folder, self.observer, self.on_round = setup, folder, observer, on_round
        self.config = setup.config
        self.history: list[dict[str, Any]] = []
        self.shared: Tensors = dict(setup.initial_shared)
        self.memory: Tensors = {}
        self.totals: dict[str, Any] = {
            "bytes_up": 0,
            "bytes_down": 0,
            "seconds": 0.0,
            "data_fingerprint": setup.data.fingerprint(),
            "base_sha256": base_sha256_of(setup.model),
            "changed": {},
        }
        self.heard = np.full(setup.data.clients, -1, dtype=np.int32)
        self.took_part = np.zeros(setup.data.clients, dtype=np.int32)
        self.done = 0
        self._saved_round = 0
        self._saved_at = time.perf_counter()
        self._save_cost = 0.0
        self._last_scores: dict[Which, Scores] = {}
        self._between = False  # whether the clients' state is ahead of the finished rounds

    def run(self) -> Run:
        """All rounds that are left, then the results."""
        finished = self._restore_finished()
        if finished is not None:
            return finished
        engine = make_engine(self.config.engine, self.setup, self.folder.path if self.folder else None)
        with StopFlag() as stop:
            engine.check_stop, engine.note = stop.check, self.observer.note
            try:
                if self.folder is not None:
                    self._restore(engine)
                    if self.done:
                        self.folder.go_on(self.config)
                    else:
                        self.folder.begin(self.config, self.setup.data, self.setup.start)
                engine.last_rounds = self.heard
                self.observer.begin(self.setup, engine.name, self.done)
                try:
                    for round in range(self.done + 1, self.config.rounds + 1):
                        stop.check()
                        row = self._round(engine, round)
                        self.observer.round(row)
                        if self._ends(row):
                            break
                        self._save_if_due(engine)
                finally:
                    # Also after an error or Ctrl-C: what is finished is kept.
                    self._save(engine)
                return self._finish(engine)
            finally:
                self.observer.end()
                engine.close()

    def _ends(self, row: dict[str, Any]) -> bool:
        """Whether the user wants no more rounds."""
        wish = None if self.on_round is None else self.on_round(dict(row))
        return isinstance(wish, bool | np.bool_) and not wish

    # -- one round ----------------------------------------------------------------------------------------------

    def _round(self, engine: Engine, round: int) -> dict[str, Any]:
        began = time.perf_counter()
        clients = sample_clients(self.config, self.setup.data.clients, round)
        algorithm = self.setup.algorithm
        server = self._server(round)
        extra = {client: algorithm.message_to(server, client) for client in clients}
        extra = {client: tensors for client, tensors in extra.items() if tensors}
        full = self.config.metrics == "full" and self._is_due(round)
        tested = engine.evaluate(clients, self.shared, self._kinds()[-1], round - 1) if full else None
        engine.known = self._known(clients)
        results = settle(self.setup, engine.train(round, clients, self.shared, extra), round)
        updates = [r.update for r in results]
        replies: dict[int, Tensors] = {}
        figures: dict[str, float | Tensor | None] = {}
        if any(u.tensors for u in updates):
            figures |= algorithm.round_figures(server, updates)
            algorithm.server_update(server, updates, round)
            step_server(self.config, self.setup.groups.trainable("all"), server, before=self.shared)
            replies = algorithm.replies(server, updates)
        figures["body_drift"] = body_drift(results, self.setup.groups.trainable("body"))
        if tested is not None:
            figures |= round_metrics(self.setup, engine, results, self.shared, server.shared, tested)
        self._between = True
        engine.commit(round, results, replies)
        trained = time.perf_counter()
        # A stop that comes now waits for the end of the round, or no checkpoint could be left.
        check, engine.check_stop = engine.check_stop, lambda: None
        try:
            scores = self._evaluate(engine, server.shared, round)
        finally:
            engine.check_stop = check
        row = self._row(round, results, scores, trained - began, time.perf_counter() - trained)
        row |= {name: _read(value) for name, value in figures.items()}
        saved = sum(payload_bytes({n: self.shared[n] for n in known.names}) for known in engine.known.values())
        row["bytes_down"] = payload_bytes(self.shared) * len(clients) - saved
        row["bytes_down"] += sum(payload_bytes(tensors) for tensors in (*extra.values(), *replies.values()))
        if self.folder is not None:
            self.folder.add_row(row)
        # From here on nothing can fail: the round becomes part of the run as a whole.
        self.heard[clients] = round
        if algorithm.clients_remember:
            for name, value in server.shared.items():
                if not torch.equal(value, self.shared[name]):
                    self.totals["changed"][name] = round
        self.shared, self.memory = server.shared, server.memory
        self.done = round
        self._between = False
        self._last_scores = scores if len(self._panel()) == self.setup.data.clients else {}
        self.took_part[clients] += 1
        self.totals["seconds"] += time.perf_counter() - began
        self.totals["bytes_up"] += row["bytes_up"]
        self.totals["bytes_down"] += row["bytes_down"]
        self.history.append(row)
        return row

    def _known(self, clients: Sequence[int]) -> dict[int, CachedShared]:
        """What participants that took part before need not be sent again."""
        if not self.setup.algorithm.clients_remember:
            return {}
        changed = self.totals["changed"]
        return {
            client: CachedShared(heard, frozenset(name for name in self.shared if changed.get(name, 0) < heard))
            for client, heard in zip(clients, self.heard[clients].tolist(), strict=True)
            if heard > 0
        }

    def _server(self, round: int) -> Server:
        return Server(
            dict(self.shared),
            dict(self.memory),
            round=round,
            clients=self.setup.data.clients,
            lr=self.setup.lr_at(round),
            weighting=self.config.weighting,
            seed=self.config.seed,
        )

    def _evaluate(self, engine: Engine, shared: Tensors, round: int) -> dict[Which, Scores]:
        """Tests due after a round; a method without personal models has its global one tested once."""
        if not self._is_due(round):
            return {}
        return {which: engine.evaluate(self._panel(), shared, which, round) for which in self._kinds()}

    def _is_due(self, round: int) -> bool:
        """Whether a round is evaluated."""
        config = self.config
        return round % config.eval_every == 0 or round == config.rounds or round > config.rounds - config.eval_last

    def _kinds(self) -> list[Which]:
        kinds: list[Which] = ["global"] if self.setup.has_global_model else []
        return [*kinds, "personal"] if self.setup.has_personal_model else kinds

    def _panel(self) -> Sequence[int]:
        """Clients evaluated during training."""
        clients = self.setup.data.clients
        size = self.config.eval_clients or (clients if clients <= PANEL_FROM else PANEL)
        if size >= clients:
            return range(clients)
        chosen = numpy_stream(self.config.seed, "panel").choice(clients, size, replace=False, shuffle=False)
        return sorted(int(c) for c in chosen)

    def _row(
        self,
        round: int,
        results: Sequence[ClientResult],
        scores: Mapping[Which, Scores],
        seconds: float,
        eval_seconds: float,
    ) -> dict[str, Any]:
        task = self.setup.data.task
        mean = {which: spread_of(s.headline)["mean"] for which, s in scores.items()}
        losses = [float(r.loss) for r in results if r.loss is not None]
        judged = scores.get("personal") or scores.get("global")
        return {
            "round": round,
            "train_loss": float(np.mean(losses)) if losses else None,
            f"personal_{task.metric}": mean.get("personal", mean.get("global")),
            f"global_{task.metric}": mean.get("global"),
            "worst_decile": None if judged is None else spread_of(judged.headline)[task.worst],
            "bytes_up": sum(payload_bytes(r.update.tensors) for r in results),
            "bytes_down": 0,
            "seconds": rounded(seconds),
            "eval_seconds": rounded(eval_seconds),
            "lr": self.setup.lr_at(round),
            "participants": len(results),
            "evaluated_clients": len(self._panel()) if scores else 0,
        }

    # -- checkpoints --------------------------------------------------------------------------------------------

    def _checkpoint(self, folder: RunFolder, personal: Sequence[Segment]) -> Checkpoint:
        clients = {"took_part": torch.from_numpy(self.took_part), "heard": torch.from_numpy(self.heard)}
        clients |= {f"memory/{name}": value for name, value in self.memory.items()}
        settings = plain_settings(self.config)
        return Checkpoint(self.done, self.totals, self.shared, clients, settings, folder.files, personal)

    def _save(self, engine: Engine) -> None:
        if self.folder is None or not self.folder.exists or self._between or self.done == self._saved_round:
            return
        began = time.perf_counter()
        try:
            personal = engine.save(self.folder.checkpoints.personal(), self.done)
            self.folder.save(self._checkpoint(self.folder, personal))
        except OSError as error:
            good = f"the one of round {self._saved_round} is untouched" if self._saved_round else "there is none yet"
            raise RunError(
                f"the checkpoint of round {self.done} cannot be written to '{self.folder.checkpoints.path}': "
                f"{error.strerror or error}; {good}"
            ) from None
        self._saved_round = self.done
        self._saved_at = time.perf_counter()
        self._save_cost = self._saved_at - began

    def _save_if_due(self, engine: Engine) -> None:
        """Keep checkpoints under 5 % of the time: after a SIGKILL, the rounds since the last one are repeated."""
        if time.perf_counter() - self._saved_at > max(0.5, 20 * self._save_cost):
            self._save(engine)

    def _restore_finished(self) -> Run | None:
        summary = self.folder.summary() if self.folder is not None else None
        if self.folder is None or summary is None or summary["rounds"] != self.config.rounds:
            return None
        self._check_data(summary["data_fingerprint"], summary.get("base_sha256"))
        self.folder.check_results()
        try:
            checkpoint = self.folder.load("finetuned.safetensors")
        except RunError as error:
            self.observer.note(f"{error}; fine-tuning is repeated")
            return None
        try:
            checkpoint = checkpoint or self.folder.load()
        except RunError:
            return None  # the one before is taken, and its last rounds are repeated
        if checkpoint is not None and checkpoint.round != self.config.rounds:
            return None
        self.observer.note(f"the run in '{self.folder.path}' is already finished")
        rows, clients, path = self.folder.rows(), self.folder.clients(), self.folder.path
        if checkpoint is None:  # removed since; its results are still there
            return Run(self.config, summary, rows, clients, path, partial(read_trained, self.folder))
        trained = self._trained(checkpoint.shared, checkpoint, bool(self.config.finetune_epochs))
        return Run(self.config, summary, rows, clients, path, partial(_same, trained))

    def _check_data(self, fingerprint: str, base: str | None) -> None:
        if base != self.totals["base_sha256"]:
            raise RunError(
                f"the run in '{self.folder.path if self.folder else ''}' started from other pretrained weights than "
                f"{self.config.model} has now"
            )
        if fingerprint != self.totals["data_fingerprint"]:
            raise RunError(
                f"the run in '{self.folder.path if self.folder else ''}' was started on other data (fingerprint "
                f"{fingerprint[:12]}, now {self.totals['data_fingerprint'][:12]})"
            )

    def _restore(self, engine: Engine) -> None:
        assert self.folder is not None
        checkpoint = self.folder.load(note=self.observer.note, rows=True)
        if checkpoint is None:
            if (self.folder.path / "summary.json").exists():
                raise RunError(f"the run in '{self.folder.path}' has no checkpoint any more from which it could go on")
            self.folder.keep_rows(0)
            return
        self._check_data(checkpoint.totals["data_fingerprint"], checkpoint.totals.get("base_sha256"))
        self.history = self.folder.resume(checkpoint)
        self.done = self._saved_round = checkpoint.round
        self.shared = self.setup.moved(checkpoint.shared)
        self.totals |= checkpoint.totals
        self.took_part = checkpoint.clients["took_part"].numpy()
        self.heard = checkpoint.clients["heard"].numpy()
        for name, value in checkpoint.clients.items():
            if name.startswith("memory/"):
                self.memory |= self.setup.moved({name.removeprefix("memory/"): value})
        engine.load(checkpoint.personal, self.done)
        task = self.setup.data.task
        planned = [row if self._is_due(row["round"]) else not_evaluated(row, task) for row in self.history]
        if planned != self.history:  # it was the last round of fewer
            self.history = planned
            self.folder.replace_rows(planned)
            self._saved_round = -1  # a checkpoint that knows these lines follows at once
            self._save(engine)

    # -- results ------------------------------------------------------------------------------------------------

    def _finish(self, engine: Engine) -> Run:
        everyone = range(self.setup.data.clients)
        stopped = self.done < self.config.rounds
        shared = self.shared
        # The last round's test is the final one, unless it covered a panel only or was before a resume.
        all_scores = self._last_scores or {
            which: engine.evaluate(everyone, shared, which, self.done) for which in self._kinds()
        }
        global_scores = all_scores.get("global")
        tuned: Engine | None = None
        try:
            if self.config.finetune_epochs and not stopped:
                began = time.perf_counter()
                tuned, shared = self._finetune(engine)
                self.totals["seconds"] += time.perf_counter() - began
                # One round more than before, or clients who answer messages would test the heads they had then.
                scores = tuned.evaluate(everyone, shared, "personal", self.done + 1)
            else:
                scores = all_scores.get("personal") or all_scores["global"]
            judge = tuned or engine
            clients = client_rows(self.setup.data, self.took_part.tolist(), scores, global_scores)
            sha256 = weights_sha256(self.setup.data.clients, judge, shared)
            summary = summarise(
                self.setup, engine.name, self.history, self.totals, scores, global_scores, sha256, stopped=stopped
            )
            if self.folder is not None:
                try:
                    if tuned is not None:
                        name = "finetuned.safetensors"
                        personal = tuned.save(self.folder.checkpoints.personal(name), self.done)
                        files, settings = self.folder.files, plain_settings(self.config)
                        last = Checkpoint(self.done, self.totals, shared, {}, settings, files, personal)
                        self.folder.save(last, name=name)
                    self.folder.write_clients(clients)
                    self.folder.write_summary(summary)
                except OSError as error:
                    raise RunError(
                        f"the results cannot be written to '{self.folder.path}': {error.strerror or error}; continue "
                        "with --resume"
                    ) from None
            trained = self._trained(shared, judge.states(), tuned is not None)
        finally:
            if tuned is not None:
                tuned.close()
        folder = self.folder.path if self.folder else None
        return Run(self.config, summary, self.history, clients, folder, partial(_same, trained))

    def _trained(self, shared: Tensors, kept: States | Checkpoint, tuned: bool) -> Trained:
        """What is left when the engines are gone: the network as it was at first, and where all tensors are."""
        setup, config = self.setup, self.config
        model, noise = setup.model.cpu(), setup.data.noise
        with torch.no_grad():
            for name, value in tensors_of(model).items():
                value.copy_(setup.initial[name])
            reset_counters(model)
        if isinstance(model, FrozenBaseModel):
            model.keep_hidden(None)
        return Trained(
            None if self.folder is None else self.folder.path,
            config,
            HeadTuning(config.finetune_epochs) if tuned else setup.algorithm,
            model,
            setup.groups,
            {name: value.cpu() for name, value in shared.items()},
            json.loads(json.dumps(describe(setup.data))),
            kept,
            setup.start is not None and not is_code(str(config.model)),
            None if noise is None else torch.from_numpy(noise.images),
        )

    def _finetune(self, engine: Engine) -> tuple[Engine, Tensors]:
        """Train every client's head on the final global model; returns the engine that holds them, and the body."""
        round = self.config.rounds + 1
        self.observer.note(f"fine-tuning every client's head for {self.config.finetune_epochs} epochs")
        setup = self.setup.with_algorithm(HeadTuning(self.config.finetune_epochs), dict(self.shared))
        folder = self.folder.path / "finetuning" if self.folder else None
        tuned = make_engine(engine.name, setup, folder)
        tuned.check_stop = engine.check_stop
        body = {name: self.shared[name] for name in setup.shared_names}
        results = settle(setup, tuned.train(round, range(setup.data.clients), body), round)
        tuned.commit(round, results)
        return tuned, body


def _read(figure: float | Tensor | None) -> float | None:
    """A figure of a round as a number; None where there is none."""
    value = None if figure is None else float(figure)
    return None if value is None or math.isnan(value) else value


def _same(trained: Trained) -> Trained:
    return trained

"""A run: its rounds, one after the other."""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from commonground.algorithms import Server, Tensors
from commonground.counted import counted
from commonground.engine.backends.base import CachedShared, Engine, Which, payload_bytes
from commonground.engine.backends.checks import settle
from commonground.engine.backends.client_result import ClientResult
from commonground.engine.backends.factory import EngineOf, make_engine
from commonground.engine.early_stopping import EarlyStopping, validation_key
from commonground.engine.evaluation_plan import EvaluationPlan
from commonground.engine.finishing import finish
from commonground.engine.held_parts import bytes_of_parts, confined, has_parts, only_parts
from commonground.engine.interrupt import StopFlag
from commonground.engine.keeper import Keeper
from commonground.engine.metric_trial import try_metrics
from commonground.engine.metrics import body_drift, round_metrics
from commonground.engine.observer import Observer
from commonground.engine.private.releases import note_asked, note_release
from commonground.engine.private.secret import kept_secret, remove_secret
from commonground.engine.progress import Progress
from commonground.engine.results import rounded
from commonground.engine.run import Run
from commonground.engine.sampling import sample_clients
from commonground.engine.scores import Scores, mean_of, spread_of
from commonground.engine.server_round import EXTREME, Growth, conclude, passed_over, server_at
from commonground.engine.setup import Setup
from commonground.engine.state.folder import RunFolder
from commonground.errors import ConfigError, NotFiniteError, warn
from commonground.precision import slow_precision
from commonground.privacy import SecretNoise

__all__ = ["Loop", "OnRound", "as_one", "sample_clients"]

OnRound = Callable[[dict[str, Any]], object]
"""What a user wants to do after each round; see :func:`~commonground.engine.train`."""


def as_one(functions: OnRound | Sequence[OnRound] | None) -> OnRound | None:
    """One function in place of several, which returns False if one of them does; all are called.

    Raises:
        ConfigError: one of them is no function of one argument.
    """
    several = [functions] if callable(functions) else functions
    if several is None:
        return None
    if not isinstance(several, list | tuple) or not all(map(callable, several)):
        raise ConfigError(f"on_round must be a function of a round's row, not {functions!r}")
    for each in several:
        _check_takes_a_row(each)
    return several[0] if len(several) == 1 else lambda row: _all_hear(several, row)


def _check_takes_a_row(function: OnRound) -> None:
    try:
        how = inspect.signature(function, follow_wrapped=False)  # a decorator may give what is wrapped more
    except (ValueError, TypeError):  # one that Python does not know
        return
    try:
        how.bind({})
    except TypeError as error:
        called = getattr(function, "__name__", type(function).__name__)
        raise ConfigError(f"on_round is called with a round's row alone, and {called}{how} says: {error}") from None


def _all_hear(functions: Sequence[OnRound], row: dict[str, Any]) -> bool:
    wishes = [each(dict(row)) for each in functions]  # one that ends the run keeps none of the others from the row
    return not any(map(_is_false, wishes))


def _is_false(wish: object) -> bool:
    return isinstance(wish, bool | np.bool_) and not wish


class Loop:
    """One run in progress.

    Args:
        setup: data, model and algorithm.
        folder: for the run's files, if any.
        observer: hears of every round.
        on_round: called after every round; False ends the run there.
        other_numerics: go on with other threads, precision or device than before.
        engine_of: makes the engine, from its name, the setup and the run's folder; by default one of this machine.
    """

    def __init__(
        self,
        setup: Setup,
        folder: RunFolder | None,
        observer: Observer,
        on_round: OnRound | None = None,
        other_numerics: bool = False,
        engine_of: EngineOf | None = None,
    ) -> None:
        self.engine_of = engine_of
        if setup.config.dp_secret_noise:
            setup = replace(setup, secret=SecretNoise() if folder is None else kept_secret(folder.path))
        self.setup, self.folder, self.observer, self.on_round = setup, folder, observer, on_round
        self.config, self.plan = setup.config, EvaluationPlan(setup)
        self.progress = Progress.of(setup)
        self.stopping = EarlyStopping(self.config, setup.rank, self.progress)
        self.keeper = Keeper(setup, folder, self.progress, observer, other_numerics)
        self.told_of_settings = False
        self.growth: Growth | None = None  # the last round in which the shared tensors grew by far, if they still are

    def run(self) -> Run:
        """All rounds that are left, then the results."""
        finished = self.keeper.finished()
        if finished is not None and self.folder is not None:
            remove_secret(self.folder.path)
            return finished
        engine = (self.engine_of or make_engine)(
            self.config.engine, self.setup, self.folder.path if self.folder else None
        )
        tuned: tuple[Engine, Tensors] | None = None
        with StopFlag() as stop:
            engine.check_stop, engine.note = stop.check, self.observer.note
            try:
                self.keeper.restore(engine)
                engine.last_rounds, engine.back_to = self.progress.heard, self.stopping.best
                self.observer.begin(self.setup, engine.name, self.progress.done)
                self._tell_of_start()
                self._tell_of_slow_precision()
                self._tell_of_nothing_shared()
                self._tell_of_sampled_end()
                if self.progress.done == 0:
                    try_metrics(self.setup)
                if engine.remark:
                    self.observer.note(engine.remark)
                try:
                    self._rounds(engine, stop)
                finally:
                    # Also after an error or Ctrl-C: what is finished is kept.
                    self.keeper.save(engine)
                self._tell_of_lost_losses()
                complete = self.progress.done == self.config.rounds or self.stopping.exhausted
                if complete and self.stopping.best is not None:
                    self.keeper.go_back(engine, self.stopping.best)
                    self.observer.note(self.stopping.sentence())
                with self._told_of_growth():
                    if complete and self.config.finetune_epochs:
                        tuned = self._finetune(engine)
                    return finish(self.setup, self.folder, self.progress, engine, tuned, self.stopping)
            finally:
                self.observer.end()
                if tuned is not None:
                    tuned[0].close()
                engine.close()

    def _tell_of_start(self) -> None:
        if (begun := self.setup.init_from) is not None:
            anew = "; its head is drawn anew" if begun["head"] == "drawn anew" else ""
            self.observer.note(f"the model begins with the weights of '{begun['from']}'{anew}")

    def _tell_of_slow_precision(self) -> None:
        if slow := slow_precision(self.config.precision, self.setup.device):
            self.observer.note(slow)

    def _tell_of_nothing_shared(self) -> None:
        algorithm = self.setup.algorithm
        if self.setup.lacks_shared:
            self.observer.note(
                f"{algorithm.title} shares the {' and the '.join(algorithm.shared)} of a model, and this one has none: "
                "nothing is shared, and every client learns alone"
            )

    def _tell_of_sampled_end(self) -> None:
        asked = self.config.final_eval_clients
        if asked and asked < self.setup.data.clients and self.plan.covers_everyone:
            self.observer.note(
                f"--final-eval-clients {asked} says nothing where all clients are tested in the rounds; --eval-clients "
                "tests some"
            )

    def _tell_of_lost_losses(self) -> None:
        """Under ``--dp`` what is not finite does not end a run, for that would tell of one client's data."""
        done = self.progress.history
        lost = sum(row["train_loss"] is None for row in done)
        if self.config.dp is not None and lost:
            self.observer.note(
                f"in {lost} of {len(done)} rounds no participant had a finite training loss, which under --dp does not "
                "end a run: training has diverged there, and a lower --lr may help"
            )

    def _rounds(self, engine: Engine, stop: StopFlag) -> None:
        """All rounds that are left, as far as patience and the user go."""
        for round in range(self.progress.done + 1, self.config.rounds + 1):
            if self.stopping.exhausted:
                return
            stop.check()
            if self.setup.own_metrics and round == self.config.rounds:
                self.keeper.save(engine)  # they are code of the user's that the last test asks for the first time
            with self._told_of_growth():
                row = self._round(engine, round)
            self.observer.round(dict(row))
            if self._ends(row):
                return
            if self.stopping.best == round:
                engine.back_to = round
                self.keeper.save(engine)
            if engine.saved_every_round:
                self.keeper.save(engine)
            self.keeper.save_if_due(engine)

    def _ends(self, row: dict[str, Any]) -> bool:
        """Whether the user wants no more rounds."""
        return self.on_round is not None and _is_false(self.on_round(dict(row)))

    def _round(self, engine: Engine, round: int) -> dict[str, Any]:
        """One round; its line of ``rounds.jsonl``."""
        began, progress, algorithm = time.perf_counter(), self.progress, self.setup.algorithm
        # 1. Who takes part, and what the server sends: to all of them, and to each alone.
        pools, everyone = algorithm.pools, range(self.setup.data.clients)
        clients = list(everyone) if pools else self._participants(round)
        server = self._server(round)
        extra = {client: algorithm.message_to(server, client) for client in clients}
        extra = {client: tensors for client, tensors in extra.items() if tensors}
        received = extra
        if has_parts(algorithm) and not engine.sends_parts:
            parts = {client: only_parts(algorithm, progress.shared, client) for client in clients}
            received = {client: parts[client] | extra.get(client, {}) for client in clients}
        engine.known = self._known(server, clients)
        full = self.config.metrics == "full" and not pools and self.plan.is_due(round)
        tested = engine.evaluate(clients, progress.shared, self.plan.kinds[-1], round - 1) if full else None
        # 2. The clients train, and answer.
        if self.folder is not None and self.setup.clients_add_noise:
            note_asked(self.folder.path, round)
        answers = engine.train(round, clients, progress.shared, received)
        answers = [confined(algorithm, answer) for answer in answers] if has_parts(algorithm) else answers
        # 3. The server makes the new shared tensors of the answers, and replies to single clients; nothing counts that
        # is not finite and of the right shape.
        results, replies, figures = self._conclude(server, answers, round)
        figures["body_drift"] = body_drift(self.setup, results, progress.shared)
        if tested is not None:
            figures |= round_metrics(self.setup, results, progress.shared, server.shared, tested)
        # 4. The clients' new personal state counts. From here on they have what the round gave, whatever comes.
        if self.folder is not None and self.setup.privacy is not None and self.setup.secret is not None:
            note_release(self.folder.path, round, server.shared)
        progress.between = True
        engine.commit(round, results, replies)
        trained = time.perf_counter()
        # 5. The models are tested. A stop that comes now waits for the end, or no checkpoint could be left.
        check, engine.check_stop = engine.check_stop, lambda: None
        try:
            scores = self._evaluate(engine, server.shared, round)
        finally:
            engine.check_stop = check
        # 6. The round's line.
        row = self._row(round, results, scores, trained - began, time.perf_counter() - trained)
        row |= {name: _read(value) for name, value in figures.items()}
        row["bytes_down"] = self._shared_bytes(clients, engine.known)
        row["bytes_down"] += sum(payload_bytes(tensors) for tensors in (*extra.values(), *replies.values()))
        if pools:
            row |= {"bytes_up": 0, "bytes_down": 0, "participants": len(clients)}  # no model travels: the rows did
        if engine.missing:
            row["missing"] = len(engine.missing)
        if self.folder is not None:
            self.folder.rounds.add(row)
        # 7. From here on nothing can fail: the round becomes part of the run as a whole.
        counted = [client for client in clients if client not in engine.missing]
        progress.heard[counted] = round
        self._remember_missing(engine)
        if algorithm.clients_remember:
            for name, value in server.shared.items():
                if not torch.equal(value, progress.shared[name]):
                    progress.totals["changed"][name] = round
        progress.shared, progress.memory = server.shared, server.memory
        progress.done, progress.between = round, False
        progress.last_scores = scores if self.plan.covers_everyone and round == self.config.rounds else {}
        progress.took_part[counted] += 1
        progress.totals["seconds"] += time.perf_counter() - began
        progress.totals["bytes_up"] += row["bytes_up"]
        progress.totals["bytes_down"] += row["bytes_down"]
        progress.history.append(row)
        self.stopping.saw(row)
        return row

    # -- the steps' parts ---------------------------------------------------------------------------------------

    def _participants(self, round: int) -> list[int]:
        # What sampling hides is told of --dp-where server: whoever knows the seed must not know who takes part.
        hidden = self.setup.server_secret
        secret = None if hidden is None else hidden.secret
        return sample_clients(self.config, self.setup.data.clients, round, secret)

    def _server(self, round: int) -> Server:
        return server_at(self.setup, self.progress.shared, self.progress.memory, round)

    def _conclude(
        self, server: Server, answers: Sequence[ClientResult], round: int
    ) -> tuple[list[ClientResult], dict[int, Tensors], dict[str, float | Tensor | None]]:
        """The server's part of a round, and what it tells of the shared tensors' size."""
        progress = self.progress
        kept = [*progress.shared.values(), *progress.memory.values()]
        versions = [value._version for value in kept]
        try:
            outcome = conclude(self.setup, server, answers, round, progress.shared)
        except BaseException:
            # A method that writes into the server's tensors has spoilt them, and the last checkpoint stays as it is.
            progress.between |= versions != [value._version for value in kept]
            raise
        if not self.told_of_settings and (said := passed_over(self.setup, server)):
            warn(said)
        self.told_of_settings = True
        still = self.growth if self.growth is not None and outcome.size > self.growth.size / EXTREME else None
        self.growth = outcome.growth or still
        if outcome.growth is not None:
            self.observer.note(f"after round {round}: {outcome.growth}")
        return outcome.results, outcome.replies, outcome.figures

    @contextmanager
    def _told_of_growth(self) -> Iterator[None]:
        """What is not finite may come of an update that was finite, but of an extreme size: then that is said, too."""
        try:
            yield
        except NotFiniteError as error:
            if self.growth is None:
                raise
            raise type(error)(f"{error}; {self.growth}") from None

    def _known(self, server: Server, clients: Sequence[int]) -> dict[int, CachedShared]:
        """What participants need not be sent, because they have it since they took part before or can work it out."""
        if not self.setup.algorithm.clients_remember:
            return {}
        changed, known = self.progress.totals["changed"], {}
        for client, heard in zip(clients, self.progress.heard[clients].clip(min=0).tolist(), strict=True):
            same = {name for name in self.progress.shared if changed.get(name, 0) < heard}
            names, steps = self.setup.algorithm.spared(server, heard)
            known[client] = CachedShared(heard, names | same, steps)
        return known

    def _shared_bytes(self, clients: Sequence[int], known: Mapping[int, CachedShared]) -> int:
        """Bytes of the shared tensors that participants are sent, and of what they are sent in place of others."""
        shared, algorithm = self.progress.shared, self.setup.algorithm
        if not known and not has_parts(algorithm):
            return payload_bytes(shared) * len(clients)
        total = 0
        for client in clients:
            there = known.get(client, CachedShared(0, frozenset(), {}))
            news = {name: value for name, value in shared.items() if name not in there.names}
            total += bytes_of_parts(algorithm, news, client) + payload_bytes(there.steps)
        return total

    def _evaluate(self, engine: Engine, shared: Tensors, round: int) -> dict[Which, Scores]:
        """Tests due after a round."""
        if not self.plan.is_due(round):
            return {}
        detailed = round == self.config.rounds and self.plan.covers_everyone
        scores = {
            which: engine.evaluate(self.plan.panel, shared, which, round, detailed=detailed)
            for which in self.plan.kinds
        }
        if self.plan.validated:
            fine = self.setup.rank.key not in self.setup.data.task.plain
            scores["validation"] = engine.evaluate(self.plan.validated, shared, "validation", round, detailed=fine)
        return scores

    def _row(
        self,
        round: int,
        results: Sequence[ClientResult],
        scores: Mapping[Which, Scores],
        seconds: float,
        eval_seconds: float,
    ) -> dict[str, Any]:
        task = self.setup.data.task
        mean = {which: mean_of(s.headline) for which, s in scores.items()}
        losses = [float(r.loss) for r in results if r.loss is not None]
        judged = scores.get("personal") or scores.get("global")
        return {
            "round": round,
            "train_loss": float(np.mean(losses)) if losses else None,
            f"personal_{task.metric}": mean.get("personal", mean.get("global")),
            f"global_{task.metric}": mean.get("global"),
            **self._validation(scores.get("validation")),
            "worst_decile": None if judged is None else spread_of(judged.headline, self._ranked(judged))[task.worst],
            "bytes_up": sum(bytes_of_parts(self.setup.algorithm, r.update.tensors, r.update.client) for r in results),
            "bytes_down": 0,
            "seconds": rounded(seconds),
            "eval_seconds": rounded(eval_seconds),
            "lr": self.setup.lr_at(round),
            "participants": len(results),
            "evaluated_clients": 0 if judged is None else int((judged.count > 0).sum()),
        }

    def _validation(self, scores: Scores | None) -> dict[str, float | None]:
        """What validation rows say, by the headline metric and the one that ranks."""
        if not self.plan.validated:
            return {}
        keys = dict.fromkeys((self.setup.data.task.metric, self.setup.rank.key))
        return {validation_key(k): None if scores is None else mean_of(scores.metrics[k]) for k in keys}

    def _remember_missing(self, engine: Engine) -> None:
        """How often each client's round did not count, and the last reason."""
        refused = self.progress.totals["refused"]
        for client, why in engine.missing.items():
            times = refused.get(str(client), [0, ""])[0]
            refused[str(client)] = [times + 1, why]

    def _ranked(self, scores: Scores) -> npt.NDArray[np.bool_]:
        return scores.count >= self.config.worst_min_rows

    def _finetune(self, engine: Engine) -> tuple[Engine, Tensors]:
        """Train every client's head, or all layers, of the final global model: one round more, in which all take part.

        Returns:
            The engine that holds what was trained, and the shared rest.
        """
        began, round = time.perf_counter(), self.config.rounds + 1
        what = {"head": "head", "all": "model"}[self.config.finetune]
        self.observer.note(f"fine-tuning every client's {what} for {counted(self.config.finetune_epochs, 'epoch')}")
        setup = self.setup.fine_tuning(self.progress.shared)
        made = self.engine_of or make_engine
        tuned = made(engine.name, setup, self.folder.path / "finetuning" if self.folder else None)
        tuned.check_stop, tuned.note = engine.check_stop, engine.note
        body = {name: self.progress.shared[name] for name in setup.shared_names}
        try:
            results = settle(setup, tuned.train(round, range(setup.data.clients), body), round)
            tuned.commit(round, results)
        except BaseException:
            tuned.close()
            raise
        self.progress.totals["seconds"] += time.perf_counter() - began
        return tuned, body


def _read(figure: float | Tensor | None) -> float | None:
    """A figure of a round as a number; None where there is none."""
    value = None if figure is None else float(figure)
    return None if value is None or math.isnan(value) else value

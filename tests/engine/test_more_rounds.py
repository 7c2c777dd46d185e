"""A run is given more rounds, or, once stopped, fewer: it ends as one that had so many, or says why it cannot."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import commonground as cg
from commonground.cli import main
from commonground.engine.state.folder import RunFolder
from commonground.errors import ConfigError, RunError
from tests.helpers import ENGINES, TwoLayer, made_data, rows_without_time, seeded

pytestmark = pytest.mark.engine

SETTINGS: dict[str, Any] = {"batch_size": 4, "lr": 0.1, "workers": 2, "seed": 1, "participation": 0.5, "model": "mlp"}
DATA = made_data(dtype=np.float32)


def go(algorithm: str, rounds: int, out: Path | None, **changes: Any) -> cg.Run:
    data = changes.pop("data", DATA)
    return cg.train(algorithm, data, rounds=rounds, out=out, **SETTINGS | changes)


def assert_same_results(one: cg.Run, other: cg.Run) -> None:
    """All that a run leaves, but for times."""
    assert one.summary["weights_sha256"] == other.summary["weights_sha256"]
    assert rows_without_time(one.history) == rows_without_time(other.history)
    assert one.clients == other.clients
    free = {"seconds", "peak_rss_bytes", "finished"}
    assert {k: v for k, v in one.summary.items() if k not in free} == {
        k: v for k, v in other.summary.items() if k not in free
    }


METHODS: dict[str, dict[str, Any]] = {
    "fedrep": {"options": {"head_epochs": 2}},
    "fedavg": {"server_optimizer": "adam", "server_lr": 0.1},
    "scaffold": {},
    "flute": {},
    "ditto": {},
    "l2gd": {},
    "perfedavg": {},
    "rolora": {"options": {"rank": 2}},
    "local-sgd": {"options": {"halvings": ()}},
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("algorithm", METHODS)
def test_more_rounds_are_those_of_a_longer_run(algorithm: str, engine: str, tmp_path: Path) -> None:
    """Also where the last rounds of the shorter run were evaluated because they were its last."""
    more = {"engine": engine, "eval_every": 3, "eval_last": 2, "metrics": "full", **METHODS[algorithm]}
    short = go(algorithm, 4, tmp_path, **more)
    assert [row["round"] for row in short.history if row["evaluated_clients"]] == [3, 4]
    longer = go(algorithm, 8, tmp_path, resume=True, **more)
    whole = go(algorithm, 8, None, **more)
    assert [row["round"] for row in longer.history if row["evaluated_clients"]] == [3, 6, 7, 8]
    assert_same_results(longer, whole)
    loaded = cg.load_run(tmp_path)
    assert loaded.config.rounds == 8
    assert loaded.history == longer.history
    assert loaded.clients == longer.clients
    assert loaded.summary == longer.summary


@pytest.mark.parametrize("at", [5, 6])
@pytest.mark.parametrize("engine", ["serial", "messages"])
def test_an_interrupted_extension_resumes(engine: str, at: int, tmp_path: Path) -> None:
    def stop(row: dict[str, Any]) -> None:
        if row["round"] == at:
            raise KeyboardInterrupt

    go("fedrep", 4, tmp_path, engine=engine)
    with pytest.raises(KeyboardInterrupt):
        go("fedrep", 7, tmp_path, engine=engine, resume=True, on_round=stop)
    assert not RunFolder(tmp_path).finished
    assert RunFolder(tmp_path).config().rounds == 7
    with pytest.raises(RunError, match=rf"has 7 rounds, of which {at} are done; it can go on with as many or more"):
        go("fedrep", 4, tmp_path, engine=engine, resume=True)
    assert_same_results(go("fedrep", 7, tmp_path, engine=engine, resume=True), go("fedrep", 7, None, engine=engine))


@pytest.mark.parametrize(
    ("algorithm", "engine"),
    [*((method, "serial") for method in METHODS), *(("fedrep", engine) for engine in ENGINES[1:])],
)
def test_fewer_rounds_are_those_of_a_shorter_run(algorithm: str, engine: str, tmp_path: Path) -> None:
    """Also where its last round is done already."""
    more = {"engine": engine, "metrics": "full", **METHODS[algorithm]}
    for done, ends in ((3, 3), (2, 3)):
        out = tmp_path / str(done)
        go(algorithm, 6, out, on_round=lambda row, done=done: row["round"] < done, **more)
        shorter, whole = go(algorithm, ends, out, resume=True, **more), go(algorithm, ends, None, **more)
        assert shorter.finished
        assert_same_results(shorter, whole)
        loaded = cg.load_run(out)
        assert loaded.finished
        assert loaded.config.rounds == ends
        assert loaded.clients == whole.clients


@pytest.mark.parametrize("settings", [{"finetune_epochs": 1}, {"early_stopping": 2, "validation_fraction": 0.3}])
def test_what_comes_after_the_last_round_comes_after_a_sooner_one(settings: dict[str, Any], tmp_path: Path) -> None:
    go("fedavg", 6, tmp_path, on_round=lambda row: row["round"] < 2, **settings)
    assert_same_results(go("fedavg", 2, tmp_path, resume=True, **settings), go("fedavg", 2, None, **settings))


@pytest.mark.parametrize(("every", "last", "enough"), [(5, 0, 4), (5, 2, 5), (2, 0, 4), (1, 0, 3)])
def test_fewer_rounds_are_refused_where_one_would_have_been_tested(
    every: int, last: int, enough: int, tmp_path: Path
) -> None:
    more: dict[str, Any] = {"eval_every": every, "eval_last": last}
    go("fedrep", 6, tmp_path, on_round=lambda row: row["round"] < 3, **more)
    if enough > 3:
        with pytest.raises(RunError, match=rf"cannot end with 3 rounds: then round \d .*; it can end with {enough}"):
            go("fedrep", 3, tmp_path, resume=True, **more)
    assert_same_results(go("fedrep", enough, tmp_path, resume=True, **more), go("fedrep", enough, None, **more))


def test_a_run_that_ended_early_is_not_made_shorter(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"early_stopping": 1, "validation_fraction": 0.3, "lr": 0.0001}
    run = go("fedavg", 12, tmp_path, **settings)
    done = run.summary["rounds"]
    assert done < 12
    with pytest.raises(RunError, match=f"cannot go on to {done}: it has gone back to its best round"):
        go("fedavg", done, tmp_path, resume=True, **settings)


@pytest.mark.parametrize("settings", [{"lr_schedule": "cosine"}, {"dp": "client", "dp_epsilon": 8, "dp_clip": 1}])
def test_fewer_rounds_are_refused_where_their_number_was_needed(settings: dict[str, Any], tmp_path: Path) -> None:
    go("fedavg", 6, tmp_path, on_round=lambda row: row["round"] < 2, **settings)
    with pytest.raises(RunError, match="was planned for 6 rounds and cannot go on to 3: its "):
        go("fedavg", 3, tmp_path, resume=True, **settings)


def test_an_unfinished_run_can_be_given_more_rounds_too(tmp_path: Path) -> None:
    go("fedrep", 6, tmp_path, on_round=lambda row: row["round"] < 2)
    assert_same_results(go("fedrep", 9, tmp_path, resume=True), go("fedrep", 9, None))


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "cosine": (
        "fedrep",
        {"lr_schedule": "cosine"},
        r"the share of its rounds that is done \(lr_schedule = 'cos",
    ),
    "halve": ("fedrep", {"lr_schedule": "halve:0.5"}, "lr_schedule = 'halve:0.5'"),
    "local-sgd": ("local-sgd", {}, "its learning rate is halved at 0.5 and 0.75 of all its steps"),
    "one-shot": ("one-shot", {}, "its models are averaged once, after its last round"),
    "+FT": ("fedavg", {"finetune_epochs": 2}, "every client's head is fine-tuned after its last round"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_where_it_cannot_it_says_why(case: str, tmp_path: Path) -> None:
    algorithm, settings, why = REFUSED[case]
    run = go(algorithm, 3, tmp_path, **settings)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(RunError, match=f"was planned for 3 rounds and cannot go on to 5: .*{why}"):
        go(algorithm, 5, tmp_path, resume=True, **settings)
    with pytest.raises(RunError, match="of which 3 are done; it can go on with as many or more, not with 2"):
        go(algorithm, 2, tmp_path, resume=True, **settings)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert go(algorithm, 3, tmp_path, resume=True, **settings).summary == run.summary


def test_a_run_without_its_checkpoint_does_not_go_on(tmp_path: Path) -> None:
    go("fedrep", 2, tmp_path)
    shutil.rmtree(tmp_path / "checkpoint")
    with pytest.raises(RunError, match="has no checkpoint any more from which it could go on"):
        go("fedrep", 3, tmp_path, resume=True)
    assert RunFolder(tmp_path).finished


def test_a_comparison_still_asks_for_the_same_rounds(tmp_path: Path) -> None:
    more: dict[str, Any] = {"seeds": 1, "out": tmp_path, "local_only": False, **SETTINGS}
    more.pop("seed")
    cg.compare(["fedrep"], DATA, rounds=2, **more)
    with pytest.raises(RunError, match="was started with rounds = 2, not 3"):
        cg.compare(["fedrep"], DATA, rounds=3, **more)


def test_on_the_command_line(tmp_path: Path) -> None:
    base = ["--clients", "3", "--quiet", "--out"]
    assert main(["train", "fedrep", "--rounds", "2", *base, str(tmp_path / "one")]) == 0
    assert main(["train", "--resume", "--rounds", "4", "--quiet", "--out", str(tmp_path / "one")]) == 0
    assert main(["train", "fedrep", "--rounds", "4", *base, str(tmp_path / "two")]) == 0
    one, two = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("one", "two"))
    assert one["weights_sha256"] == two["weights_sha256"]
    assert main(["train", "--resume", "--rounds", "3", "--quiet", "--out", str(tmp_path / "one")]) == 2


# -- on_round ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("algorithm", ["fedrep", "fedavg"])
def test_returning_false_stops_and_leaves_a_run(algorithm: str, engine: str, tmp_path: Path) -> None:
    """What is left is a run of so many rounds; resumed, it is one that was never stopped."""
    seen: list[int] = []

    def until_three(row: dict[str, Any]) -> object:
        seen.append(row["round"])
        row.clear()  # a copy: the run's own row stays
        return seen[-1] != 3 and None

    more: dict[str, Any] = {"engine": engine, "finetune_epochs": 2} if algorithm == "fedavg" else {"engine": engine}
    run = go(algorithm, 6, tmp_path, on_round=until_three, **more)
    assert seen == [1, 2, 3]
    assert run.summary["stopped_after"] == run.summary["rounds"] == 3
    assert not run.finished
    assert "3 of 6" in repr(run)
    short = go(algorithm, 3, None, engine=engine)  # it is not fine-tuned: that comes after the last round
    assert run.summary["weights_sha256"] == short.summary["weights_sha256"]
    assert run.clients == short.clients
    loaded = cg.load_run(tmp_path)
    assert loaded.summary == run.summary
    assert not loaded.finished
    np.testing.assert_array_equal(loaded.predict(DATA.x_test, client=2), run.predict(DATA.x_test, client=2))
    assert_same_results(go(algorithm, 6, tmp_path, resume=True, **more), go(algorithm, 6, None, **more))
    assert cg.load_run(tmp_path).finished


def logged(function: Callable[[dict[str, Any], list[int]], None], log: list[int]) -> Callable[[dict[str, Any]], None]:
    @functools.wraps(function)
    def inner(row: dict[str, Any]) -> None:
        function(row, log)

    return inner


def test_callbacks_are_judged_by_what_they_take_themselves() -> None:
    log: list[int] = []
    go("fedrep", 2, None, on_round=[logged(lambda row, to: to.append(row["round"]), log), dict, Mock()])
    assert log == [1, 2]


def never() -> bool:
    """Takes no row."""
    return False


def test_only_false_stops() -> None:
    for value in (None, 0, True, "", np.True_):
        assert go("fedrep", 2, None, on_round=lambda row, value=value: value).finished
    stopped = go("fedrep", 3, None, on_round=lambda row: np.bool_(False))
    assert stopped.summary["stopped_after"] == 1
    assert go("fedrep", 1, None, on_round=lambda row: False).finished  # after the last round nothing is left to stop
    with pytest.raises(ConfigError, match="on_round must be a function of a round's row, not 3"):
        go("fedrep", 1, None, on_round=3)
    with pytest.raises(ConfigError, match=r"a round's row alone, and never\(\) .*says: too many positional arguments"):
        go("fedrep", 1, None, on_round=never)
    with pytest.raises(ConfigError, match=r"and <lambda>\(row, more\) says: missing a required argument: 'more'"):
        go("fedrep", 1, None, on_round=[print, lambda row, more: None])


def test_a_callback_that_raises_ends_the_run_with_its_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        go("fedrep", 4, tmp_path, on_round=lambda row: 1 / (2 - row["round"]))
    assert RunFolder(tmp_path).summary() is None
    assert_same_results(go("fedrep", 4, tmp_path, resume=True), go("fedrep", 4, None))


# -- observers --------------------------------------------------------------------------------------------------------


class Rounds:
    """Hears of rounds alone."""

    def __init__(self) -> None:
        self.heard: list[int] = []

    def round(self, row: Any) -> None:
        self.heard.append(row["round"])


def test_an_observer_may_leave_methods_out(tmp_path: Path) -> None:
    observer = Rounds()
    go("fedrep", 2, tmp_path, observer=observer, resume=True)
    assert observer.heard == [1, 2]


def test_an_observer_that_cannot_be_meant_is_refused_before_anything_runs(tmp_path: Path) -> None:
    class Misspelt(Rounds):
        round = None  # type: ignore[assignment]

        def rounds(self, row: Any) -> None: ...

    class Near:
        def rounds(self, row: Any) -> None: ...

        def note(self, text: str) -> None: ...

    with pytest.raises(ConfigError, match="a Misspelt, has 'round', but not as a method"):
        go("fedrep", 2, tmp_path / "run", observer=Misspelt())
    with pytest.raises(ConfigError, match=r"has no method 'round' but 'rounds', which nobody calls; .* are begin, end"):
        go("fedrep", 2, tmp_path / "run", observer=Near())
    with pytest.raises(ConfigError, match="lacks the method 'begin' and all others: begin, end, note, round"):
        go("fedrep", 2, tmp_path / "run", observer=object())
    with pytest.raises(ConfigError, match=r"a plain function can be given as on_round="):
        go("fedrep", 2, tmp_path / "run", observer=lambda row: None)
    with pytest.raises(ConfigError, match="lacks the method 'note' and all others: note, plan, step"):
        cg.compare(["fedrep"], DATA, observer=object())  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()


def test_a_module_of_ones_own_goes_on(tmp_path: Path) -> None:
    net = seeded(TwoLayer)
    go("fedrep", 2, tmp_path, model=net)
    assert_same_results(go("fedrep", 4, tmp_path, model=net, resume=True), go("fedrep", 4, None, model=net))


def test_a_rate_that_falls_by_the_round_goes_on(tmp_path: Path) -> None:
    given: dict[str, Any] = {"lr_schedule": "exponential:0.9", "engine": "serial"}
    cg.train("fedavg", made_data(), rounds=3, out=tmp_path, **given)
    more = cg.train("fedavg", made_data(), rounds=7, out=tmp_path, resume=True, **given)
    whole = cg.train("fedavg", made_data(), rounds=7, **given)
    assert more.summary["weights_sha256"] == whole.summary["weights_sha256"]

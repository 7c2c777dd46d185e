"""Rows held out of training, and the best round by them: kept, told, and the same after a kill."""

from __future__ import annotations

import os
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from commonground import FederatedDataset, compare, load_run, train
from commonground.console import result_table
from commonground.data import hold_out
from commonground.data.validation import validation_split
from commonground.engine.backends.base import Engine
from commonground.engine.keeper import Keeper
from commonground.errors import ConfigError, DataError, RunError
from commonground.report import write_run_report
from tests.helpers import ENGINES, EXACT, digits, engines_changed, made_data, rows_without_time

SETTINGS: dict[str, Any] = {
    "seed": 2, "model": "mlp", "model_options": {"hidden": [8]}, "batch_size": 8, "lr": 0.5, "momentum": 0.9,
    "local_epochs": 3, "validation_fraction": 0.3,
}  # fmt: skip
KEY = "validation_accuracy"


def data() -> FederatedDataset:
    """Labels that are noise, so that validation accuracy soon gets worse."""
    return made_data((20, 12, 16, 1), test=8, seed=3)


def go(method: str = "fedrep", *, rounds: int = 12, patience: int | None = 3, **more: Any) -> Any:
    return train(method, data(), rounds=rounds, early_stopping=patience, **(SETTINGS | more))


# -- rows that are held out -----------------------------------------------------------------------------------------


def test_rows_are_held_out_of_training_by_key() -> None:
    whole, held = data(), hold_out(data(), 0.3, 5)
    for client in range(whole.clients):
        kept, out = held.train_indices(client), held.validation_indices(client)
        assert sorted([*kept, *out]) == sorted(whole.train_indices(client))
        n = len(whole.train_indices(client))
        assert len(out) == (max(1, round(0.3 * n)) if n > 1 else 0)
    np.testing.assert_array_equal(held.test_index, whole.test_index)
    assert held.fingerprint() != whole.fingerprint()
    np.testing.assert_array_equal(hold_out(data(), 0.3, 5).validation_index, held.validation_index)
    others = hold_out(data(), 0.3, 6)
    assert any(set(others.validation_indices(c)) != set(held.validation_indices(c)) for c in range(whole.clients))
    # a comparison's grid holds out the same rows, of the clients that have two
    split = validation_split(whole, 0.3, 5)
    np.testing.assert_array_equal(split.test_index, held.validation_index)


def test_no_row_to_hold_out_is_said() -> None:
    with pytest.raises(DataError, match="no client of 'made' has two training samples"):
        hold_out(made_data((1, 1)), 0.3, 0)
    with pytest.raises(ConfigError, match="needs rows to judge by; add --validation-fraction"):
        train("fedavg", digits(), rounds=1, early_stopping=2)


def test_held_out_rows_are_not_trained_on_but_judged() -> None:
    """Training with a fraction is training on data without these rows; other figures know nothing of them."""
    held = hold_out(data(), 0.3, SETTINGS["seed"])
    without = FederatedDataset.from_arrays(
        [
            (held.x_train[a], held.y_train[a], held.x_test[b], held.y_test[b])
            for a, b in ((held.train_indices(c), held.test_indices(c)) for c in range(held.clients))
        ],
        name="made",
        classes=held.classes,
    )
    one = go(rounds=3, patience=None)
    other = train("fedrep", without, rounds=3, **(SETTINGS | {"validation_fraction": 0.0}))
    assert one.summary["weights_sha256"] == other.summary["weights_sha256"]
    mine = [{k: v for k, v in row.items() if k != KEY} for row in rows_without_time(one.history)]
    assert mine == rows_without_time(other.history)
    x, y = held.x_train, held.y_train
    rows = [held.validation_indices(c) for c in range(held.clients)]
    shares = [(one.predict(x[r], client=c).argmax(1) == y[r]).mean() for c, r in enumerate(rows) if len(r)]
    assert one.history[-1][KEY] == pytest.approx(np.mean(shares))


@pytest.mark.engine
@pytest.mark.parametrize("method", ["fedrep", "fedavg", "fedbabu"])
def test_engines_judge_alike(method: str) -> None:
    runs = {engine: go(method, engine=engine, workers=2, dtype="float64", finetune_epochs=0) for engine in ENGINES}
    serial = runs["serial"]
    for engine in EXACT:
        assert runs[engine].summary["weights_sha256"] == serial.summary["weights_sha256"], engine
        assert rows_without_time(runs[engine].history) == rows_without_time(serial.history)
    assert [row[KEY] for row in runs["batched"].history] == pytest.approx([row[KEY] for row in serial.history])
    assert runs["batched"].summary["early_stopping"] == serial.summary["early_stopping"]


# -- the best round -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["serial", "messages"])
@pytest.mark.parametrize("files", [True, False])
def test_the_best_round_is_kept(files: bool, engine: str, tmp_path: Path) -> None:
    out = tmp_path / "run" if files else None
    run = go(engine=engine, out=out)
    told = run.summary["early_stopping"]
    values = [row[KEY] for row in run.history]
    best = int(np.argmax(values)) + 1  # the first of equal ones
    assert told == {
        "patience": 3, "metric": KEY, "best_round": best, "value": values[best - 1], "ended_early": True
    }  # fmt: skip
    assert len(run.history) == best + 3 == run.summary["rounds"] < 12
    assert best > 1
    # the models, their test and the clients' rows are those of a run that ended there
    short = go(rounds=best, patience=None, engine=engine)
    for key in ("weights_sha256", "personal_accuracy", "metrics"):
        assert run.summary[key] == short.summary[key], key
    assert run.clients == short.clients
    np.testing.assert_array_equal(run.predict(data().x_test, client=1), short.predict(data().x_test, client=1))
    assert "stopped_after" not in run.summary
    assert run.finished
    if out is not None:
        again = load_run(out)
        np.testing.assert_array_equal(again.predict(data().x_test, client=1), run.predict(data().x_test, client=1))
        assert go(engine=engine, out=out, resume=True).summary == again.summary  # finished: nothing is computed
        with pytest.raises(RunError, match="gone back to its best round"):
            go(engine=engine, out=out, resume=True, rounds=20)


def test_without_an_early_end_the_best_round_is_kept_as_well(tmp_path: Path) -> None:
    run = go(patience=50, out=tmp_path / "run")
    told = run.summary["early_stopping"]
    assert (told["ended_early"], run.summary["rounds"]) == (False, 12)
    short = go(rounds=told["best_round"], patience=None)
    assert told["best_round"] < 12
    assert run.summary["weights_sha256"] == short.summary["weights_sha256"]
    predicted = [r.predict(data().x_test, client=0) for r in (run, load_run(tmp_path / "run"))]
    np.testing.assert_array_equal(predicted[0], predicted[1])


def test_heads_are_fine_tuned_on_the_best_round() -> None:
    run = go("fedavg", finetune_epochs=2)
    assert run.summary["early_stopping"]["best_round"] < run.summary["rounds"]
    best = run.summary["early_stopping"]["best_round"]
    short = go("fedavg", rounds=best, patience=None)
    for name, value in short.shared.items():
        if not name.startswith("4") and name in run.shared:
            assert bool((run.shared[name] == value).all()), name


@pytest.mark.parametrize("engine", ["serial", "messages"])
def test_a_fine_tuned_run_that_ended_early_is_read_and_known_as_finished(engine: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"finetune_epochs": 1, "engine": engine, "out": tmp_path / "run"}
    run = go("fedavg", patience=1, **settings)
    early = run.summary["early_stopping"]
    assert early["ended_early"]
    assert early["best_round"] < run.summary["rounds"]
    again = load_run(tmp_path / "run")
    for client in range(4):
        for name, value in run.model(client).state_dict().items():
            assert bool((again.model(client).state_dict()[name] == value).all()), name
    file = tmp_path / "run" / "clients.csv"
    written = file.stat().st_mtime_ns
    assert go("fedavg", patience=1, resume=True, **settings).summary == run.summary
    assert file.stat().st_mtime_ns == written  # nothing was done again


def _killed_in(round: int) -> Callable[[Engine], None]:
    def change(engine: Engine) -> None:
        train_round = engine.train

        def failing(number: int, *args: Any, **kwargs: Any) -> Any:
            if number == round:
                os._exit(9)  # as SIGKILL does: nothing more is written
            return train_round(number, *args, **kwargs)

        vars(engine)["train"] = failing

    return change


@pytest.mark.parametrize("engine", ["serial", "messages"])
@pytest.mark.parametrize("killed_in", [2, 4, 5])
def test_a_killed_run_ends_as_one_that_was_not(killed_in: int, engine: str, tmp_path: Path) -> None:
    whole = go(engine=engine, out=tmp_path / "whole")
    assert killed_in <= whole.summary["rounds"]
    child = os.fork()
    if child == 0:
        with engines_changed(_killed_in(killed_in)):
            go(engine=engine, out=tmp_path / "run")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    run = go(engine=engine, out=tmp_path / "run", resume=True)
    for key in ("weights_sha256", "early_stopping", "personal_accuracy", "rounds"):
        assert run.summary[key] == whole.summary[key], key
    assert rows_without_time(run.history) == rows_without_time(whole.history)


def test_clients_keep_their_state_of_the_best_round(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also where many checkpoints were written since, of which only the last two count otherwise."""
    monkeypatch.setattr(Keeper, "save_if_due", Keeper.save)
    runs = [go(engine=engine, patience=6, out=tmp_path / engine) for engine in ("serial", "messages")]
    told = runs[0].summary["early_stopping"]
    assert runs[0].summary["rounds"] >= told["best_round"] + 4
    assert runs[1].summary["weights_sha256"] == runs[0].summary["weights_sha256"]
    assert runs[1].clients == runs[0].clients


def test_old_checkpoints_go_and_the_best_one_stays(tmp_path: Path) -> None:
    run = go(patience=50, out=tmp_path / "run")
    kept = {path.name for path in (tmp_path / "run" / "checkpoint").glob("round-*")}
    assert f"round-{run.summary['early_stopping']['best_round']:06d}.safetensors" in kept
    assert len(kept) <= 3


def test_the_table_names_the_round_that_is_kept() -> None:
    run, text = go(), StringIO()
    Console(file=text, width=110).print(result_table(run))
    best = run.summary["early_stopping"]["best_round"]
    assert f"round {best} of {run.summary['rounds']} is kept (validation accuracy " in text.getvalue()


def test_a_comparison_says_which_rounds_were_kept(tmp_path: Path) -> None:
    settings = {k: v for k, v in SETTINGS.items() if k != "seed"}
    comparison = compare(
        ["fedrep"], data(), 2, tmp_path, local_only=False, rounds=12, early_stopping=2, **settings
    )  # fmt: skip
    runs = [run.summary for run in comparison.runs["fedrep"]]
    kept = ", ".join(f"{s['early_stopping']['best_round']} of {s['rounds']}" for s in runs)
    assert any(note.endswith(f"in place of the last: FedRep {kept}.") for note in comparison.footnotes())
    assert comparison.result["rounds"] == 12
    page = (tmp_path / "report.html").read_text("utf-8")
    assert "in place of the last: FedRep" in page


def test_the_page_of_a_run_tells_of_it(tmp_path: Path) -> None:
    run = go(out=tmp_path / "run")
    page = write_run_report(tmp_path / "run").read_text("utf-8")
    best, rounds = run.summary["early_stopping"]["best_round"], run.summary["rounds"]
    assert f"those of round {best} of {rounds}, the best on rows held out" in page
    assert "the same, on validation rows" in page


def test_a_run_that_its_user_stops_has_its_last_models_and_goes_on(tmp_path: Path) -> None:
    whole = go(out=tmp_path / "whole")
    at = whole.summary["early_stopping"]["best_round"] + 1
    stopped = go(out=tmp_path / "run", on_round=lambda row: row["round"] < at)
    assert stopped.summary["stopped_after"] == at
    assert "early_stopping" not in stopped.summary
    assert stopped.summary["weights_sha256"] == go(rounds=at, patience=None).summary["weights_sha256"]
    np.testing.assert_array_equal(
        load_run(tmp_path / "run").predict(data().x_test, client=1), stopped.predict(data().x_test, client=1)
    )
    resumed = go(out=tmp_path / "run", resume=True)
    for key in ("weights_sha256", "early_stopping", "rounds"):
        assert resumed.summary[key] == whole.summary[key], key


def test_models_that_are_sent_after_the_last_round_alone_are_not_stopped_early() -> None:
    with pytest.raises(ConfigError, match=r"clients of One-shot averaging send theirs after the last one alone; leave"):
        train("one-shot", digits(), rounds=3, early_stopping=2, validation_fraction=0.2)

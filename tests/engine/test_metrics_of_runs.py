"""What every run tells of its clients beside the headline: finer figures, own metrics, which ranks, the worst tenth."""

from __future__ import annotations

import csv
import random
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn import metrics as sklearn

from commonground import FederatedDataset, Run, compare, load_run, train
from commonground.console import result_note
from commonground.engine.backends.serial import SerialEngine
from commonground.errors import ConfigError, ModelError
from commonground.report import write_report
from commonground.tasks import Rank, Regression
from tests.helpers import ENGINES

SIZES = (3, 40, 60, 24, 48)  # test rows of each client


@cache
def rare() -> FederatedDataset:
    """Two classes, the second of a tenth of the rows; the first client has no test row of it."""
    rng, parts = np.random.default_rng(5), []
    for client, tests in enumerate(SIZES):
        n = 40 + tests
        y = (rng.random(n) < 0.1).astype(np.int64)
        y[:4], y[40:43] = (0, 1, 0, 1), 0
        if client:
            y[43:45] = 1
        x = rng.normal(size=(n, 3)).astype(np.float32) + 0.7 * y[:, None]
        parts.append((x[:40], y[:40], x[40:], y[40:]))
    return FederatedDataset.from_arrays(parts, class_names=("no", "yes"), name="rare")


def brier(y: Any, p: Any) -> Any:
    """One number per row."""
    return (p[:, 1] - y) ** 2


def surest(y: Any, p: Any) -> float:
    """One number for a set of rows."""
    return float(p.max())


SETTINGS: dict[str, Any] = {"rounds": 2, "lr": 0.02, "model": "mlp", "model_options": {"hidden": [4]}, "workers": 2}


@cache
def done(engine: str) -> Run:
    own = {"brier": brier, "surest": surest, "least": lambda y, p: p.min()}  # a lambda cannot be sent to a worker
    return train("fedrep", rare(), engine=engine, metrics=own, **SETTINGS)


def truth(run: Run) -> tuple[list[Any], list[Any]]:
    """Every client's test classes, and its own model's probabilities."""
    data = rare()
    rows = [data.test_indices(c) for c in range(data.clients)]
    return [data.y_test[r] for r in rows], [run.predict(data.x_test[r], c) for c, r in enumerate(rows)]


@pytest.mark.parametrize("engine", ENGINES)
def test_figures_are_those_of_scikit_learn_in_every_engine(engine: str) -> None:
    run = done(engine)
    y, p = truth(done("serial"))
    whole_y, whole_p = np.concatenate(y), np.concatenate(p)
    wanted = {
        "balanced_accuracy": lambda y, p: sklearn.recall_score(
            y, p.argmax(1), labels=np.unique(y), average="macro", zero_division=0
        ),
        "f1": lambda y, p: sklearn.f1_score(y, p.argmax(1), average="macro"),
        "log_loss": lambda y, p: sklearn.log_loss(y, p, labels=[0, 1]),
        "auc": lambda y, p: sklearn.roc_auc_score(y, p[:, 1]),
        "brier": lambda y, p: brier(y, p).mean(),
    }
    for name, figure in wanted.items():
        own, told = [c for c in range(5) if name != "auc" or c], run.summary["metrics"][name]
        each = [figure(y[c], p[c]) for c in own]
        assert told["clients"] == len(each)
        assert told["mean"] == pytest.approx(np.mean(each), abs=1e-5), name
        assert told["over_rows"] == pytest.approx(figure(whole_y, whole_p), abs=told.get("over_rows_within", 1e-5)), (
            name
        )
        cells = [run.clients[c][f"personal_{name}"] for c in range(5)]
        assert [cells[c] for c in own] == pytest.approx(each, abs=1e-5)
        assert cells.count("") == 5 - len(each)
    assert run.summary["metrics"]["auc"]["over_rows_within"] < 0.01
    assert run.summary["metrics"]["surest"]["over_rows"] is None
    assert run.summary["metrics"]["surest"]["mean"] == pytest.approx(np.mean([each.max() for each in p]), abs=1e-5)


@pytest.mark.parametrize("engine", [e for e in ENGINES if e != "serial"])
def test_every_engine_tells_the_same(engine: str) -> None:
    one, other = done("serial").summary["metrics"], done(engine).summary["metrics"]
    for name, told in one.items():
        assert other[name] == pytest.approx(told, abs=1e-6), name


def test_details_are_told_once_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, str, bool]] = []
    plain = SerialEngine.evaluate

    def listening(self: Any, clients: Any, shared: Any, which: Any = "personal", round: int = 0, **how: Any) -> Any:
        asked.append((round, which, how["detailed"]))
        return plain(self, clients, shared, which, round, **how)

    monkeypatch.setattr(SerialEngine, "evaluate", listening)
    train("fedavg", rare(), engine="serial", **SETTINGS)
    assert asked == [(1, "global", False), (2, "global", True)]
    asked.clear()
    stopped = train("fedavg", rare(), engine="serial", on_round=lambda row: False, **SETTINGS)
    assert asked == [(1, "global", False), (1, "global", True)]  # nobody knew that it would be the last
    assert stopped.summary["metrics"]["auc"]["clients"] == 4


# -- metrics of one's own -------------------------------------------------------------------------------------------


def last_row(y: Any, p: Any) -> Any:
    return p[10**6]


@pytest.mark.parametrize("algorithm", ["fedavg", "perfedavg"])
def test_a_metric_that_fails_does_so_before_a_round_is_trained(algorithm: str, tmp_path: Path) -> None:
    seen: list[Any] = []
    with pytest.raises(ModelError, match="the metric 'last_row' failed: IndexError"):
        train(algorithm, rare(), metrics={"last_row": last_row}, on_round=seen.append, **SETTINGS)
    assert not seen
    # What fails after all rounds leaves all but the last of them.
    calls: list[int] = []

    def later(y: Any, p: Any) -> float:
        calls.append(len(y))
        return float(p[10**6 if len(calls) > 1 else 0, 0])

    more: dict[str, Any] = {**SETTINGS, "out": tmp_path / "run", "rounds": 3, "workers": 1}
    with pytest.raises(ModelError, match="the metric 'later' failed: IndexError"):
        train(algorithm, rare(), metrics={"later": later}, **more)
    whole = train(algorithm, rare(), metrics={"later": surest}, **{**more, "out": None})
    again = train(algorithm, rare(), metrics={"later": surest}, on_round=seen.append, resume=True, **more)
    assert [row["round"] for row in seen] == [3]
    assert again.summary["weights_sha256"] == whole.summary["weights_sha256"]


def test_a_metric_of_targets_of_one_number() -> None:
    """Regression's are [n, 1], and so is what is computed of them row by row."""
    x = np.random.default_rng(0).normal(size=(40, 3))
    data = FederatedDataset.from_arrays([(x[:30], x[:30, 0], x[30:], x[30:, 0])] * 2, task=Regression())
    run = train("fedavg", data, rounds=1, metrics={"off": lambda y, p: np.abs(y - p)})
    assert run.summary["metrics"]["off"] == pytest.approx(run.summary["metrics"]["mae"])


def test_a_metric_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def brier(y, p):\n    return (p[:, 1] - y) ** 2\n")
    run = train("fedrep", rare(), engine="serial", metric=f"{tmp_path}/mine.py:brier", out=tmp_path / "run", **SETTINGS)
    expected = done("serial").summary["metrics"]["brier"]
    assert run.summary["metrics"]["brier"] == pytest.approx(expected)
    with (tmp_path / "run" / "clients.csv").open() as file:
        assert "personal_brier" in next(csv.DictReader(file))
    assert "Brier" in write_report(tmp_path / "run").read_text("utf-8")
    assert load_run(tmp_path / "run").summary["metric"] == "accuracy"


@pytest.mark.parametrize("engine", ["serial", "batched", "processes", "messages"])
def test_a_metric_may_draw(engine: str) -> None:
    """A bootstrap of a client's rows: alike in every engine, and no draw of the model's."""
    draws = np.random  # the global generator: what is drawn from one of its own nobody has to key

    def bootstrap(y: Any, p: Any) -> float:
        rows = draws.randint(0, len(y), len(y)) + 0 * random.randrange(2)
        return float((p.argmax(1)[rows] == y[rows]).mean())

    state = draws.get_state(legacy=False)
    told = [train("fedrep", rare(), engine=engine, metrics={"again": bootstrap}, **SETTINGS) for _ in range(2)]
    assert told[0].summary["metrics"]["again"] == told[1].summary["metrics"]["again"]
    np.testing.assert_equal(draws.get_state(legacy=False), state)
    plain = train("fedrep", rare(), engine=engine, **SETTINGS)
    assert told[0].summary["weights_sha256"] == plain.summary["weights_sha256"]
    each = [row["personal_again"] for row in told[0].clients]
    assert told[0].summary["metrics"]["again"]["mean"] == pytest.approx(np.mean(each))
    assert each != [row["personal_accuracy"] for row in told[0].clients]


def test_importing_in_a_metric_is_no_draw_of_the_models() -> None:
    """Some modules draw when they are loaded, as scikit-learn's do."""
    loaded: list[float] = []

    def lazy(y: Any, p: Any) -> float:
        if not loaded:
            loaded.append(random.random())
        return 1.0

    assert (
        train("fedrep", rare(), engine="serial", metrics={"lazy": lazy}, **SETTINGS).summary["metrics"]["lazy"]["mean"]
        == 1
    )


@pytest.mark.parametrize(
    ("given", "error", "sentence"),
    [
        (
            {"metrics": {"mine": lambda y: 1.0}},
            ConfigError,
            r"'mine' has the parameters \(y\), and is called with \(targets, predictions\)",
        ),
        ({"metrics": {"mine": lambda y, p, z: 1.0}}, ConfigError, r"'mine' has the parameters \(y, p, z\)"),
        ({"metrics": {"auc": surest}}, ConfigError, "the metric 'auc' has the name of one that a run has anyway"),
        ({"metrics": {"mine": 3}}, ConfigError, "the metric 'mine' is a int, not a function"),
        ({"metrics": {"a b": surest}}, ConfigError, "'a b' needs a name of letters"),
        ({"metric": "brier"}, ConfigError, "write it as file.py:function"),
        ({"metrics": {"mine": lambda y, p: p}}, ModelError, "'mine' must give one number, or one for each of 60 rows"),
        ({"metrics": {"mine": lambda y, p: 1 / 0}}, ModelError, "the metric 'mine' failed"),
        ({"metrics": {"mine": lambda y, p: "x"}}, ModelError, "'mine' must give one number, .*, not what is a str"),
        (
            {"metrics": {"mine": lambda y, p: None}},
            ModelError,
            "'mine' must give one number, .*, not what is a NoneType",
        ),
        ({"metrics": {"mine": lambda y, p: np.inf}}, ModelError, "'mine' gives a value that is infinite"),
    ],
)
def test_what_is_no_metric_is_said(given: dict[str, Any], error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        train("fedrep", rare(), engine="serial", **SETTINGS, **given)


# -- which metric ranks ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rank", "best"), [("log_loss", min), ("auc", max), ("brier:lower", min), ("brier", max)])
def test_the_metric_that_ranks_keeps_the_best_round(rank: str, best: Any) -> None:
    run = train("fedrep", rare(), engine="serial", metrics={"brier": brier}, rank_by=rank, early_stopping=2,
                validation_fraction=0.3, **{**SETTINGS, "rounds": 4, "lr": 0.5})  # fmt: skip
    name = rank.partition(":")[0]
    values = [row[f"validation_{name}"] for row in run.history]
    told = run.summary["early_stopping"]
    assert (told["metric"], told["value"]) == (f"validation_{name}", best(values))
    assert told["best_round"] == values.index(best(values)) + 1
    assert all("validation_accuracy" in row for row in run.history)
    assert run.summary["rank_by"] == {"metric": name, "higher_is_better": best is max}


@pytest.mark.parametrize(
    ("rank", "sentence"),
    [
        ("balanced_acuracy", "--rank-by balanced_acuracy is no metric of classification .did you mean "
                             "'balanced_accuracy'"),
        ("auc:lower", "only a metric of your own is followed by"),
        ("rmse", "known are accuracy, balanced_accuracy, f1, auc, log_loss, calibration_error"),
    ],
)  # fmt: skip
def test_a_metric_that_does_not_rank(rank: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        train("fedrep", rare(), rank_by=rank, **SETTINGS)
    assert Rank.of("r2", Regression()) == Rank("r2", True)
    assert Rank.of(None, Regression()) == Rank("rmse", False)


def test_a_comparison_and_its_grid_are_ranked(tmp_path: Path) -> None:
    grid = {"lr": [1e-4, 0.05]}
    settings = {key: value for key, value in SETTINGS.items() if key != "lr"}
    ranked = compare(["fedrep"], rare(), 1, tmp_path / "c", engine="serial", rank_by="log_loss", grid=grid, **settings)
    result = ranked.to_dict()
    assert (result["metric"], result["rank_by"]["higher_is_better"]) == ("log_loss", False)
    for entry in result["methods"]:
        (run,) = ranked.runs[entry["method"]]
        assert entry["personal_log_loss"]["mean"] == run.summary["metrics"]["log_loss"]["mean"]
        assert entry["p90"]["mean"] == run.summary["metrics"]["log_loss"]["p90"]
        assert entry["over_rows"]["auc"]["mean"] == run.summary["metrics"]["auc"]["over_rows"]
        assert {"accuracy", "auc", "balanced_accuracy"} <= set(entry["metrics"])
    first, second = (entry["personal_log_loss"]["mean"] for entry in result["methods"])
    assert result["methods"][1]["differences"]["mean"] == pytest.approx(second - first)
    for each in result["tuning"]:
        scores = {tried["settings"]["lr"]: tried["validation_log_loss"] for tried in each["candidates"]}
        assert each["chosen"]["lr"] == min(scores, key=scores.__getitem__)
    page = (tmp_path / "c" / "report.html").read_text("utf-8")
    for text in ("Log loss", "Over all rows", "Balanced accuracy %"):
        assert text in page


# -- the worst tenth, and classes that are rare ---------------------------------------------------------------------


def test_the_worst_tenth_is_of_clients_with_enough_rows(tmp_path: Path) -> None:
    plain = done("serial").summary
    run = train("fedrep", rare(), engine="serial", worst_min_rows=24, out=tmp_path, **SETTINGS)
    values = np.array([row["personal_accuracy"] for row in run.clients])
    kept = values[1:]  # the first has 3 test rows
    own = run.summary["personal_accuracy"]
    assert own["p10"] == pytest.approx(np.quantile(kept, 0.1))
    assert (own["min"], own["mean"]) == (kept.min(), pytest.approx(values.mean()))
    assert run.history[-1]["worst_decile"] == own["p10"]
    assert run.summary["worst_tenth"] == {"min_rows": 24, "clients": 4}
    assert plain["worst_tenth"] == {"min_rows": 1, "clients": 5}
    assert plain["personal_accuracy"]["p10"] == pytest.approx(np.quantile(values, 0.1))
    assert "10th percentile of 4 clients with at least 24 test samples" in write_report(tmp_path).read_text("utf-8")


def test_percentiles_of_a_comparison_are_of_those_clients_too(tmp_path: Path) -> None:
    done = compare(["fedrep"], rare(), 1, tmp_path, local_only=False, engine="serial", worst_min_rows=24, **SETTINGS)
    (run,) = done.runs["fedrep"]
    kept = [row["personal_accuracy"] for row in run.clients if row["test_samples"] >= 24]
    assert len(kept) == 4  # one of them has just as many
    (entry,) = done.result["methods"]
    found = {name: each["mean"] for name, each in entry["percentiles"].items()}
    assert found == pytest.approx({name: np.percentile(kept, int(name[1:])) for name in found})


def test_rare_classes_are_told_of(tmp_path: Path) -> None:
    run = train("fedrep", rare(), engine="serial", out=tmp_path, **SETTINGS)
    y = rare().y_test
    most, metrics = run.summary["majority"], run.summary["metrics"]
    assert (most["class"], most["test_share"]) == ("no", pytest.approx((y == 0).mean()))
    note = result_note(run)
    assert note.startswith(f"{100 * (y == 0).mean():.1f} % of the test rows are of the class 'no'")
    for text in (f"balanced accuracy of {100 * metrics['balanced_accuracy']['over_rows']:.1f} %", "AUC of 0."):
        assert text in note
    assert "whoever always answers so" in write_report(tmp_path).read_text("utf-8")


def test_even_classes_are_not_told_of() -> None:
    run = train("fedrep", "digits", clients=4, rounds=1)
    assert run.summary["majority"]["test_share"] < 0.2
    assert "test rows are of the class" not in result_note(run)

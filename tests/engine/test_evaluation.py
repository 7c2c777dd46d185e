"""Tests of clients' models: equal to a loop over clients, in blocks, on a panel when there are many."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from rich.console import Console
from torch.func import functional_call

from commonground import FederatedDataset, load_run, train
from commonground.console import result_table
from commonground.engine.backends.base import Engine
from commonground.engine.evaluation import BLOCK_SAMPLES, blocks_of
from commonground.engine.evaluation_plan import PANEL
from commonground.engine.scores import Scores
from commonground.models import ConvNet, use_keyed_dropout
from commonground.report import write_run_report
from commonground.tasks import Classification, Regression
from tests.helpers import (
    ENGINES,
    SMALL,
    Notes,
    TwoLayer,
    Whole,
    dropping_chain,
    engines_changed,
    images,
    made_data,
    normed,
    seeded,
    train_whole,
)


def unequal(sizes: Sequence[int] = (1, 30, 7, 2)) -> FederatedDataset:
    """Clients with different numbers of test samples."""
    rng = np.random.default_rng(3)
    parts = [
        (rng.normal(size=(6, 4)), rng.integers(0, 3, 6), rng.normal(size=(n, 4)), rng.integers(0, 3, n)) for n in sizes
    ]
    return FederatedDataset.from_arrays(parts, classes=3)


def one_by_one(whole: Whole, model: torch.nn.Module, data: FederatedDataset) -> list[tuple[float, float]]:
    """Accuracy and loss of every client: its own model on its own test samples, one sample after the other."""
    model = model.double().eval()
    found = []
    for client in range(data.clients):
        tensors = {**whole.run.shared, **whole.personal[client]}
        rows = data.test_indices(client)
        x, y = torch.from_numpy(data.x_test[rows]).double(), torch.from_numpy(data.y_test[rows])
        x = x.movedim(-1, 1) if x.ndim == 4 else x
        with torch.no_grad():
            logits = torch.cat([functional_call(model, tensors, (sample.unsqueeze(0),)) for sample in x])
        right = (logits.argmax(1) == y).double().mean()
        found.append((float(right), float(F.cross_entropy(logits, y))))
    return found


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("algorithm", ["local", "fedavg", "fedper", "lg-fedavg"])
@pytest.mark.parametrize("kind", [TwoLayer, dropping_chain, normed])
def test_vectors(kind: Any, algorithm: str, engine: str) -> None:
    data, settings = unequal(), {"engine": engine, "dtype": "float64", "rounds": 2}
    whole = train_whole(algorithm, data, model=seeded(kind), **settings)
    wanted = one_by_one(whole, use_keyed_dropout(seeded(kind)), data)
    assert [c["personal_accuracy"] for c in whole.run.clients] == [a for a, _ in wanted]
    np.testing.assert_allclose([c["test_loss"] for c in whole.run.clients], [b for _, b in wanted], atol=1e-12)
    assert [c["test_samples"] for c in whole.run.clients] == [1, 30, 7, 2]
    accuracy = np.array([a for a, _ in wanted])
    summary = whole.run.personal_accuracy
    assert summary["mean"] == pytest.approx(accuracy.mean())  # over clients, not over samples
    assert summary["std"] == pytest.approx(accuracy.std())
    assert summary["min"] == accuracy.min()
    assert summary["p10"] == pytest.approx(np.quantile(accuracy, 0.1))
    assert whole.run.history[-1]["personal_accuracy"] == pytest.approx(accuracy.mean())


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("algorithm", ["local", "fedper", "lg-fedavg"])
def test_images(algorithm: str, engine: str) -> None:
    def model() -> torch.nn.Module:
        return seeded(ConvNet, (2, 16, 16), 3, channels=(3, 4), hidden=(6, 5), dropout=0.4)

    data = images()
    whole = train_whole(algorithm, data, model=model(), engine=engine, dtype="float64", rounds=1)
    wanted = one_by_one(whole, model(), data)
    assert [c["personal_accuracy"] for c in whole.run.clients] == [a for a, _ in wanted]
    np.testing.assert_allclose([c["test_loss"] for c in whole.run.clients], [b for _, b in wanted], atol=1e-10)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_test_changes_nothing(engine: str) -> None:
    """Neither weights nor statistics, however often one tests."""
    model = dropping_chain if engine == "batched" else normed
    runs = [
        train_whole("fedper", made_data((6, 4, 8)), model=seeded(model), engine=engine, rounds=4, eval_every=k)
        for k in (1, 4)
    ]
    assert runs[0].sha == runs[1].sha
    assert runs[0].losses == runs[1].losses
    assert [row["personal_accuracy"] for row in runs[1].run.history][:3] == [None] * 3
    assert [row["evaluated_clients"] for row in runs[1].run.history] == [0, 0, 0, 3]


def test_blocks_by_hand() -> None:
    half = BLOCK_SAMPLES // 2
    sizes = np.array([half, half, 1, BLOCK_SAMPLES + 5, BLOCK_SAMPLES - 1, 1, 1])
    assert list(blocks_of(range(7), sizes)) == [[0, 1], [2], [3], [4, 5], [6]]
    assert list(blocks_of([6, 0], sizes)) == [[6, 0]]
    assert list(blocks_of([3, 3], sizes)) == [[3], [3]]
    assert list(blocks_of([], sizes)) == []


def test_scores() -> None:
    def scores(clients: list[int], count: list[int], right: list[float], loss: list[float]) -> Scores:
        sums = {"accuracy": np.array(right)}
        return Scores(np.array(clients), np.array(count), np.array(loss), sums, Classification())

    joined = Scores.join([scores([4], [4], [1.0], [0.5]), scores([2, 9], [3, 2], [3.0, 0.0], [0.1, 2.0])])
    assert joined.clients.tolist() == [4, 2, 9]
    assert joined.count.tolist() == [4, 3, 2]
    assert joined.loss.tolist() == [0.5, 0.1, 2.0]
    assert joined.sums["accuracy"].tolist() == [1.0, 3.0, 0.0]
    assert joined.task == Classification()
    assert list(joined.metrics) == ["accuracy"]
    assert joined.headline.tolist() == [0.25, 1.0, 0.0]
    assert joined.over_rows == {"accuracy": 4 / 9}  # over all samples as one set, not over clients
    assert joined.among([4, 2, 9]) is joined
    for clients in (range(10), [9, 7, 2, 0, 4]):  # in order, and in any
        whole = joined.among(clients)
        assert whole.clients.tolist() == list(clients)
        assert dict(zip(clients, whole.count.tolist(), strict=True)) == dict.fromkeys(clients, 0) | {4: 4, 2: 3, 9: 2}
        of = dict(zip(clients, zip(whole.loss.tolist(), whole.sums["accuracy"].tolist(), strict=True), strict=True))
        assert [of[client] for client in (4, 2, 9)] == [(0.5, 1.0), (0.1, 3.0), (2.0, 0.0)]
        assert np.isnan(of[0][0])
        assert of[0][1] == 0
        assert whole.over_rows == joined.over_rows


def test_scores_of_several_outputs_are_added_up_for_each_output() -> None:
    """Two clients with two and one test samples of two targets; the errors are 1, −3 and 2, 0 and −1, 4."""
    sums = {
        "squared": np.array([[1.0 + 4.0, 9.0 + 0.0], [1.0, 16.0]]),
        "absolute": np.array([[3.0, 3.0], [1.0, 4.0]]),
        "y": np.array([[2.0, 6.0], [5.0, 3.0]]),
        "y_squared": np.array([[4.0, 20.0], [25.0, 9.0]]),
    }
    scores = Scores(np.array([0, 1]), np.array([2, 1]), np.zeros(2), sums, Regression())
    assert scores.metrics["mse"].tolist() == [(2.5 + 4.5) / 2, 8.5]
    assert scores.headline.tolist() == [3.5**0.5, 8.5**0.5]
    assert scores.metrics["mae"].tolist() == [1.5, 2.5]
    # ȳ = (1, 3) and the spreads are 2 − 1 and 10 − 9; of one sample there is none.
    np.testing.assert_array_equal(scores.metrics["r2"], [((1 - 2.5) + (1 - 4.5)) / 2, np.nan])
    assert scores.over_rows["mse"] == pytest.approx((6 / 3 + 25 / 3) / 2, abs=1e-15)
    spread = (29 / 3 - (7 / 3) ** 2, 29 / 3 - 3**2)
    assert scores.over_rows["r2"] == pytest.approx((1 - 2 / spread[0] + 1 - (25 / 3) / spread[1]) / 2, abs=1e-12)


# -- many clients ---------------------------------------------------------------------------------------------------


def many(clients: int) -> FederatedDataset:
    """Two training samples and one test sample per client."""
    rng = np.random.default_rng(0)
    return FederatedDataset(
        name="many",
        x_train=rng.normal(size=(2 * clients, 4)).astype(np.float32),
        y_train=rng.integers(0, 3, 2 * clients),
        x_test=rng.normal(size=(clients, 4)).astype(np.float32),
        y_test=rng.integers(0, 3, clients),
        classes=3,
        class_names=("a", "b", "c"),
        train_index=np.arange(2 * clients),
        train_offsets=np.arange(0, 2 * clients + 1, 2),
        test_index=np.arange(clients),
        test_offsets=np.arange(clients + 1),
    )


class Counter:
    """Counts the clients that are trained, committed and tested, call by call."""

    def __init__(self) -> None:
        self.trained: list[int] = []
        self.tested: list[list[int]] = []

    def __call__(self, engine: Engine) -> None:
        train_clients, evaluate = engine.train, engine.evaluate

        def training_(round: int, clients: Sequence[int], *args: Any, **kwargs: Any) -> Any:
            self.trained.append(len(clients))
            return train_clients(round, clients, *args, **kwargs)

        def testing(clients: Sequence[int], *args: Any, **kwargs: Any) -> Any:
            self.tested.append(list(clients))
            return evaluate(clients, *args, **kwargs)

        engine.train, engine.evaluate = training_, testing  # type: ignore[method-assign]


@pytest.mark.parametrize("engine", ["serial", "batched"])
def test_ten_thousand_clients(engine: str, tmp_path: Any) -> None:
    """A round costs what its 10 participants cost: the others are neither trained, nor tested, nor kept."""
    counter = Counter()
    with engines_changed(counter):
        run = train(
            "fedrep", many(10_000), model="mlp", model_options={"hidden": [3]}, participation=0.001, out=tmp_path,
            options={"head_epochs": 1}, **(SMALL | {"engine": engine}),
        )  # fmt: skip
    assert counter.trained == [10] * 3
    assert [len(t) for t in counter.tested[:3]] == [PANEL] * 3
    assert counter.tested[0] == counter.tested[1] == counter.tested[2], "the panel is fixed"
    assert len(counter.tested[-1]) == 10_000
    assert all(row["evaluated_clients"] == PANEL for row in run.history)
    assert len(run.clients) == 10_000
    assert sum(c["rounds"] for c in run.clients) == 30
    saved = sum(p.stat().st_size for p in (tmp_path / "checkpoint").rglob("*.safetensors"))
    kept = len([*(tmp_path / "checkpoint").glob("round-*.safetensors")])
    assert 1 <= kept <= 2  # the last two; on a slow machine one is due before the run's end
    # Two numbers per client in each; a head, its digest and its client's number per participant.
    assert saved < kept * (10_000 * 8 + 5_000) + 30 * (4 * 12 + 32 + 8)


def test_all_are_tested_up_to_two_thousand() -> None:
    counter = Counter()
    settings = SMALL | {"engine": "batched", "rounds": 1, "participation": 0.001}
    with engines_changed(counter):
        train("fedper", many(2_000), model="linear", **settings)
        train("fedper", many(2_001), model="linear", **settings)
        train("fedper", many(2_001), model="linear", eval_clients=7, **settings)
        train("fedper", many(50), model="linear", eval_clients=60, **settings)
    # Where the last round has tested everybody, there is no second, final test.
    assert [len(t) for t in counter.tested] == [2000, 200, 2001, 7, 2001, 50]


def test_the_last_test_may_be_of_a_sample(tmp_path: Path) -> None:
    """The others' cells are empty, figures are those of the sample, and everything says so."""
    data, settings = many(60), SMALL | {"engine": "batched", "rounds": 2, "eval_clients": 5}
    counter = Counter()
    with engines_changed(counter):
        run = train("fedper", data, model="linear", final_eval_clients=9, out=tmp_path / "run", **settings)
    assert [len(tested) for tested in counter.tested] == [5, 5, 9]
    whole = train("fedper", data, model="linear", **settings)
    assert run.summary["weights_sha256"] == whole.summary["weights_sha256"]
    chosen = counter.tested[-1]
    for row, other in zip(run.clients, whole.clients, strict=True):
        if row["client"] in chosen:
            assert {**row, "rounds": 0} == {**other, "rounds": 0}
        else:
            held = other["test_samples"]
            assert (row["test_samples"], row["personal_accuracy"], row["test_loss"]) == (held, "", "")
    of_sample = [whole.clients[client]["personal_accuracy"] for client in chosen]
    assert run.personal_accuracy["mean"] == pytest.approx(np.mean(of_sample))
    assert run.personal_accuracy["min"] == min(of_sample)
    assert run.summary["final_test"] == {"clients": 9}
    assert "lost_clients" not in run.summary
    assert "final_test" not in whole.summary
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(result_table(run))
    assert "mean over a sample of 9 of 60 clients" in console.export_text()
    write_run_report(tmp_path / "run")
    assert "mean over a sample of 9 of 60 clients" in (tmp_path / "run" / "report.html").read_text("utf-8")
    assert load_run(tmp_path / "run").clients == list(run.clients)


def test_a_sample_of_those_whose_heads_were_tuned() -> None:
    settings = SMALL | {"engine": "serial", "rounds": 1, "eval_clients": 2, "finetune_epochs": 1}
    run = train("fedavg", many(12), model="linear", final_eval_clients=4, **settings)
    assert sum(row["personal_accuracy"] != "" for row in run.clients) == 4
    assert run.summary["final_test"] == {"clients": 4}


def test_no_sample_where_every_round_tests_all() -> None:
    run = train("fedper", many(12), model="linear", final_eval_clients=4, **SMALL)
    assert all(row["personal_accuracy"] != "" for row in run.clients)
    assert "final_test" not in run.summary


def test_the_panel_is_keyed_by_the_seed() -> None:
    panels = []
    for seed, engine in ((1, "serial"), (1, "batched"), (2, "serial")):
        counter = Counter()
        with engines_changed(counter):
            train("fedper", many(60), model="linear", eval_clients=5, **(SMALL | {"seed": seed, "engine": engine}))
        panels.append(counter.tested[0])
    assert panels[0] == panels[1] != panels[2]


def test_a_sample_of_the_last_test_is_one_of_a_panels_run() -> None:
    cases: list[tuple[dict[str, Any], bool]] = [({}, True), ({"eval_clients": 2}, False)]
    for more, said in cases:
        heard = Notes()
        train("fedavg", made_data(), model="linear", rounds=1, final_eval_clients=1, observer=heard, **more)
        assert any("--final-eval-clients 1 says nothing where all clients" in note for note in heard.said) is said


@pytest.mark.parametrize("some", [2, None])
def test_a_page_says_what_is_of_a_panel(some: int | None, tmp_path: Path) -> None:
    train("fedavg", made_data(), model="linear", rounds=3, out=tmp_path / "run", eval_clients=some)
    page = write_run_report(tmp_path / "run").read_text("utf-8")
    assert ("among the last 10 rounds, of the panel of 2 clients that rounds test" in page) is (some == 2)
    assert ("Tested on a fixed panel of 2 clients; the test after the last round is in" in page) is (some == 2)

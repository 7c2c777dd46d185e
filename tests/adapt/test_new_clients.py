"""New clients: what a finished run gives them, and what they make of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import commonground as cg
from commonground.adapt.few_shot import _summary, adapt, head_curve
from commonground.engine import load_run
from commonground.engine.state.segment import Segment
from commonground.errors import ConfigError, DataError

SETTINGS: dict[str, Any] = {"clients": 5, "classes_per_client": 3, "rounds": 3, "engine": "serial", "seed": 1}


def trained(algorithm: str, folder: Path) -> cg.Run:
    return cg.train(algorithm, "digits", out=folder, **SETTINGS)


def test_a_body_that_stays_local_becomes_the_mean_of_all(tmp_path: Path) -> None:
    trained("lg-fedavg", tmp_path)
    run = load_run(tmp_path)
    own = [run.trained.own(client) for client in range(5)]
    body = run.trained.body()
    local = [name for name in body if name not in run.shared]
    assert local
    for name in local:
        torch.testing.assert_close(body[name], sum(o[name] for o in own) / 5)
        # A client's tensors alone are in memory: with its neighbours, 150 clients of half a million weights are 50 GB.
        assert all(o[name].untyped_storage().nbytes() == o[name].nbytes for o in own)
        assert not torch.equal(own[0][name], own[1][name])


@pytest.mark.parametrize("engine", ["serial", "messages"])
def test_it_is_read_in_parts_and_once(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is opened for each client, and for each prediction of an added one, takes minutes of many clients."""
    cg.train("lg-fedavg", "digits", out=tmp_path, **SETTINGS | {"engine": engine})
    whole = load_run(tmp_path).trained.body()
    trained = load_run(tmp_path).trained
    each = sum(value.nbytes for value in trained.own(0).values())
    monkeypatch.setattr("commonground.engine.trained.BYTES_AT_ONCE", 2 * each)
    checked, usual = list[int](), Segment.check

    def watched(self: Segment, rows: Any = None) -> None:
        checked.append(len(self.clients) if rows is None else len(rows))
        usual(self, rows)

    monkeypatch.setattr(Segment, "check", watched)
    for _ in range(3):
        parts = trained.body()
    torch.testing.assert_close(parts, whole)
    assert checked == ([2, 2, 1] if engine == "serial" else [1] * 5)


@pytest.mark.parametrize(("algorithm", "title"), [("local", "Local Only"), ("fedproto", "FedProto")])
def test_a_run_that_shares_nothing_has_nothing_for_new_clients(algorithm: str, title: str, tmp_path: Path) -> None:
    trained(algorithm, tmp_path)
    with pytest.raises(ConfigError, match=f"{title} shares no body"):
        load_run(tmp_path).trained.body()


@pytest.mark.parametrize("algorithm", ["fedrep", "fedavg"])
def test_the_head_of_new_clients_is_fitted_on_the_frozen_body(algorithm: str, tmp_path: Path) -> None:
    trained(algorithm, tmp_path)
    run = load_run(tmp_path)
    new = cg.load_data("digits", 4, classes_per_client=2, seed=9)
    curve = head_curve(run, new, 6, seed=2)
    assert len(curve) == 6
    assert curve[-1].shape == (4,)
    assert curve[-1].mean() > 0.8
    assert curve[-1].mean() >= curve[0].mean() - 0.02
    again = head_curve(load_run(tmp_path), new, 6, seed=2)
    assert all((one == other).all() for one, other in zip(curve, again, strict=True))


def test_more_shots_serve_better_and_every_way_is_named(tmp_path: Path) -> None:
    trained("fedavg", tmp_path)
    new = cg.load_data("digits", 4, classes_per_client=3, seed=9)
    results = adapt(load_run(tmp_path), new, [2, 40], epochs=10, repeats=2)
    ways = {(r.method, r.shots): r for r in results}
    assert {way for way, _ in ways} == {"frozen body", "global + FT", "local only"}
    assert ways["frozen body", 40].mean > ways["frozen body", 2].mean


def test_the_spread_of_two_clients_is_half_of_what_is_between_them(tmp_path: Path) -> None:
    """As that of the clients that trained; their 10th and 90th percentiles are four fifths of it apart."""
    trained("fedrep", tmp_path)
    for found in adapt(load_run(tmp_path), cg.load_data("digits", 2, classes_per_client=3, seed=9), [3], epochs=1):
        assert found.std == pytest.approx((found.p90 - found.p10) / 1.6)
        assert found.std > 0


def test_a_rate_that_is_given_is_that_of_all_steps() -> None:
    """Also where the run's head had one of its own."""
    run = cg.train("fedrep", "digits", **{**SETTINGS, "head_lr": 0.05, "lr": 0.05})
    new = cg.load_data("digits", 4, classes_per_client=3, seed=5)
    means = {lr: [way.mean for way in adapt(run, new, [5], repeats=1, lr=lr)] for lr in (1e-9, 0.05, None)}
    assert means[0.05] == means[None]
    assert all(still < learnt - 0.1 for still, learnt in zip(means[1e-9], means[0.05], strict=True))


def test_shots_that_are_none_are_refused(tmp_path: Path) -> None:
    trained("fedrep", tmp_path / "run")
    data = cg.load_data("digits", clients=3, seed=7)
    for shots, said in (
        (5, "shots are whole numbers of samples, such as"),
        ([1.5], "not .1.5."),
        ([], "not none at all"),
        ([0], "not 0"),
    ):
        with pytest.raises(ConfigError, match=said):
            adapt(tmp_path / "run", data, shots)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="--repeats must be a whole number of at least 1, not 0"):
        adapt(tmp_path / "run", data, [2], repeats=0)
    assert adapt(str(tmp_path / "run"), data, [2], repeats=1, epochs=1, local_only=False)


def test_what_batch_norm_cannot_be_trained_on_is_left_out_and_told(tmp_path: Path) -> None:
    """Of batches of six, seven samples leave one over; heads on the frozen body need no statistics."""
    norm: dict[str, Any] = {"model": "mlp", "model_options": {"norm": "batch"}, "batch_size": 6}
    cg.train("fedrep", "digits", out=tmp_path, **{**SETTINGS, **norm, "classes_per_client": 3})
    new = cg.load_data("digits", 4, classes_per_client=3, seed=9)
    said: list[str] = []
    found = adapt(tmp_path, new, [1, 5, 7], epochs=2, repeats=2, note=said.append)
    assert [(one.shots, one.method) for one in found] == [
        (1, "frozen body"), (5, "frozen body"), (5, "local only"), (7, "frozen body")
    ]  # fmt: skip
    assert said == [
        f"local only is left out at {k}: a batch of a single sample (batches are of 6) has no statistics for BatchNorm"
        for k in ("1 shot", "7 shots")
    ]
    with pytest.warns(UserWarning, match="local only is left out at 7 shots"):
        adapt(tmp_path, new, [7], epochs=1, repeats=1)


def test_the_figures_are_of_clients_for_which_the_metric_is_defined() -> None:
    found = _summary("frozen body", 3, [np.array([0.5, np.nan, np.nan]), np.array([0.7, 0.2, np.nan])])
    assert found.mean == pytest.approx(0.4)  # of 0.6 and 0.2
    assert found.repeats == 2
    with pytest.raises(DataError, match="is not defined on any new client's test samples"):
        _summary("frozen body", 3, [np.full(3, np.nan)])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"epochs": 0}, "--epochs must be a whole number of at least 1, not 0"),
        ({"epochs": 2.5}, "--epochs must be a whole number of at least 1, not 2.5"),
        ({"epochs": "3"}, "--epochs must be a whole number of at least 1, not '3'"),
        ({"epochs": True}, "--epochs must be a whole number of at least 1, not True"),
        ({"seed": -1}, "--seed must be a whole number of at least 0, not -1"),
        ({"lr": "a"}, "--lr must be a positive number, .* not 'a'"),
        ({"lr": True}, "--lr must be a positive number, .* not True"),
    ],
)
def test_heads_are_fitted_with_numbers_alone(settings: dict[str, Any], said: str, tmp_path: Path) -> None:
    """Some were taken for others, and epochs=0 kept heads that nobody had trained."""
    run = cg.train("fedrep", "digits", out=tmp_path, **SETTINGS | {"rounds": 1})
    new = cg.load_data("digits", 2, classes_per_client=2, seed=9)
    with pytest.raises(ConfigError, match=said):
        cg.keep_clients(run, new, **settings)
    with pytest.raises(ConfigError, match=said):
        cg.adapt(run, new, [2], **settings)
    assert not (tmp_path / "added").exists()


def test_a_run_whose_clients_have_tuned_all_says_why_it_has_no_body(tmp_path: Path) -> None:
    tuned = {"finetune_epochs": 1, "finetune": "all", "rounds": 1}
    run = cg.train("fedavg", "digits", out=tmp_path, **SETTINGS | tuned)
    with pytest.raises(ConfigError, match=r"ended with --finetune all, .* train with --finetune head"):
        cg.keep_clients(run, cg.load_data("digits", 2, classes_per_client=2, seed=9))
    with pytest.raises(ConfigError, match=r"no global model; name a client \(the model before it is not kept\)"):
        run.model()

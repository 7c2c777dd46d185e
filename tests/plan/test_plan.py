"""What a plan says of a run, against the run itself."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commonground import FederatedDataset, plan, train
from commonground.algorithms import Algorithm, Client, Server, Tensors, Update, registry
from commonground.engine.backends.serial import SerialEngine
from commonground.engine.sampling import sample_clients
from commonground.engine.training import prepared
from commonground.plan import Plan, ledger
from commonground.plan.advice import advice
from commonground.plan.memory import Memory
from commonground.plan.table import plan_table
from commonground.plan.timing import BUDGET, Timing

SIZES = (7, 25, 3, 40, 12, 9, 31, 18)


def clients(sizes: Sequence[int] = SIZES) -> FederatedDataset:
    """Two classes, four numbers a row; one test row in two."""
    rng = np.random.default_rng(0)
    rows = []
    for n in sizes:
        x = rng.normal(size=(2 * n, 4)).astype(np.float32)
        y = np.arange(2 * n) % 2
        rows.append((x[:n], y[:n], x[n:], y[n:]))
    return FederatedDataset.from_arrays(rows)


SETTINGS: dict[str, Any] = {"model": "mlp", "model_options": {"hidden": [6]}, "rounds": 5, "participation": 0.5}


@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("fedrep", {}),
        ("flute", {}),
        ("scaffold", {}),
        ("l2gd", {"options": {"p": 0.5}, "rounds": 8}),
        ("one-shot", {}),
        ("fedproto", {}),
        ("fedmtl", {"options": {"omega": "learned"}}),
        ("fedbabu", {}),
        ("local", {}),
        ("pooled", {}),
        ("rolora", {"options": {"rank": 2}}),
        ("rolora", {"options": {"rank": 2, "first": "lora_A"}}),
        ("flora", {"options": {"rank": 2, "downlink": "stack"}, "model_options": {"hidden": [40]}, "rounds": 8}),
        ("ffa-lora", {"options": {"rank": 2}}),
        ("flexlora", {"options": {"rank": 2, "head": "shared"}}),
        ("flexlora", {"options": {"rank": 2, "ranks": "1,2"}, "participation": 0.5}),
        ("flora", {"options": {"rank": 2, "ranks": "1,2"}, "model_options": {"hidden": [40]}, "rounds": 8}),
        ("fedavg", {"dp": "client", "dp_clip": 1.0, "dp_noise": 0.5}),
        *(
            (method, {"options": {"rank": 1}, "dp": "client", "dp_noise": 0.1, "dp_adaptive_clip": 0.5})
            for method in ("lora", "ffa-lora", "rolora")
        ),
        *(
            ("rolora", {"options": {"rank": 2, "first": "lora_A"}, "participation": 1.0, "aggregate": aggregate})
            for aggregate in ("median", "krum:1", "clip:0.01", "trimmed:0.2")
        ),
    ],
)
def test_bytes_are_the_ledgers(method: str, more: dict[str, Any]) -> None:
    given = {**SETTINGS, **more, "engine": "serial"}
    told = plan(method, clients(), **given).sent
    run = train(method, clients(), **given)
    assert told.exact
    assert (told.up[0], told.down[0]) == (run.summary["bytes_up"], run.summary["bytes_down"])


def test_a_robust_mean_of_many_is_planned_by_as_many() -> None:
    settings: dict[str, Any] = {**SETTINGS, "participation": 1.0, "aggregate": "bulyan:1", "engine": "serial"}
    told, run = (
        plan("fedavg", clients(range(3, 11)), **settings).sent,
        train("fedavg", clients(range(3, 11)), **settings),
    )
    assert (told.up[0], told.down[0]) == (run.summary["bytes_up"], run.summary["bytes_down"])


def test_what_is_not_trained_need_not_travel_again() -> None:
    settings: dict[str, Any] = {**SETTINGS, "options": {"rank": 2}, "local_epochs": 0, "engine": "serial"}
    told, run = plan("rolora", clients(), **settings).sent, train("rolora", clients(), **settings)
    assert told.down[0] <= run.summary["bytes_down"] <= told.down[1]


def told_of(planned: Plan) -> dict[str, str]:
    """What the command prints, by the names of its lines."""
    named, said = (map(str, column.cells) for column in plan_table(planned, Path("run")).columns)
    return dict(zip(named, said, strict=True))


def test_bytes_that_would_take_long_to_work_out_are_the_most_that_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {**SETTINGS, "options": {"rank": 2}, "engine": "serial"}
    exact = plan("rolora", clients(), **given)
    monkeypatch.setattr(ledger, "MOST_NUMBERS", 0)
    bounded = plan("rolora", clients(), **given)
    assert (exact.sent.exact, bounded.sent.exact) == (True, False)
    assert bounded.sent.down[0] <= exact.sent.down[0] < bounded.sent.down[1]
    assert not told_of(exact)["a client's round"].startswith("at most")
    assert told_of(bounded)["a client's round"].startswith("at most ")
    assert "on average" not in told_of(bounded)["a client's round"]


@pytest.mark.parametrize("method", ["fedrep", "fedavg", "ditto", "fedmtl", "scaffold", "lora"])
def test_a_run_of_messages_can_be_planned(method: str) -> None:
    """A plan computes a round twice, for which clients must not be asked for the state they had after it."""
    given = {**SETTINGS, "engine": "messages"}
    told = plan(method, clients(), **given).sent
    run = train(method, clients(), **given)
    assert (told.up[0], told.down[0]) == (run.summary["bytes_up"], run.summary["bytes_down"])


def test_bytes_of_a_method_that_may_be_silent_and_does_not_say_when_are_a_range() -> None:
    @dataclass(frozen=True)
    class Sometimes(Algorithm):
        name = "sometimes"
        title = "Sometimes"
        source = "none"
        shared = ("all",)
        may_stay_silent = True

        def client_update(self, client: Client, round: int) -> Tensors:
            client.fit("all")
            return client.send("all") if round % 2 else client.send({})

        def server_update(self, server: Server, updates: Sequence[Update], round: int) -> None:
            if updates[0].tensors:
                super().server_update(server, updates, round)

    try:
        told = plan(Sometimes(), clients(), **SETTINGS).sent
        summary = train(Sometimes(), clients(), **SETTINGS).summary
    finally:
        del registry["sometimes"]
    assert not told.exact
    assert told.up[0] <= summary["bytes_up"] <= told.up[1]
    assert told.down[0] <= summary["bytes_down"] <= told.down[1]


@dataclass
class FakeTime:
    """A clock that goes on by what is computed: ``each`` second a mini-batch, and ``test`` seconds a tested row."""

    each: float
    test: float = 0.0
    now: float = 0.0

    def __call__(self) -> float:
        return self.now

    def batches(self, data: FederatedDataset, clients: Sequence[int], size: int = 10) -> float:
        return float(np.ceil(data.train_sizes[list(clients)] / size).sum())


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    fake = FakeTime(0.0)
    train, evaluate = SerialEngine.train, SerialEngine.evaluate

    def trains(self: SerialEngine, round: int, clients: Sequence[int], *rest: Any) -> Any:
        fake.now += fake.each * fake.batches(self.setup.data, clients)
        return train(self, round, clients, *rest)

    def evaluates(self: SerialEngine, clients: Sequence[int], *rest: Any, **named: Any) -> Any:
        fake.now += fake.test * float(self.setup.data.test_sizes[list(clients)].sum())
        return evaluate(self, clients, *rest, **named)

    monkeypatch.setattr(SerialEngine, "train", trains)
    monkeypatch.setattr(SerialEngine, "evaluate", evaluates)
    return fake


@pytest.mark.parametrize(
    ("each", "participants", "batches"),
    [(0.001, 4, None), (BUDGET / 7, 1, 7), (BUDGET / 5, 1, 5), (BUDGET / 2, 1, 2)],
)
def test_time_is_scaled_by_the_batches_of_the_clients_who_will_be_sampled(
    each: float, participants: int, batches: int | None, clock: FakeTime
) -> None:
    data = clients((*SIZES[:-1], 180)) if batches else clients()
    setup = prepared("fedavg", data, **{**SETTINGS, "rounds": 40, "engine": "serial", "eval_every": 4})
    first = sample_clients(setup.config, 8, 1)
    if batches:
        assert clock.batches(data, first[:1]) <= 7
    clock.each, clock.test = each, 0.01
    found = Timing(setup, "serial", clock).measure()
    work = sum(clock.batches(data, sample_clients(setup.config, 8, round)) for round in range(1, 41))
    assert found.rounds == pytest.approx(each * work)
    assert found.tests == pytest.approx(10 * 0.01 * data.test_sizes.sum())
    assert found.participants >= participants


def test_a_client_too_long_for_a_rehearsal_is_shortened(clock: FakeTime) -> None:
    data, clock.each = clients([400] * 4), BUDGET / 6
    setup = prepared("fedavg", data, **{**SETTINGS, "participation": 1.0, "engine": "serial"})
    found = Timing(setup, "serial", clock).measure()
    assert (found.participants, found.batches) == (1, 6)
    assert found.rounds == pytest.approx(5 * 4 * 40 * clock.each)
    assert clock.now < 5 * BUDGET


def test_the_last_test_is_one_of_everyone(clock: FakeTime) -> None:
    clock.test = 0.5
    setup = prepared("fedavg", clients(), **{**SETTINGS, "eval_clients": 2, "engine": "serial"})
    found = Timing(setup, "serial", clock).measure()
    assert found.end == pytest.approx(0.5 * sum(SIZES))
    assert found.tests < 5 * found.end


def test_files_are_as_large_as_said(tmp_path: Path) -> None:
    given = {**SETTINGS, "engine": "serial", "rounds": 3, "participation": 1.0}
    told = plan("ditto", clients(), out=tmp_path / "run", **given).files
    assert not (tmp_path / "run").exists()
    train("ditto", clients(), out=tmp_path / "run", **given)

    def size(pattern: str) -> int:
        return sum(path.stat().st_size for path in (tmp_path / "run").glob(pattern))

    assert told["split.json"] == size("split.json")
    assert told["clients.csv"] == pytest.approx(size("clients.csv"), rel=0.25)
    assert told["rounds.jsonl"] == pytest.approx(size("rounds.jsonl"), rel=0.1)
    assert size("checkpoint/*.safetensors") <= told["checkpoint"] <= 2 * size("checkpoint/*.safetensors")
    assert told["checkpoint/personal"] == pytest.approx(size("checkpoint/personal/*"), rel=0.5)


@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("fedavg", {"finetune_epochs": 1, "finetune": "all"}),
        ("fedavg", {"finetune_epochs": 1}),
        ("fedavg", {"server_optimizer": "adam", "server_lr": 0.01}),
        ("fedper", {"early_stopping": 3, "validation_fraction": 0.3}),
        ("fedmtl", {"options": {"omega": "learned"}}),
    ],
)
def test_what_clients_and_server_keep_is_counted(method: str, more: dict[str, Any], tmp_path: Path) -> None:
    wide = {"model_options": {"hidden": [700]}}  # so that names and settings count for little
    given = {**SETTINGS, "engine": "serial", "rounds": 3, "participation": 1.0, **wide, **more}
    told = plan(method, clients(), out=tmp_path / "run", **given).files
    train(method, clients(), out=tmp_path / "run", **given)
    files = [path for path in (tmp_path / "run" / "checkpoint").rglob("*") if path.is_file()]
    written = sum(path.stat().st_size for path in files)
    assert sum(size for name, size in told.items() if name.startswith("checkpoint")) == pytest.approx(written, rel=0.05)


def test_bytes_of_a_run_that_may_end_early_are_a_range() -> None:
    given = {**SETTINGS, "engine": "serial", "rounds": 6, "eval_every": 1, "validation_fraction": 0.3}
    in_full, ended = plan("fedavg", clients(), **given), plan("fedavg", clients(), **given, early_stopping=1)
    whole, early = in_full.sent, ended.sent
    assert whole.exact
    assert early.up == (whole.up[0] // 3, whole.up[0])  # two of six rounds at least
    assert early.down == (whole.down[0] // 3, whole.down[0])
    assert [one.to_dict()["fewest_rounds"] for one in (in_full, ended)] == [6, 2]


def test_the_time_of_a_run_that_may_end_early_is_the_most_it_takes() -> None:
    given = {**SETTINGS, "engine": "serial", "rounds": 6, "eval_every": 1, "validation_fraction": 0.3}
    told = {}
    for patience in (None, 1, 6):
        told[patience] = told_of(plan("fedavg", clients(), **given, early_stopping=patience))
    assert told[1]["rounds"].startswith("2 to 6, by early stopping, of 4 of 8 clients each")
    assert told[1]["tests"].startswith("after at most 6 rounds")
    assert told[1]["time"].startswith("at most about ")
    for patience in (None, 6):  # six rounds in any case
        assert told[patience]["rounds"].startswith("6, of 4 of 8 clients each")
        assert told[patience]["tests"].startswith("after 6 rounds")
        assert told[patience]["time"].startswith("about ")


def test_what_does_not_fit_is_told_with_what_to_change() -> None:
    setup = prepared("fedrep", clients(), **SETTINGS)
    workers = Memory(peak=400, together=1000, workers=3)
    assert advice(setup, "processes", workers, 1000, None, 10, 10) == ()
    (told,) = advice(setup, "processes", workers, 850, None, 10, 10)
    assert "--workers 2" in told
    (told,) = advice(setup, "processes", workers, 500, None, 10, 10)
    assert "--engine serial" in told
    (told,) = advice(setup, "batched", Memory(900, 900), 500, None, 10, 10)
    assert "--participation" in told
    memory, disk = advice(setup, "batched", Memory(1, 1, 0, 900), 500, 600, 11, 10)
    assert "--batch-size" in memory
    assert "--out" in disk


def test_memory_holds_what_was_met_and_what_is_kept() -> None:
    """In processes of their own: the peak is that of all that a process has done so far."""
    few = planned_peak({"model_options": {"hidden": [6]}})
    more = planned_peak({"model_options": {"hidden": [200_000]}})
    assert few > 50e6  # PyTorch alone
    assert more - few > 4 * 200_000 * 7 * 4  # four models of so many weights


def planned_peak(settings: dict[str, Any]) -> int:
    """Bytes, of one round of Ditto on 20 rows of four numbers at each of four clients."""
    program = f"""
import numpy as np
from commonground import FederatedDataset, plan
x, y = np.random.default_rng(0).standard_normal((20, 4)), np.arange(20) % 2
data = FederatedDataset.from_arrays([(x[:10], y[:10], x[10:], y[10:])] * 4)
print(plan("ditto", data, model="mlp", rounds=1, participation=0.5, engine="serial", **{settings!r}).memory.peak)
"""
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    return int(told)


def test_memory_is_not_that_of_the_process_that_started_this_one() -> None:
    """As the kernel's own count has it, which begins with the starting process's peak."""
    program = "from commonground.engine.results import peak_rss; print(peak_rss())"
    start = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {program!r}])"
    held = f"x = bytearray(b'1') * 700_000_000; del x; {start}"
    told = subprocess.run([sys.executable, "-c", held], capture_output=True, text=True, check=True).stdout
    assert 0 < int(told) < 600_000_000


def test_a_plan_is_shown_in_one_line() -> None:
    planned = plan("fedrep", clients(), **{**SETTINGS, "rounds": 3, "engine": "serial"})
    assert "\n" not in repr(planned)
    assert repr(planned).startswith(f"<Plan fedrep on {clients().name}, 3 rounds: ")
    assert f"{planned.sent.up[0] / 1e6:.1f} MB sent by clients" in repr(planned)


@pytest.mark.parametrize("number", [4, 6, 10])
@pytest.mark.parametrize("more", [{}, {"weighting": "samples"}, {"options": {"first": "lora_A", "head": "shared"}}])
def test_a_mean_of_equal_tensors_may_be_another_one(number: int, more: dict[str, Any]) -> None:
    """Under 1/3 it differs in the last digit, and clients are sent it again."""
    given = {**SETTINGS, "options": {"first": "lora_A"}, "engine": "serial", **more}
    data = clients(range(3, 3 + number))
    sent = plan("rolora", data, **given).sent
    run = train("rolora", data, **given)
    assert sent.exact
    assert (sent.up[0], sent.down[0]) == (run.summary["bytes_up"], run.summary["bytes_down"])

"""Devices and precision as a run's settings, as far as a CPU shows them."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest
import torch

from commonground import train
from commonground.devices import resolve_device
from commonground.engine.backends.batched import BatchedEngine
from commonground.engine.backends.factory import choose_engine, make_engine
from commonground.engine.clients.stacked import StackedClients
from commonground.engine.evaluation import evaluate_block
from commonground.engine.prepare import prepare_setup
from commonground.engine.scores import Scores
from commonground.errors import ConfigError, RunError
from commonground.models import MLP, ConvNet
from tests.devices.test_no_waiting import setup_of
from tests.helpers import EXACT, Dropping, TwoLayer, images, made_data, normed, seeded, suited

NO_GPU = not torch.cuda.is_available()


@pytest.mark.skipif(not NO_GPU, reason="there is a GPU")
def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="the device is 'cuda:1', but PyTorch sees no CUDA GPU here"):
        train("fedavg", made_data(), model=seeded(TwoLayer), device="cuda:1")
    assert resolve_device("auto") == torch.device("cpu")


def test_tf32_is_of_cuda_alone() -> None:
    with pytest.raises(ConfigError, match="tf32"):
        train("fedavg", made_data(), model=seeded(TwoLayer), device="cpu", precision="tf32")


def test_the_summary_names_device_precision_and_threads() -> None:
    run = train("fedavg", made_data(), model=seeded(TwoLayer), device="cpu", rounds=1)
    assert (run.summary["device"], run.summary["precision"], run.summary["threads"]) == ("cpu", "fp32", 1)


# -- bf16 -----------------------------------------------------------------------------------------------------------


def _bf16(engine: str, method: str = "fedrep", **more: Any) -> Any:
    net = seeded(ConvNet, (2, 16, 16), 3, channels=(8, 8), hidden=(16, 8))
    settings: dict[str, Any] = {
        "rounds": 3,
        "batch_size": 4,
        "lr": 0.05,
        "workers": 2,
        "precision": "bf16",
        "device": "cpu",
    }
    return train(method, images(), model=net, engine=engine, **settings | more)


@pytest.mark.parametrize("method", ["fedrep", "fedavg", "flute", "scaffold", "perfedavg"])
def test_bf16_computes_in_bf16_and_keeps_fp32(method: str) -> None:
    half, full = _bf16("serial", method), _bf16("serial", method, precision="fp32")
    assert {value.dtype for value in half.shared.values() if value.is_floating_point()} == {torch.float32}
    one, other = (torch.cat([v.flatten() for v in run.shared.values()]) for run in (half, full))
    change = (one - other).norm() / other.norm()
    assert 0 < change < 0.05  # another rounding, not another method


@pytest.mark.parametrize("engine", EXACT)
def test_bf16_is_equal_bit_for_bit_where_fp32_is(engine: str) -> None:
    assert _bf16(engine).summary["weights_sha256"] == _bf16("serial").summary["weights_sha256"]


def test_bf16_stacked_is_near() -> None:
    one, other = (_bf16(engine) for engine in ("serial", "batched"))
    for name, value in one.shared.items():
        np.testing.assert_allclose(other.shared[name].numpy(), value.numpy(), atol=0.02)


def test_the_forward_pass_sees_bf16() -> None:
    seen = set()

    class Watching(TwoLayer):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = self.first(x)
            seen.add(hidden.dtype)
            return self.head(torch.tanh(hidden))

    train("fedavg", made_data(dtype=np.float32), model=seeded(Watching), engine="serial", rounds=1, precision="bf16")
    # Single and double precision are those of the trials: whether the model fits the data, and whether it joins rows.
    assert seen == {torch.float32, torch.float64, torch.bfloat16}


# -- which engine ---------------------------------------------------------------------------------------------------


@pytest.fixture
def on_meta(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("build", "setup"):
        monkeypatch.setattr(f"commonground.engine.{module}.resolve_device", lambda text: torch.device("meta"))


@pytest.mark.usefixtures("on_meta")
def test_an_accelerator_stacks_all_that_stacks() -> None:
    net = seeded(ConvNet, (2, 16, 16), 3, channels=(3, 4), hidden=(6, 5))
    assert choose_engine(setup_of("fedrep", images(), net)) == "batched"
    assert choose_engine(setup_of("fedrep", made_data(), seeded(Dropping))) == "batched"
    assert choose_engine(setup_of("fedrep", made_data((5, 3, 8, 2)), normed())) == "batched"
    odd = setup_of("fedrep", made_data((5, 3, 8, 2)), normed(momentum=None))
    assert choose_engine(odd) == "serial"
    assert make_engine("auto", odd).remark == (
        "clients are computed one after the other on meta: the engine 'batched' cannot stack the BatchNorm layer '1', "
        "whose statistics are averages over all batches (momentum=None)"
    )
    assert not make_engine("serial", odd).remark  # as asked for


@pytest.mark.usefixtures("on_meta")
def test_processes_are_refused_there() -> None:
    with pytest.raises(ConfigError, match=r"processes.*take batched"):
        make_engine("processes", setup_of("fedrep", made_data(), seeded(TwoLayer)))


# -- memory ---------------------------------------------------------------------------------------------------------


def _full_at(monkeypatch: pytest.MonkeyPatch, most: int) -> list[int]:
    """Let a cohort of more than ``most`` clients run out of memory; returns the sizes that were tried."""
    begin, tried = StackedClients.begin, []

    def limited(self: StackedClients, round: int, clients: Any, *args: Any, **more: Any) -> None:
        tried.append(len(clients))
        if len(clients) > most:
            raise torch.OutOfMemoryError("out of memory")
        begin(self, round, clients, *args, **more)

    monkeypatch.setattr(StackedClients, "begin", limited)
    return tried


def test_out_of_memory_halves_the_cohort_says_so_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    data = made_data((5, 3, 8, 2, 4, 6, 7), dtype=np.float64)
    make = lambda: train(  # noqa: E731
        "fedrep",
        data,
        model=seeded(MLP, (4,), 3, hidden=[6]),
        engine="batched",
        rounds=2,
        dtype="float64",
        observer=Notes(),
    )
    notes: list[str] = []

    class Notes:
        def begin(self, *args: Any) -> None: ...
        def round(self, *args: Any) -> None: ...
        def end(self) -> None: ...
        def note(self, text: str) -> None:
            notes.append(text)

    plain = make()
    tried = _full_at(monkeypatch, 2)
    halved = make()
    assert max(tried) == 7
    assert any("7 clients at once do not fit" in note for note in notes)
    for name, value in plain.shared.items():
        torch.testing.assert_close(halved.shared[name], value, rtol=1e-9, atol=1e-12)


def test_later_rounds_begin_with_what_fitted(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = setup_of("fedavg", made_data([4] * 20), seeded(TwoLayer))
    engine = BatchedEngine(setup)
    tried = _full_at(monkeypatch, 6)
    engine.train(1, range(20), setup.initial_shared)
    assert tried == [20, 10, 5, 5, 5, 5]  # nothing is tried again that did not fit
    tried.clear()
    engine.train(2, range(20), setup.initial_shared)
    assert tried == [5, 5, 5, 5]


def test_a_cohort_that_did_not_fit_is_let_go_of(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = setup_of("fedavg", made_data([4] * 6), seeded(TwoLayer))
    engine = BatchedEngine(setup)
    first = weakref.ref(engine._cohort)
    _full_at(monkeypatch, 3)
    engine.train(1, range(6), setup.initial_shared)
    assert first() is None


@pytest.mark.parametrize("method", ["fedrep", "perfedavg"])  # the second trains before its tests
def test_tests_that_do_not_fit_go_on_with_fewer_clients(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    setup = setup_of(method, made_data([4] * 12), suited(method, seeded(TwoLayer)))
    engine, tried = BatchedEngine(setup), list[int]()
    whole = engine.evaluate(range(12), setup.initial_shared)
    evaluate = evaluate_block

    def limited(setup: Any, clients: Any, *args: Any, **more: Any) -> Scores:
        tried.append(len(clients))
        if len(clients) > 3:
            raise torch.OutOfMemoryError("out of memory")
        return evaluate(setup, clients, *args, **more)

    monkeypatch.setattr("commonground.engine.backends.batched.evaluate_block", limited)
    for again in (0, 1):
        tried.clear()
        parts = engine.evaluate(range(12), setup.initial_shared)
        assert tried == [3, 3, 3, 3] if again else tried == [12, 6, 3, 3, 3, 3]
        np.testing.assert_allclose(parts.loss, whole.loss, rtol=1e-6)
        assert (parts.sums["accuracy"] == whole.sums["accuracy"]).all()
    monkeypatch.setattr("commonground.engine.backends.batched.evaluate_block", lambda *_, **__: _out_of_memory())
    with pytest.raises(RunError, match="client 0 alone needs more memory than cpu has"):
        engine.evaluate(range(12), setup.initial_shared)


def _out_of_memory() -> Scores:
    raise torch.OutOfMemoryError("out of memory")


def test_a_client_that_does_not_fit_alone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    _full_at(monkeypatch, 0)
    with pytest.raises(RunError, match="client 0 alone needs more memory than cpu has"):
        train("fedrep", made_data(), model=seeded(TwoLayer), engine="batched", rounds=1)


def test_data_that_do_not_fit_are_moved_by_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a data set that is not resident are the same as those of one that is."""
    for module in ("build", "setup"):
        monkeypatch.setattr(f"commonground.engine.{module}.resolve_device", lambda text: torch.device("meta"))
    setup = prepare_setup(setup_of("fedavg", images(), seeded(ConvNet, (2, 16, 16), 3)).config, images(),
                          seeded(ConvNet, (2, 16, 16), 3))  # fmt: skip
    assert setup.inputs._kept(True) is not None
    monkeypatch.setattr("commonground.data.model_inputs._room", lambda device: 0)
    fresh = setup_of("fedavg", images(), seeded(ConvNet, (2, 16, 16), 3))
    assert fresh.inputs._kept(True) is None
    assert isinstance(make_engine("batched", fresh), BatchedEngine)
    rows, y = fresh.inputs.rows("train", np.array([3, 1]))
    assert rows["x"].shape == (2, 16, 16, 2)
    assert (rows["x"].device.type, y.device.type) == ("meta", "meta")

"""Statistics of BatchNorm layers: averaged with the model, or kept by each client (``--batch-norm``)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from commonground import FederatedDataset, train
from commonground.adapt.few_shot import adapt
from commonground.algorithms import Tensors, Update, registry
from commonground.algorithms.fedrod import FedRoD
from commonground.engine.backends.base import Engine
from commonground.engine.backends.checks import validate_update
from commonground.engine.backends.client_result import ClientResult
from commonground.engine.backends.messages import MessageEngine
from commonground.engine.client_tensors import client_model
from commonground.engine.run import load_run
from commonground.engine.state.folder import RunFolder
from commonground.errors import ConfigError, RunError, UpdateError
from commonground.models import Groups
from commonground.report import write_run_report
from tests.helpers import (
    SMALL,
    TwoLayer,
    Whole,
    assert_tensors_close,
    engines_changed,
    made_data,
    normed,
    rows_without_time,
    seeded,
    train_whole,
)

STATISTICS = ("1.running_mean", "1.running_var")
BYTES = 2 * 6 * 4  # of both, with six channels in float32
TWO_MODELS = ("apfl", "ditto")
LORA = ("ffa-lora", "flexlora", "flora", "lora", "rolora")
WORKING = sorted(set(registry) - {*TWO_MODELS, *LORA})

RESNET: dict[str, Any] = {
    "model": "resnet18",
    "model_options": {"stem": "cifar", "width": 2, "blocks": [1, 1]},
}


def go(algorithm: Any, batch_norm: str = "local", data: FederatedDataset | None = None, **settings: Any) -> Whole:
    settings = {"model": seeded(normed), "rounds": 2, "batch_norm": batch_norm} | settings
    return train_whole(algorithm, data or made_data((6, 4, 8, 2)), **settings)


def statistics_by_hand(start: Tensors, weights: Mapping[str, Tensor], x: Tensor) -> Tensors:
    """One batch: r ← 0.9 r + 0.1 s with s the mean and the unbiased variance of what the layer sees."""
    seen = F.linear(x, weights["0.weight"], weights["0.bias"])
    return {
        STATISTICS[0]: 0.9 * start[STATISTICS[0]] + 0.1 * seen.mean(0),
        STATISTICS[1]: 0.9 * start[STATISTICS[1]] + 0.1 * seen.var(0, unbiased=True),
    }


def samples(data: FederatedDataset, client: int, part: str = "train") -> tuple[Tensor, Tensor]:
    train_part = part == "train"
    rows = data.train_indices(client) if train_part else data.test_indices(client)
    x, y = (data.x_train, data.y_train) if train_part else (data.x_test, data.y_test)
    return torch.from_numpy(x[rows]), torch.from_numpy(y[rows])


# -- what becomes of them -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_averaged_by_hand(weighting: str) -> None:
    """Two clients with one batch each: the global statistics are the mean of theirs."""
    data = made_data((6, 3))
    whole = go("fedavg", "averaged", data, rounds=1, batch_size=6, dtype="float64", weighting=weighting)
    start = {n: v.double() for n, v in seeded(normed).state_dict().items()}
    one, other = (statistics_by_hand(start, start, samples(data, c)[0]) for c in range(2))
    share = 2 / 3 if weighting == "samples" else 1 / 2
    for name in STATISTICS:
        torch.testing.assert_close(
            whole.run.shared[name], share * one[name] + (1 - share) * other[name], rtol=0, atol=1e-12
        )
        assert not torch.allclose(one[name], other[name])
    assert whole.personal == [{}, {}]


@pytest.mark.parametrize("engine", ["serial", "messages"])
def test_fedsgd_by_hand(engine: str) -> None:
    """One pass over all its data is what a client's statistics see, and they are averaged as gradients are."""
    data = made_data((6, 3))
    whole = go("fedsgd", "averaged", data, rounds=1, dtype="float64", weighting="samples", lr=0.3, engine=engine)
    start = {n: v.double() for n, v in seeded(normed).state_dict().items()}
    wanted = dict.fromkeys(STATISTICS, torch.zeros(()))
    gradient = torch.zeros(())
    for client, share in ((0, 2 / 3), (1, 1 / 3)):
        x, y = samples(data, client)
        seen = statistics_by_hand(start, start, x)
        wanted = {name: wanted[name] + share * seen[name] for name in STATISTICS}
        model = seeded(normed).double()
        (own,) = torch.autograd.grad(F.cross_entropy(model(x), y), [model.get_parameter("0.weight")])
        gradient = gradient + share * own
    for name in STATISTICS:
        torch.testing.assert_close(whole.run.shared[name], wanted[name], rtol=0, atol=1e-12)
        assert not torch.allclose(start[name], wanted[name])
    torch.testing.assert_close(whole.run.shared["0.weight"], start["0.weight"] - 0.3 * gradient, rtol=0, atol=1e-12)


def test_local_by_hand() -> None:
    """Each client goes on from its own statistics, whatever weights it is sent."""
    data = made_data((6, 3))
    settings: dict[str, Any] = {"batch_size": 6, "dtype": "float64"}
    first, second = (go("fedavg", "local", data, rounds=rounds, **settings) for rounds in (1, 2))
    start = {n: v.double() for n, v in seeded(normed).state_dict().items()}
    for client in range(2):
        x = samples(data, client)[0]
        after_one = statistics_by_hand(start, start, x)
        assert_tensors_close(first.personal[client], after_one, 1e-12)
        assert_tensors_close(second.personal[client], statistics_by_hand(after_one, first.run.shared, x), 1e-12)
    assert set(second.run.shared) == set(Groups(normed()).trainable("all"))


def test_statistics_do_not_touch_what_is_trained() -> None:
    """In training a batch is normalised by itself, so that the weights are the same under both settings."""
    averaged, local = (go("fedavg", kind) for kind in ("averaged", "local"))
    trained = {n: v for n, v in averaged.run.shared.items() if n not in STATISTICS}
    assert_tensors_close(local.run.shared, trained, 0.0)
    assert local.losses == averaged.losses
    assert local.sha != averaged.sha


def test_without_sharing_both_settings_are_one() -> None:
    """Local Only shares nothing, so its statistics are its own anyway."""
    averaged, local = (go("local", kind) for kind in ("averaged", "local"))
    assert local.sha == averaged.sha
    assert rows_without_time(local.run.history) == rows_without_time(averaged.run.history)
    assert local.run.summary["personal_accuracy_of"] == averaged.run.summary["personal_accuracy_of"]


def test_a_client_that_never_took_part_has_the_initial_ones() -> None:
    whole = go("fedavg", participation=0.25, rounds=1)
    took_part = [client["rounds"] > 0 for client in whole.run.clients]
    assert sum(took_part) == 1
    for own, was_there in zip(whole.personal, took_part, strict=True):
        assert torch.equal(own[STATISTICS[0]], torch.zeros(6)) is not was_there
        assert torch.equal(own[STATISTICS[1]], torch.ones(6)) is not was_there


def test_fedrep() -> None:
    """The body travels without its statistics; heads and statistics are the clients' own."""
    whole = go("fedrep", options={"head_epochs": 2})
    assert set(whole.run.shared) == {"0.weight", "0.bias", "1.weight", "1.bias"}
    assert all(set(own) == {*STATISTICS, "3.weight", "3.bias"} for own in whole.personal)
    head_alone = go("fedrep", options={"head_epochs": 2, "body_epochs": 0})
    for own in head_alone.personal:  # a frozen body keeps its statistics
        assert torch.equal(own[STATISTICS[0]], torch.zeros(6))


def test_a_head_with_statistics_is_still_the_head() -> None:
    """Methods that look at the head's input find it, and it is what they see with averaged statistics."""

    class NormedHead(nn.Module):
        groups = {"head": ["top"]}  # noqa: RUF012

        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 5)
            self.top = nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 3))

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.top(torch.tanh(self.first(x)))
            return out

    found: list[Any] = []
    for kind in ("averaged", "local"):
        with engines_changed(lambda engine: found.append(engine.setup)):
            go("fedper", kind, model=seeded(NormedHead), rounds=1)
    assert all(setup.head_module is setup.model.top for setup in found)
    assert found[1].personal_names == found[0].personal_names  # the head's statistics are personal in either case


# -- what is tested -------------------------------------------------------------------------------------------------


def loss_by_hand(data: FederatedDataset, model: nn.Module, shared: Tensors, own: Tensors, client: int) -> float:
    x, y = samples(data, client, "test")
    prefix = "own/"
    copy = {name.removeprefix(prefix): value for name, value in own.items() if name.startswith(prefix)}
    rest = {name: value for name, value in own.items() if "/" not in name}
    tensors = {**{n: v for n, v in shared.items() if "/" not in n}, **copy, **rest}
    with torch.no_grad():
        logits = functional_call(model.double().eval(), tensors, (x,))
    return float(F.cross_entropy(logits, y))


@pytest.mark.parametrize("engine", ["serial", "messages"])
@pytest.mark.parametrize("algorithm", ["fedavg", "fedrep", "l2gd", "fedmtl", "scaffold"])
def test_every_client_is_tested_with_its_own(algorithm: str, engine: str) -> None:
    data = made_data((6, 4, 8, 2), test=5)
    whole = go(algorithm, data=data, dtype="float64", engine=engine)
    losses = [client["test_loss"] for client in whole.run.clients]
    args = data, seeded(normed), whole.run.shared
    wanted = [loss_by_hand(*args, whole.personal[c], c) for c in range(4)]
    np.testing.assert_allclose(losses, wanted, rtol=0, atol=1e-12)
    swapped = {n: whole.personal[1][n] for n in STATISTICS}
    assert loss_by_hand(*args, {**whole.personal[0], **swapped}, 0) != pytest.approx(wanted[0])
    assert whole.run.global_accuracy is None
    assert all(row["global_accuracy"] is None for row in whole.run.history)


def test_the_summary_says_so() -> None:
    averaged, local = (go("fedavg", kind).run.summary for kind in ("averaged", "local"))
    assert averaged["batch_norm"] == "averaged"
    assert "the global model" in averaged["personal_accuracy_of"]
    assert local["batch_norm"] == "local"
    assert "the shared parameters with each client's own BatchNorm statistics" in local["personal_accuracy_of"]
    assert "initial ones if it never took part" in local["personal_accuracy_of"]
    assert "there is no global model" in local["personal_accuracy_of"]
    for algorithm in ("fedrep", "fedbabu", "l2gd"):
        text = go(algorithm).run.summary["personal_accuracy_of"]
        assert "with each client's own BatchNorm statistics" in text
        assert text != go(algorithm, "averaged").run.summary["personal_accuracy_of"]
    # Whether the setting keeps them with the clients or the method does.
    assert [go(name, "averaged").run.summary["batch_norm"] for name in ("fedbn", "local")] == ["local", "local"]
    plain = train("fedavg", made_data(), model=seeded(TwoLayer), **SMALL).summary
    assert "batch_norm" not in plain


def test_a_method_that_scales_what_is_personal_leaves_statistics_alone() -> None:
    """FedRoD's generic model is the personal head times zero."""
    groups = Groups(normed(), local_statistics=True)
    own = {"3.personal.weight": torch.ones(2), STATISTICS[0]: torch.ones(6), STATISTICS[1]: torch.ones(6)}
    model = client_model(groups, FedRoD(evaluate="generic"), {}, own)
    assert float(model["3.personal.weight"].sum()) == 0.0
    assert float(model[STATISTICS[1]].sum()) == 6.0


def test_metrics() -> None:
    """Figures of the participants' own models are there; a body without statistics has no outputs to compare."""
    row = go("fedavg", metrics="full").run.history[-1]
    assert 0 <= row["after_local_accuracy"] <= 1
    assert row["before_local_accuracy"] == go("fedavg").run.history[0]["personal_accuracy"]
    assert row["body_angle_max"] is None
    # Nothing is averaged here, so that a client's model after the round is the one it trained.
    alone = go("l2gd", data=made_data((40, 40), test=40), options={"p": 1e-6}, metrics="full").run.history
    assert [row["after_local_accuracy"] for row in alone] == [row["personal_accuracy"] for row in alone]
    averaged = go("fedavg", "averaged", made_data((40, 40), test=40), metrics="full")
    assert averaged.run.history[-1]["body_angle_max"] is not None


# -- engines, messages, bytes ---------------------------------------------------------------------------------------


@pytest.mark.engine
@pytest.mark.parametrize("algorithm", WORKING)
def test_the_same_numbers_in_every_engine(algorithm: str) -> None:
    engines = ("messages", "processes") if algorithm in ("fedavg", "fedrep", "fedbabu") else ("messages",)
    serial = go(algorithm, participation=0.75 if algorithm != "one-shot" else 1.0)
    assert all(set(STATISTICS) <= set(own) for own in serial.personal)
    assert not set(STATISTICS) & set(serial.run.shared)
    for engine in engines:
        other = go(algorithm, participation=serial.run.config.participation, engine=engine)
        assert other.sha == serial.sha
        assert rows_without_time(other.run.history) == rows_without_time(serial.run.history)
        assert [c["personal_accuracy"] for c in other.run.clients] == [
            c["personal_accuracy"] for c in serial.run.clients
        ]


class Listener:
    """Hears every message of a run."""

    def __init__(self) -> None:
        self.everything: list[bytes] = []
        self.up: list[bytes] = []

    def __call__(self, engine: Engine) -> None:
        assert isinstance(engine, MessageEngine)
        deliver = engine.deliver

        def heard(client: int, message: bytes) -> bytes:
            answer = deliver(client, message)
            self.everything += [message, answer]
            self.up.append(answer)
            return answer

        engine.deliver = heard


@pytest.mark.parametrize("algorithm", ["fedavg", "fedrep", "scaffold", "flute", "l2gd", "fedmtl"])
def test_no_statistic_travels(algorithm: str) -> None:
    listener = Listener()
    with engines_changed(listener):
        whole = go(algorithm, engine="messages", participation=0.5)
    together = b"|".join(listener.everything)
    assert b"running_mean" not in together
    assert b"running_var" not in together
    for own in whole.personal:
        for name in STATISTICS:
            if not torch.equal(own[name], whole.initial[name]):
                assert own[name].numpy().tobytes() not in together
    averaged = Listener()
    with engines_changed(averaged):
        go(algorithm, "averaged", engine="messages", participation=0.5)
    assert b"running_mean" in b"|".join(averaged.everything)  # it would have been found


@pytest.mark.parametrize("engine", ["serial", "messages"])
def test_bytes(engine: str) -> None:
    """Both directions are lighter by the statistics: two vectors of six channels for each participant."""
    averaged, local = (go("fedavg", kind, engine=engine, participation=0.5).run for kind in ("averaged", "local"))
    for with_them, without in zip(averaged.history, local.history, strict=True):
        assert with_them["bytes_up"] - without["bytes_up"] == 2 * BYTES
        assert with_them["bytes_down"] - without["bytes_down"] == 2 * BYTES


def test_an_update_that_holds_them_is_refused() -> None:
    found: list[Engine] = []
    with engines_changed(found.append):
        whole = go("fedavg")
    sent = whole.run.shared
    setup = found[0].setup
    validate_update(setup, ClientResult(Update(0, 6, dict(sent)), 0.5), 1)  # the update needs no statistics
    with pytest.raises(UpdateError, match=r"holds the tensor '1\.running_mean', which this algorithm does not send"):
        validate_update(setup, ClientResult(Update(0, 6, sent | {STATISTICS[0]: torch.zeros(6)}), 0.5), 1)


# -- folders --------------------------------------------------------------------------------------------------------


class _StopAfter:
    """An observer that fails after a round."""

    def __init__(self, round: int) -> None:
        self.stop_at = round

    def begin(self, setup: Any, engine: str, done: int) -> None: ...

    def round(self, row: Mapping[str, Any]) -> None:
        if row["round"] == self.stop_at:
            raise ValueError("the display broke")

    def note(self, text: str) -> None: ...

    def end(self) -> None: ...


@pytest.mark.parametrize("engine", ["serial", "processes", "messages"])
def test_resume(engine: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"engine": engine, "rounds": 4, "participation": 0.5}
    whole = go("fedrep", **settings)
    with pytest.raises(ValueError, match="display"):
        go("fedrep", **settings, out=tmp_path, observer=_StopAfter(2))
    with pytest.raises(RunError, match="was started with batch_norm = 'local', not 'averaged'"):
        go("fedrep", "averaged", **settings, out=tmp_path, resume=True)
    again = go("fedrep", **settings, out=tmp_path, resume=True)
    assert again.sha == whole.sha
    assert rows_without_time(again.run.history) == rows_without_time(whole.run.history)
    for mine, theirs in zip(again.personal, whole.personal, strict=True):
        assert_tensors_close(mine, theirs, 0.0)


def images(test: int = 4) -> FederatedDataset:
    return made_data((6, 4, 8), (8, 8, 2), dtype=np.float32, test=test)


@pytest.mark.parametrize("engine", ["serial", "messages"])
def test_a_folder_gives_each_client_its_model(engine: str, tmp_path: Path) -> None:
    data = images()
    whole = go("fedavg", data=data, **RESNET, engine=engine, out=tmp_path)
    run = load_run(tmp_path)
    statistics = run.trained.groups.local_statistics
    assert len(statistics) == 2 * 6
    for client in range(3):
        rows = data.test_indices(client)
        probabilities = torch.from_numpy(run.predict(data.x_test[rows], client))
        loss = F.nll_loss(probabilities.log(), torch.from_numpy(data.y_test[rows]))
        assert float(loss) == pytest.approx(whole.run.clients[client]["test_loss"], abs=1e-6)
        own = {name: run.model(client).get_buffer(name) for name in statistics}
        assert_tensors_close(own, whole.personal[client], 0.0)
    with pytest.raises(ConfigError, match="FedAvg with BatchNorm statistics of the clients' own has no global model"):
        run.model(None)
    mean = {n: torch.stack([own[n] for own in whole.personal]).mean(0) for n in statistics}
    assert_tensors_close({n: v for n, v in run.trained.body().items() if n in statistics}, mean, 0.0)
    write_run_report(tmp_path)
    assert "own BatchNorm statistics" in (tmp_path / "report.html").read_text("utf-8")


def test_new_clients_get_the_mean_statistics(tmp_path: Path) -> None:
    """A head is fitted on the body with the clients' mean statistics; there is no global model to tune."""
    go("fedavg", data=images(), **RESNET, out=tmp_path)
    results = adapt(load_run(tmp_path), made_data((4, 4), (8, 8, 2), dtype=np.float32, seed=9), [2], epochs=2,
                    repeats=1)  # fmt: skip
    assert {r.method for r in results} == {"frozen body", "local only"}
    go("fedavg", "averaged", data=images(), **RESNET, out=tmp_path / "averaged")
    averaged = adapt(load_run(tmp_path / "averaged"), made_data((4, 4), (8, 8, 2), dtype=np.float32, seed=9), [2],
                     epochs=2, repeats=1)  # fmt: skip
    assert "global + FT" in {r.method for r in averaged}


def test_folders_from_before_the_setting_are_read(tmp_path: Path) -> None:
    settings: dict[str, Any] = {**RESNET, "data": images(), "rounds": 3}
    with pytest.raises(ValueError, match="display"):
        go("fedavg", "averaged", **settings, out=tmp_path, observer=_StopAfter(1))
    path = tmp_path / "config.toml"
    lines = path.read_text().splitlines(keepends=True)
    assert any("batch_norm" in line for line in lines)
    path.write_text("".join(line for line in lines if "batch_norm" not in line))
    assert RunFolder(tmp_path).config().batch_norm == "averaged"
    assert load_run(tmp_path).trained.groups.local_statistics == ()
    again = go("fedavg", "averaged", **settings, out=tmp_path, resume=True)
    assert again.sha == go("fedavg", "averaged", **settings).sha


# -- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", TWO_MODELS)
def test_methods_with_two_models_at_a_client_refuse(algorithm: str) -> None:
    with pytest.raises(ConfigError, match="trains two models at each client, and --batch-norm local keeps one set"):
        go(algorithm)
    assert go(algorithm, "averaged").run.summary["batch_norm"] == "averaged"


@pytest.mark.parametrize(
    "model", [seeded(TwoLayer), nn.Sequential(nn.Linear(4, 4), nn.GroupNorm(2, 4), nn.Linear(4, 3))]
)
def test_a_model_without_statistics_refuses(model: nn.Module) -> None:
    with pytest.raises(ConfigError, match=r"--batch-norm local keeps .* has none that change"):
        go("fedavg", model=model)


def test_frozen_statistics_are_none_that_change() -> None:
    """Under LoRA factors all of the model is constant, its statistics too."""
    with pytest.raises(ConfigError, match="has none that change"):
        go("lora")


def test_fine_tuning_needs_a_global_model() -> None:
    with pytest.raises(ConfigError, match="--finetune-epochs 3 needs one global model, and with --batch-norm local"):
        go("fedavg", finetune_epochs=3)
    assert go("fedavg", "averaged", finetune_epochs=3).run.summary["batch_norm"] == "averaged"


def test_the_setting_itself() -> None:
    with pytest.raises(ConfigError, match="'batch_norm' is 'kept'"):
        go("fedavg", "kept")


def test_a_layer_without_weights_learns_its_statistics_too() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, affine=False), nn.Linear(3, 3))
    data = made_data((6, 6))
    after = train("fedavg", data, model=model, rounds=1, engine="serial").shared
    assert float(after["1.running_mean"].abs().max()) > 0
    model = nn.Sequential(nn.BatchNorm1d(4, affine=False), nn.Linear(4, 3), nn.BatchNorm1d(3, affine=False),
                          nn.Linear(3, 3))  # fmt: skip
    frozen = train("fedrep", data, model=model, rounds=1, engine="serial", options={"body_epochs": 0}).shared
    assert float(frozen["0.running_mean"].abs().max()) == 0  # the head's epochs leave the body's alone

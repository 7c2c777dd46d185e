"""Invariant 6: an update that is not finite, incomplete or of the wrong shape names client and round, and nothing of
its round reaches the shared weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from commonground import FederatedDataset, train
from commonground.algorithms import Algorithm, Client, Tensors
from commonground.algorithms.fedavg import FedAvg
from commonground.algorithms.fedrep import FedRep
from commonground.engine.backends.base import Engine
from commonground.engine.backends.messages import MessageEngine
from commonground.engine.backends.serialization import pack, unpack
from commonground.engine.state.folder import RunFolder
from commonground.errors import UpdateError
from tests.helpers import (
    ENGINES,
    SMALL,
    TwoLayer,
    assert_tensors_close,
    engines_changed,
    made_data,
    own,
    seeded,
    train_whole,
)

NAMES = ("ann", "bob", "cid", "dan")


def named_data() -> FederatedDataset:
    return made_data(client_names=NAMES)


def fails_in_round_2(algorithm: Algorithm, folder: Path, engine: str, match: str, **settings: Any) -> None:
    """The run ends with an UpdateError; its checkpoint holds the round before, as a run of one round would."""
    values = SMALL | {"engine": engine, "dtype": "float64"} | settings
    with pytest.raises(UpdateError, match=match) as caught:
        train(algorithm, named_data(), model=seeded(TwoLayer), out=folder, **values)
    assert "\n" not in str(caught.value)
    assert_holds_round_1(folder, algorithm.name, values)


def assert_holds_round_1(folder: Path, name: str, values: dict[str, Any]) -> None:
    run = RunFolder(folder)
    checkpoint = run.load()
    assert checkpoint is not None
    assert checkpoint.round == 1
    assert [row["round"] for row in run.rounds.rows()] == [1]
    assert run.summary() is None
    plain = "fedrep" if name in ("sendsall",) else "fedavg"
    good = train_whole(
        plain, named_data(), model=seeded(TwoLayer), **(values | {"rounds": 1, "lr_schedule": "constant"})
    )
    assert_tensors_close(checkpoint.shared, good.run.shared, 0.0)


@dataclass(frozen=True)
class Sending(FedAvg):
    """FedAvg whose second message is spoilt."""

    def client_update(self, client: Client, round: int) -> Tensors:
        sent = super().client_update(client, round)
        return self.spoil(sent) if round == 2 else sent

    def spoil(self, sent: Tensors) -> Tensors:
        raise NotImplementedError


@own
class SendsNaN(Sending):
    def spoil(self, sent: Tensors) -> Tensors:
        return sent | {"first.bias": sent["first.bias"] * float("nan")}


@own
class SendsInfinity(Sending):
    def spoil(self, sent: Tensors) -> Tensors:
        return sent | {"head.weight": sent["head.weight"] / 0.0}


@own
class SendsLess(Sending):
    def spoil(self, sent: Tensors) -> Tensors:
        return {n: t for n, t in sent.items() if n != "head.bias"}


@own
class SendsShorter(Sending):
    def spoil(self, sent: Tensors) -> Tensors:
        return sent | {"first.bias": sent["first.bias"][..., :-1]}


@own
class SendsMore(Sending):
    def spoil(self, sent: Tensors) -> Tensors:
        return sent | {"secret": sent["first.bias"]}


@own
class SendsNothing(Sending):
    def spoil(self, sent: Tensors) -> Tensors:
        return {}


SPOILT: list[tuple[Any, str]] = [
    (SendsNaN, "'first.bias' that is not finite.*lr"),
    (SendsInfinity, "'head.weight' that is not finite.*lr"),
    (SendsLess, "lacks the tensor 'head.bias'"),
    (SendsShorter, r"'first.bias' of shape \(4,\) instead of \(5,\)"),
    (SendsMore, "holds the tensor 'secret'"),
    (SendsNothing, "lacks the tensor"),
]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("algorithm", "match"), SPOILT, ids=lambda v: getattr(v, "name", ""))
def test_spoilt_update(algorithm: Any, match: str, engine: str, tmp_path: Path) -> None:
    fails_in_round_2(algorithm(), tmp_path / "run", engine, f"client ann in round 2.*{match}")


@own
class SendsAll(FedRep):
    """FedRep that gives away its head."""

    def client_update(self, client: Client, round: int) -> Tensors:
        sent = super().client_update(client, round)
        return sent if round == 1 else sent | client.send("head")


@pytest.mark.parametrize("engine", ENGINES)
def test_a_personal_tensor_in_an_update_is_refused(engine: str, tmp_path: Path) -> None:
    fails_in_round_2(SendsAll(), tmp_path / "run", engine, "client ann in round 2 holds the tensor 'head")


Tamper = Callable[[dict[str, Any], Tensors], bytes]


def tampering(client: int, round: int, change: Tamper) -> Callable[[Engine], None]:
    """Change one client's answer in one round, as a faulty machine elsewhere would."""

    def change_engine(engine: Engine) -> None:
        assert isinstance(engine, MessageEngine)
        deliver = engine.deliver

        def between(number: int, message: bytes) -> bytes:
            asked, answer = unpack(message)[0], deliver(number, message)
            hit = asked["kind"] == "train" and number == client and asked["round"] == round
            return change(*unpack(answer)) if hit else answer

        engine.deliver = between

    return change_engine


def _with(**fields: Any) -> Tamper:
    return lambda old, tensors: pack(old | fields, tensors)


def _without(field: str) -> Tamper:
    return lambda old, tensors: pack({k: v for k, v in old.items() if k != field}, tensors)


TAMPERED: dict[str, Tamper] = {
    "NaN": lambda f, t: pack(f, t | {"head.bias": t["head.bias"].fill_(float("nan"))}),
    "one infinite value": lambda f, t: pack(f, t | {"head.bias": torch.tensor([0.0, float("inf"), 0.0]).double()}),
    "transposed": lambda f, t: pack(f, t | {"head.weight": t["head.weight"].T}),
    "missing": lambda f, t: pack(f, {n: v for n, v in t.items() if n != "first.weight"}),
    "additional": lambda f, t: pack(f, t | {"more": t["head.bias"]}),
    "another type": lambda f, t: pack(f, {n: v.float() for n, v in t.items()}),
    "whole numbers": lambda f, t: pack(f, {n: v.long() for n, v in t.items()}),
    "not a message": lambda f, t: b"\x00" * 50,
    "cut short": lambda f, t: pack(f, t)[:-3],
    "empty": lambda f, t: b"",
    "samples NaN": _with(samples=float("nan")),
    "samples negative": _with(samples=-5),
    "samples zero": _with(samples=0),
    "samples text": _with(samples="many"),
    "samples missing": _without("samples"),
    "loss missing": _without("loss"),
    "loss infinite": _with(loss=float("inf")),
}  # fmt: skip


@pytest.mark.parametrize("kind", TAMPERED)
def test_an_answer_from_elsewhere_that_cannot_be_used(kind: str, tmp_path: Path) -> None:
    values = SMALL | {"engine": "messages", "dtype": "float64", "weighting": "samples"}
    with engines_changed(tampering(2, 2, TAMPERED[kind])), pytest.raises(UpdateError, match="client cid in round 2"):
        train("fedavg", named_data(), model=seeded(TwoLayer), out=tmp_path / "run", **values)
    assert_holds_round_1(tmp_path / "run", "fedavg", values)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("algorithm", ["local", "fedavg", "fedrep", "lg-fedavg"])
def test_the_client_whose_training_diverges_is_named(algorithm: str, engine: str) -> None:
    """Finite samples so large that the second step overflows."""
    data = named_data()
    data.x_train[data.train_indices(2)] *= 1e200
    with pytest.raises(UpdateError, match=r"client cid in round 1.*not finite.*--lr"):
        train(algorithm, data, model="mlp", dtype="float64", **(SMALL | {"engine": engine}))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_learning_rate_that_is_too_large(engine: str, tmp_path: Path) -> None:
    """Not a traceback, not a table of NaN: one sentence with the rate, and the last finite round in the checkpoint."""
    values = SMALL | {"engine": engine, "lr": 1e38, "model": "mlp", "rounds": 10}
    with pytest.raises(UpdateError, match=r"client .* in round \d+ .*not finite.*smaller --lr \(it is 1e\+38\)"):
        train("fedavg", named_data(), out=tmp_path / "run", **values)
    folder = RunFolder(tmp_path / "run")
    checkpoint = folder.load()
    if folder.rounds.rows():
        assert checkpoint is not None
        assert all(bool(torch.isfinite(t).all()) for t in checkpoint.shared.values())
    else:  # in the first round there is nothing to keep: another rate may be tried in the same folder
        assert checkpoint is None
        folder.check_free()
    assert not (tmp_path / "run" / "summary.json").exists()


def test_after_a_failure_the_run_can_be_continued(tmp_path: Path) -> None:
    """A machine that failed once and works again: the same numbers as if it had never failed."""
    values = SMALL | {"engine": "messages", "dtype": "float64"}
    whole = train_whole("fedrep", named_data(), model=seeded(TwoLayer), **values)
    with engines_changed(tampering(1, 2, TAMPERED["cut short"])), pytest.raises(UpdateError):
        train("fedrep", named_data(), model=seeded(TwoLayer), out=tmp_path / "run", **values)
    again = train_whole("fedrep", named_data(), model=seeded(TwoLayer), out=tmp_path / "run", resume=True, **values)
    assert again.sha == whole.sha
    np.testing.assert_array_equal(again.losses, whole.losses)


def test_all_updates_of_a_round_hold_the_same_tensors(tmp_path: Path) -> None:
    """SCAFFOLD's control variates are no tensors of the model, and one client sends none of one layer."""

    def forget(engine: Engine) -> None:
        assert isinstance(engine, MessageEngine)
        deliver = engine.deliver

        def without(client: int, message: bytes) -> bytes:
            fields, tensors = unpack(deliver(client, message))
            if fields.get("round") == 2 and client == 1:
                tensors.pop(next(name for name in tensors if name.startswith("c/")))
            return pack(fields, tensors)

        engine.deliver = without

    lacking = "client bob in round 2 lacks the tensor 'c/.*' of the others"
    with engines_changed(forget), pytest.raises(UpdateError, match=lacking):
        train("scaffold", named_data(), model=seeded(TwoLayer), out=tmp_path, **(SMALL | {"engine": "messages"}))

"""Invariant 3: what an algorithm calls personal is never in a message; and what the ledger says of the messages."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load as load_tensors

from commonground import load_run, train
from commonground.algorithms import registry
from commonground.engine.backends.base import Engine
from commonground.engine.backends.message_client import MessageClient
from commonground.engine.backends.messages import MessageEngine
from commonground.engine.backends.serialization import pack, unpack
from commonground.errors import UpdateError
from tests.helpers import SMALL, engines_changed, fitting, made_data, mlp_options, spoil, train_whole

HIDDEN = (6, 5)
SETTINGS: dict[str, Any] = SMALL | {"engine": "messages", "participation": 0.5}


class Listener:
    """Keeps every message of a run, with its kind, round and client."""

    def __init__(self) -> None:
        self.setup: Any = None
        self.down: dict[tuple[str, int], list[bytes]] = defaultdict(list)
        self.up: dict[tuple[str, int], list[bytes]] = defaultdict(list)

    def __call__(self, engine: Engine) -> None:
        assert isinstance(engine, MessageEngine)
        self.setup = self.setup or engine.setup
        deliver = engine.deliver

        def listening(client: int, message: bytes) -> bytes:
            answer = deliver(client, message)
            key = (str(unpack(message)[0]["kind"]), int(unpack(message)[0]["round"]))
            self.down[key].append(message)
            self.up[key].append(answer)
            return answer

        engine.deliver = listening

    @property
    def everything(self) -> list[bytes]:
        return [m for kept in (self.down, self.up) for messages in kept.values() for m in messages]


def tensor_bytes(message: bytes) -> int:
    """Bytes of the tensors in a message: all that follows the header (safetensors format)."""
    return len(message) - 8 - int.from_bytes(message[:8], "little")


def listen(algorithm: str, **settings: Any) -> tuple[Listener, Any]:
    listener = Listener()
    with engines_changed(listener):
        run = train(
            algorithm,
            made_data(test=3),
            model="mlp",
            **fitting(algorithm, SETTINGS | {"model_options": mlp_options(algorithm, HIDDEN)} | settings),
        )
    return listener, run


def kept_back(setup: Any) -> list[str]:
    """Personal tensors of the model that the algorithm does not say it sends (FLUTE says so of its heads)."""
    sent = {name for round in range(1, 4) for name in setup.groups.names(setup.algorithm.sends(round))}
    return [name for name in setup.personal_names if name not in sent]


def figures_of(setup: Any) -> set[str]:
    """What an answer to a test may hold: a figure of each metric, and the sums and counts that it comes from."""
    (kind,) = setup.fine
    return {*(f"figure/{name}" for name in kind.names), *(f"0/{name}" for name in kind.bounds(setup.data.classes))}


@pytest.mark.parametrize("algorithm", sorted(registry))
def test_no_personal_tensor_travels(algorithm: str) -> None:
    listener, _ = listen(algorithm)
    setup = listener.setup
    private = kept_back(setup)
    assert set(listener.setup.personal_names) == set(private) or algorithm.startswith("flute")
    assert {"train", "evaluate", "digest"} <= {kind for kind, _ in listener.down} <= {
        "train", "evaluate", "digest", "reply"
    }  # fmt: skip
    for message in listener.everything:
        assert not any(name.encode() in message for name in private)
    figures = figures_of(setup)
    for message in (m for messages in listener.up.values() for m in messages):
        assert not any(name.encode() in message for name in setup.state_names)
        assert set(unpack(message)[1]) <= set(setup.groups.names("all")) | set(setup.initial_shared) | figures | {
            *setup.algorithm.upload_state(setup.initial, setup.groups)
        }


@pytest.mark.parametrize("algorithm", sorted(registry))
def test_no_personal_value_travels(algorithm: str) -> None:
    """Not under another name either: the bytes of no client's personal tensors are in any message."""
    listener = Listener()
    with engines_changed(listener):
        settings = fitting(algorithm, SETTINGS | {"model_options": mlp_options(algorithm, HIDDEN)})
        whole = train_whole(algorithm, made_data(test=3), model="mlp", **settings)
    together = b"|".join(listener.everything)
    private = kept_back(listener.setup)
    # Tensors that are still as every model starts are no secret: the common start is sent as shared tensors.
    for own in whole.personal:
        for name in private:
            if not torch.equal(own[name], whole.initial[name]):
                assert own[name].numpy().tobytes() not in together


@pytest.mark.parametrize("algorithm", sorted(registry))
def test_the_ledger_counts_the_tensors_in_the_messages(algorithm: str) -> None:
    listener, run = listen(algorithm)
    for row in run.history:
        key, reply = ("train", row["round"]), ("reply", row["round"])
        assert row["bytes_up"] == sum(map(tensor_bytes, listener.up[key]))
        assert row["bytes_down"] == sum(map(tensor_bytes, [*listener.down[key], *listener.down[reply]]))
        assert len(listener.up[key]) == row["participants"] == 2
    assert run.summary["bytes_up"] == sum(row["bytes_up"] for row in run.history)
    assert run.summary["bytes_down"] == sum(row["bytes_down"] for row in run.history)


@pytest.mark.parametrize(
    ("algorithm", "numbers"),
    [
        # 4→6→5→3 with biases: body 4·6+6 + 6·5+5 = 65, head 5·3+3 = 18
        ("local", 0),
        ("fedavg", 83),
        ("fedsgd", 83),
        ("fedper", 65),
        ("fedrep", 65),
        ("lg-fedavg", 18),
    ],
)
def test_bytes_by_hand(algorithm: str, numbers: int) -> None:
    """Two participants, float32."""
    _, run = listen(algorithm)
    assert [row["bytes_up"] for row in run.history] == [2 * 4 * numbers] * 3
    assert [row["bytes_down"] for row in run.history] == [2 * 4 * numbers] * 3


@pytest.mark.parametrize("engine", ["serial", "processes", "batched"])
@pytest.mark.parametrize("algorithm", sorted(registry))
def test_the_ledger_is_the_same_in_simulation(algorithm: str, engine: str) -> None:
    _, real = listen(algorithm)
    settings = fitting(algorithm, SETTINGS | {"engine": engine, "model_options": mlp_options(algorithm, HIDDEN)})
    same = train(algorithm, made_data(test=3), model="mlp", **settings)
    assert [(r["bytes_up"], r["bytes_down"]) for r in same.history] == [
        (r["bytes_up"], r["bytes_down"]) for r in real.history
    ]


def test_fine_tuning_sends_no_head() -> None:
    """+FT happens after training: the global model goes out once more, nothing but figures comes back."""
    listener, run = listen("fedavg", finetune_epochs=2)
    after = [m for (_, round), messages in listener.up.items() if round > 3 for m in messages]
    assert after
    assert all(set(unpack(m)[1]) <= figures_of(listener.setup) for m in after)
    assert run.summary["bytes_up"] == 3 * 2 * 4 * 83


def test_answers_hold_figures_alone() -> None:
    listener, _ = listen("fedrep")
    for (kind, _), messages in listener.up.items():
        for message in messages:
            fields, tensors = unpack(message)
            if kind == "evaluate":
                assert set(fields) == {"sums", "count", "loss"}
                assert set(fields["sums"]) == {"accuracy"}
                assert all(isinstance(v, int | float) for v in (fields["sums"]["accuracy"], *list(fields.values())[1:]))
            if kind != "train":
                assert set(tensors) <= figures_of(listener.setup)


def test_a_client_keeps_its_state_in_its_own_folder(tmp_path: Any) -> None:
    """One folder per client that took part; states older than the last safe one are dropped; leftovers are harmless."""
    settings = SETTINGS | {"participation": 1.0, "out": tmp_path / "run", "model": "mlp"}
    spoil(tmp_path / "run" / "clients" / "client-0" / "round-000002.safetensors")
    one = train_whole("fedrep", made_data(), **settings)
    two = train_whole("fedrep", made_data(), **(settings | {"out": tmp_path / "other"}))
    assert one.sha == two.sha
    folders = sorted(p.name for p in (tmp_path / "run" / "clients").iterdir())
    assert folders == [f"client-{c}" for c in range(4)]


# -- the wire -------------------------------------------------------------------------------------------------------


def test_pack_and_unpack() -> None:
    data = {"kind": "train", "text": "ä\n", "list": [1, 2.5, None]}
    whole = made_data().x_train
    tensors = {"a": torch.from_numpy(whole), "b/c": torch.arange(3)[::2], "scalar": torch.tensor(2.0)}
    fields, back = unpack(pack(data, tensors))
    assert fields == data
    assert all(torch.equal(back[n], t) and back[n].dtype == t.dtype for n, t in tensors.items())
    assert unpack(pack({}, {})) == ({}, {})
    again = {name: tensors[name].clone() for name in reversed(tensors)}
    assert len({pack(data, again) for _ in range(20)} | {pack(data, tensors)}) == 1
    assert load_tensors(pack(data, tensors)).keys() == tensors.keys()  # as the format's own library reads it


@pytest.mark.parametrize("cut", [0, 4, 9, 60, -1])
def test_bytes_that_are_no_message(cut: int) -> None:
    message = pack({"kind": "x"}, {"a": torch.zeros(4)})
    with pytest.raises(UpdateError, match="not a message"):
        unpack(message[:cut])


def test_a_header_without_fields_is_no_message() -> None:
    header = json.dumps({"__metadata__": {"other": "1"}}).encode()
    with pytest.raises(UpdateError, match="not a message"):
        unpack(len(header).to_bytes(8, "little") + header)
    with pytest.raises(UpdateError, match="not a message"):
        unpack(np.random.default_rng(0).bytes(200))


def test_what_an_earlier_run_left_in_the_folder_is_nobodys_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that was stopped in its first round leaves clients' states, and another one may begin there."""
    settings: dict[str, Any] = {"engine": "messages", "participation": 0.3, "rounds": 1, "local_epochs": 1}
    usual, trained = MessageClient._train, list[int]()

    def stopped(self: MessageClient, task: Any, shared: Any) -> Any:
        trained.append(self.number)
        if len(trained) == 3:
            raise KeyboardInterrupt
        return usual(self, task, shared)

    data = made_data((6,) * 8)
    monkeypatch.setattr(MessageClient, "_train", stopped)
    with pytest.raises(KeyboardInterrupt):
        train("fedrep", data, out=tmp_path / "run", seed=5, **settings | {"participation": 1.0})
    monkeypatch.undo()
    assert len(list(tmp_path.glob("run/clients/client-*/round-*"))) == 2
    again, clean = (train("fedrep", data, out=tmp_path / name, seed=0, **settings) for name in ("run", "clean"))
    assert 0 in {int(row["rounds"]) for row in again.clients if int(row["client"]) in trained[:2]}
    for run in (again, load_run(tmp_path / "run")):
        for client in range(8):
            np.testing.assert_array_equal(run.predict(data.x_test, client), clean.predict(data.x_test, client))

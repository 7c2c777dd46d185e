"""FLoRA's way down by the paper's protocol: the same numbers as dense sums, in the paper's bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import commonground as cg
from commonground.algorithms import Server
from commonground.algorithms.flora_stacks import fresh_factor, spared, stack_name, worked_out, worth_keeping
from commonground.engine.backends.messages import MessageEngine
from commonground.engine.backends.serialization import unpack
from commonground.errors import UpdateError
from tests.helpers import digits
from tests.language import tiny_model, token_data

RANK = 1
SIDES = 64, 100, 50  # of the two layers of the mlp below


def train(downlink: str, engine: str, **more: Any) -> Any:
    options = {"rank": RANK, "downlink": downlink, **more.pop("options", {})}
    settings: dict[str, Any] = {"rounds": 3, "model": "mlp", "model_options": {"hidden": [100, 50]}, "seed": 3}
    return cg.train("flora", digits(), engine=engine, options=options, **{**settings, **more})


@pytest.mark.parametrize("more", [{}, {"participation": 0.4, "rounds": 6}, {"options": {"ranks": "1,1"}}])
def test_the_same_numbers_as_dense_in_every_engine(more: dict[str, Any]) -> None:
    dense = train("dense", "serial", **more)
    for engine in ("serial", "messages"):
        stacked = train("stack", engine, **more)
        assert stacked.summary["weights_sha256"] == dense.summary["weights_sha256"]
        assert stacked.summary["bytes_down"] < dense.summary["bytes_down"]
    batched = train("stack", "batched", **more)
    for name, value in dense.shared.items():
        torch.testing.assert_close(value, batched.shared[name], rtol=0, atol=1e-5)


@pytest.mark.parametrize("start", ["kaiming", "gaussian"])
def test_fresh_factors_are_drawn_as_the_first_were(start: str, tmp_path: Path) -> None:
    """U(±1/√in) has the deviation 1/√(3 in) and ends at 1/√in; N(0, 1/in) goes beyond."""
    model, data = tiny_model("bert", tmp_path), token_data()
    settings: dict[str, Any] = {"rounds": 3, "model": model, "model_options": {"start": start, "rank": 8}, "seed": 3}
    runs = [
        cg.train("flora", data, engine=engine, options={"downlink": downlink}, **settings)
        for downlink, engine in (("dense", "serial"), ("stack", "messages"), ("stack", "processes"))
    ]
    assert len({run.summary["weights_sha256"] for run in runs}) == 1
    drawn = torch.cat([value.flatten() for name, value in runs[0].shared.items() if name.endswith("lora_A")])
    bound = 16**-0.5
    if start == "gaussian":
        assert float(drawn.std()) == pytest.approx(bound, rel=0.1)
        assert float(drawn.abs().max()) > 2 * bound
    else:
        assert float(drawn.std()) == pytest.approx(bound / 3**0.5, rel=0.1)
        assert float(drawn.abs().max()) <= bound


def test_the_papers_bytes() -> None:
    run, n = train("stack", "serial"), digits().clients
    d, h1, h2 = SIDES
    factors = RANK * (d + h1 + h1 + h2)
    down = [row["bytes_down"] for row in run.history]
    assert down[0] == 4 * n * factors  # all know that the sums are zero
    assert down[1:] == [4 * n * (n * factors)] * 2  # N·r rows of either factor for each client, and nothing else
    assert [row["bytes_up"] for row in run.history] == [4 * n * factors] * 3


def test_bytes_are_those_of_the_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: dict[int, int] = {}
    deliver = MessageEngine._to_client

    def counted(self: Any, client: int, message: bytes) -> bytes:
        fields, tensors = unpack(message)
        if fields["kind"] == "train":
            sent[fields["round"]] = sent.get(fields["round"], 0) + sum(4 * value.numel() for value in tensors.values())
        return deliver(self, client, message)

    monkeypatch.setattr(MessageEngine, "_to_client", counted)
    run = train("stack", "messages", participation=0.4, rounds=6)
    assert sent == {row["round"]: row["bytes_down"] for row in run.history}


def test_a_client_that_missed_too_much_is_sent_the_sums() -> None:
    """Many rounds' stacks are more than the dense matrices: then these go, and the server forgets the stacks."""
    more = {"participation": 0.2, "rounds": 12, "options": {"rank": 16}}
    dense, stacked = train("dense", "messages", **more), train("stack", "messages", **more)
    assert stacked.summary["weights_sha256"] == dense.summary["weights_sha256"]
    assert stacked.summary["bytes_down"] < dense.summary["bytes_down"]
    shared = {"l.lora_A": torch.zeros(2, 10), "l.lora_B": torch.zeros(10, 2), "l.merged": torch.zeros(10, 10)}
    memory = {stack_name(t, f"l.{f}"): torch.zeros(s) for t in range(1, 9) for f, s in
              (("lora_A", (2, 10)), ("lora_B", (10, 2)))}  # fmt: skip
    kept = worth_keeping(memory, shared)
    assert {int(name.split("/")[1]) for name in kept} == {7, 8}  # 40 and 80 numbers; 120 are more than 100
    names, steps = spared(Server(shared, kept, round=9), heard=7)
    assert names == set(shared)
    assert set(steps) == set(kept)
    names, steps = spared(Server(shared, kept, round=9), heard=6)
    assert names == {"l.lora_A", "l.lora_B"}
    assert not steps


def test_a_resumed_run_remembers_the_stacks(tmp_path: Path) -> None:
    whole = train("stack", "messages", participation=0.4, rounds=5)
    train("stack", "messages", participation=0.4, rounds=3, out=tmp_path / "run")
    again = train("stack", "messages", participation=0.4, rounds=5, out=tmp_path / "run", resume=True)
    assert again.summary["weights_sha256"] == whole.summary["weights_sha256"]
    assert again.summary["bytes_down"] == whole.summary["bytes_down"]


KNOWN = {"l.lora_A": torch.ones(1, 3), "l.lora_B": torch.ones(2, 1), "l.merged": torch.full((2, 3), 0.5)}
STACK = {stack_name(1, "l.lora_A"): torch.full((2, 3), 2.0), stack_name(1, "l.lora_B"): torch.ones(2, 2)}


def test_by_hand() -> None:
    made = worked_out(KNOWN, STACK, 2, seed=5, start="kaiming")
    assert set(made) == set(KNOWN)
    torch.testing.assert_close(made["l.merged"], torch.full((2, 3), 4.5))  # 0.5 + 2 · 2
    assert torch.equal(made["l.lora_A"], fresh_factor(KNOWN["l.lora_A"], 5, 1, "l.lora_A", "kaiming"))
    assert torch.equal(made["l.lora_B"], torch.zeros(2, 1))
    assert torch.equal(worked_out(KNOWN, {"l.merged": torch.ones(2, 3)}, 2, 5, "kaiming")["l.merged"], torch.ones(2, 3))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({stack_name(1, "l.lora_A"): None}, "it lacks the tensor 'stack/1/l.lora_A'"),
        ({stack_name(1, "l.lora_A"): torch.ones(2, 4)}, "its stack of round 1 for 'l.merged' does not fit"),
        ({stack_name(1, "l.lora_A"): torch.ones(3, 3)}, "its stack of round 1 for 'l.merged' does not fit"),
        ({stack_name(1, "l.lora_A"): torch.ones(2, 3).double()}, "does not fit"),
        ({stack_name(1, "l.lora_A"): torch.ones(())}, "does not fit"),
        ({stack_name(1, "other.lora_A"): torch.ones(2, 3)}, "it holds the tensor 'stack/1/other.lora_A'"),
    ],
)
def test_a_stack_that_does_not_fit_is_refused(changes: dict[str, Any], says: str) -> None:
    sent = {name: value for name, value in (STACK | changes).items() if value is not None}
    with pytest.raises(UpdateError, match=says):
        worked_out(KNOWN, sent, 2, 5, "kaiming")


@pytest.mark.parametrize(("method", "says"), [("flora", "FLoRA's own aggregation is exact"), ("lora", "how far")])
def test_whose_the_aggregation_error_is(method: str, says: str) -> None:
    run = cg.train(method, digits(), rounds=1, engine="serial")
    assert says in run.summary["aggregation_error_of"]

"""What a client of a federation keeps: the state of every round that the server may still ask it to repeat."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from commonground.algorithms import Tensors
from commonground.engine.backends.base import Engine
from commonground.engine.backends.messages import MessageEngine
from commonground.engine.state.client import ClientStates
from commonground.errors import RunError
from tests.helpers import SMALL, engines_changed, made_data, train_whole, training


def state(value: float) -> Tensors:
    return {"w": torch.full((2, 3), value), "steps": torch.tensor(int(value))}


def kept(folder: Path, rounds: list[int]) -> ClientStates:
    states = ClientStates(folder / "client-4", 4)
    for round in rounds:
        states.keep(round, state(round))
        states.keep(round, {"v": torch.full((2,), float(round))}, "shared")
    return states


def test_a_round_starts_from_the_newest_state_before_it(tmp_path: Path) -> None:
    states = kept(tmp_path, [2, 5, 9])
    for before, wanted in ((3, 2), (5, 2), (6, 5), (9, 5), (10, 9), (99, 9)):
        newest = states.newest(before)
        assert newest is not None
        assert newest["w"].tolist() == state(wanted)["w"].tolist()
        assert newest["steps"].item() == wanted
    assert states.newest(2) is None
    assert ClientStates(tmp_path / "client-5", 5).newest(9) is None


def test_the_state_after_a_round_is_none_of_a_later_one(tmp_path: Path) -> None:
    """What was kept of rounds that did not count, or by another run, is nobody's."""
    states = kept(tmp_path, [2, 5, 9])
    assert states.after(0) is None
    found = states.after(5)
    assert found is not None
    assert found["steps"].item() == 5


def test_what_was_sent_is_remembered_by_round(tmp_path: Path) -> None:
    states = kept(tmp_path, [2, 5])
    shared = states.shared(2)
    assert shared is not None
    assert shared["v"].tolist() == [2.0, 2.0]
    assert states.shared(3) is None


@pytest.mark.parametrize(
    ("round", "safe", "left"),
    [(10, 0, [2, 5, 9]), (10, 5, [5, 9]), (10, 8, [5, 9]), (10, 9, [9]), (9, 5, [5]), (5, 2, [2]), (6, 0, [2, 5])],
)
def test_what_is_forgotten(round: int, safe: int, left: list[int], tmp_path: Path) -> None:
    """States that are repeated now, and those older than the newest safe one."""
    states = kept(tmp_path, [2, 5, 9])
    states.forget(round, safe)
    assert sorted(states.rounds()) == sorted(states.rounds("shared")) == left


def test_what_did_not_count_is_forgotten(tmp_path: Path) -> None:
    """Round 9 was refused: the next round starts from round 5, also where the checkpoint of round 9 is safe."""
    states = kept(tmp_path, [2, 5, 9])
    states.forget(12, safe=10, last=5)
    assert sorted(states.rounds()) == sorted(states.rounds("shared")) == [5]


def test_a_damaged_or_lost_state_is_one_sentence(tmp_path: Path) -> None:
    states = kept(tmp_path, [2, 5])
    path = states.rounds()[5]
    whole = path.read_bytes()
    for place in (0, 9, len(whole) // 2, len(whole) - 40, len(whole) - 1):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(RunError, match=r"round-000005.safetensors' (cannot be read|is damaged)"):
            states.newest(9)
    path.unlink()
    with pytest.raises(RunError, match=r"client 4 no longer has its state of round 5 in '.*client-4'"):
        states.after(5)


def test_a_state_of_another_client_is_refused(tmp_path: Path) -> None:
    path = kept(tmp_path, [2]).rounds()[2]
    with pytest.raises(RunError, match="does not hold the state of client 3"):
        ClientStates(path.parent, 3).newest(9)


def test_states_of_both_checkpoints_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run may fall back to the checkpoint before the last one, so that one's rounds are not forgotten yet."""
    monkeypatch.setattr(training.Keeper, "save_if_due", training.Keeper.save)
    engines: list[MessageEngine] = []

    def remember(engine: Engine) -> None:
        assert isinstance(engine, MessageEngine)
        engines.append(engine)

    with engines_changed(remember):
        train_whole(
            "fedrep", made_data(), out=tmp_path, **(SMALL | {"engine": "messages", "model": "mlp", "rounds": 6})
        )
    assert (engines[0]._saved, engines[0]._safe) == (6, 5)
    for client in range(4):
        assert sorted(ClientStates(tmp_path / "clients" / f"client-{client}", client).rounds()) == [4, 5, 6]

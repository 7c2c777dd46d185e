"""Over a network ε counts every answer that has left its client, whether the server made a round of it or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import commonground as cg
from commonground.config import RunConfig
from commonground.engine.backends.serialization import unpack
from commonground.errors import RunError, UpdateError
from commonground.network import Limits, gather, train_over
from commonground.network.members import Members
from commonground.network.post import Letter
from commonground.network.running import run_settings
from commonground.privacy import Budget
from tests.network.test_network_engine import data_of
from tests.network.town import Town

EXAMPLES = {"dp": "example", "dp_clip": 1.0, "dp_noise": 4.0}
CLIENTS = {"dp": "client", "dp_where": "client", "dp_clip": 1.0, "dp_noise": 4.0}
BASE: dict[str, Any] = {"algorithm": "fedavg", "model": "linear", "lr": 0.1}


def limits(clients: int) -> Limits:
    return Limits(seconds=30, patience=0.1, pause=0.01, min_answers=clients)


def own_runs(folder: Path) -> list[cg.Run]:
    return [cg.load_run(next((client / "models").iterdir())) for client in sorted(folder.iterdir())]


@pytest.mark.parametrize("dp", [EXAMPLES, CLIENTS])
def test_a_run_cannot_end_before_a_round_that_was_answered(dp: dict[str, Any], tmp_path: Path) -> None:
    """The answer of one client to round 3 is lost for good; the others have answered it, and their ε counts that."""
    data = data_of()
    town, settings = Town(data, tmp_path / "sites"), {**BASE, **dp, "rounds": 5}

    def lose(node: int, asked: Letter, answer: Letter) -> Letter | UpdateError:
        question = unpack(asked.body)[0] if asked.kind == "ask" else {}
        lost = node == 102 and (question.get("kind"), question.get("round")) == ("train", 3)
        return UpdateError("it is not there") if lost else answer

    town.spoil, out = lose, tmp_path / "run"
    config = RunConfig.make(settings)
    members = gather(town, data.clients, 20, config=config)
    with pytest.raises(RunError, match="round 3"):
        train_over(town, config, members, limits(data.clients), out)
    town.spoil = lambda node, asked, answer: answer
    told = r"cannot end with 2 rounds: clients were asked for answers to round 3, .*; it can end with 3"
    with pytest.raises(RunError, match=told):
        run_settings({"rounds": 2}, out, resume=True)
    members, fewer = Members.read(out / "network.json"), [RunConfig.make({**settings, "rounds": n}) for n in (2, 3)]
    with pytest.raises(RunError, match=told):
        train_over(town, fewer[0], members, limits(data.clients), out, resume=True)
    run = train_over(town, fewer[1], members, limits(data.clients), out, resume=True)
    privacy = run.summary["privacy"]
    assert privacy["epsilon"] == pytest.approx(Budget(4.0, 3, 1, 1).epsilon(privacy["delta"])[0])
    for own in own_runs(tmp_path / "sites"):
        assert own.summary["privacy"]["rounds"] == 3
        if dp is EXAMPLES:
            assert own.summary["privacy"]["epsilon"] == privacy["epsilon"]


def test_a_client_s_own_epsilon_is_what_the_server_tells_of_it(tmp_path: Path) -> None:
    data = data_of()
    town, config = (
        Town(data, tmp_path / "sites"),
        RunConfig.make({**BASE, **EXAMPLES, "rounds": 3, "participation": 0.5}),
    )
    members = gather(town, data.clients, 20, config=config)
    run = train_over(town, config, members, limits(1), tmp_path / "run")
    theirs = [(row["rounds"], row["epsilon"]) for row in run.clients]
    assert len({rounds for rounds, _ in theirs}) > 1
    own = own_runs(tmp_path / "sites")
    assert [(one.clients[0]["rounds"], one.clients[0]["epsilon"]) for one in own] == theirs
    assert [one.summary["privacy"]["passes"] for one in own] == [rounds for rounds, _ in theirs]

"""Clients that take no part in a run because of what it is, and what is said of those that are away for long."""

from __future__ import annotations

import errno
import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

import commonground as cg
from commonground.config import RunConfig
from commonground.data.part import part_of
from commonground.engine.backends.message_kinds import Acknowledged, FailedError, read_answer
from commonground.engine.backends.serialization import unpack
from commonground.engine.observer import Silent
from commonground.errors import ConfigError, RunError, UpdateError
from commonground.network import Answering, Members, gather, server_app, train_over
from commonground.network.answering import failed
from commonground.network.demands import is_folder
from commonground.network.gathering import RefusedError
from commonground.network.post import Letter, NoAnswerError
from commonground.network.running import run_settings
from commonground.quoting import quoted
from commonground.tasks import special_clients
from tests.helpers import made_data
from tests.network.test_network_engine import FAST, SETTINGS, data_of
from tests.network.town import Town

DEMAND = "this client takes part in runs with --dp client --dp-where client alone, as its owner demands"
WANTED = f"takes no part in this run, and says '{DEMAND}'"


def town_of(tmp_path: Path, *demanding: int) -> Town:
    town = Town(data_of(), tmp_path / "sites")
    for client in demanding:
        town.desks[100 + client].answering.demand = "client"
    return town


def carried_out(
    town: Town, out: Path, monkeypatch: pytest.MonkeyPatch, clients: int, wait: float = 20, **settings: Any
) -> list[str]:
    """A job on the server; its notes."""
    notes: list[str] = []
    monkeypatch.setattr(server_app, "GridPost", lambda grid, limits: town)
    asked = {"data": "arrays", **SETTINGS, "algorithm": "fedrep", **settings}
    job = server_app.Job(settings=asked, clients=clients, wait=wait, limits=FAST, out=str(out))
    out.mkdir()
    server_app._train(None, job, out, notes.append)  # type: ignore[arg-type]
    return notes


def test_a_client_whose_demand_is_not_met_is_left_out_from_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others train what they would have trained by themselves."""
    notes = carried_out(town_of(tmp_path, 1), tmp_path / "run", monkeypatch, clients=3)
    assert notes.count(f"client 'site 1' {WANTED}") == 1
    assert not [note for note in notes if "101" in note]  # of which the reason is known
    run = cg.load_run(tmp_path / "run")
    assert run.summary["clients"] == 3
    assert run.trained.known.names == ["site 0", "site 2", "site 3"]
    assert "refused" not in run.summary
    alone = Town(data_of(), tmp_path / "alone")
    for one in (alone.names, alone.data, alone.folders):
        del one[1]
    alone.desks = {node: desk for node, desk in alone.desks.items() if node != 101}
    config = RunConfig.make({"algorithm": "fedrep", "data": "arrays", **SETTINGS})
    other = train_over(alone, config, gather(alone, 3, 10), FAST, tmp_path / "other")
    assert run.summary["weights_sha256"] == other.summary["weights_sha256"]
    assert Members.read(tmp_path / "run" / "network.json").nodes == (100, 102, 103)


def test_too_few_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RunError) as error:
        carried_out(town_of(tmp_path, 1), tmp_path / "run", monkeypatch, clients=4, wait=0.7)
    assert str(error.value).startswith("3 of 4 clients have come within 0.7 s (client 'site 1' takes no part in this")
    assert not (tmp_path / "run" / "network.json").exists()


def test_nobody_takes_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is waited for then."""
    with pytest.raises(RefusedError) as error:
        carried_out(town_of(tmp_path, 0, 1, 2, 3), tmp_path / "run", monkeypatch, clients=2, wait=30)
    assert [f"client 'site {c}' {WANTED}" in str(error.value) for c in range(4)] == [True] * 4


def test_who_comes_later_may_refuse_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are left out, also one that says so when the run begins; and what a run that is not to be left behind at the
    others is gone.
    """
    town = town_of(tmp_path, 3)
    late, exchange = town.desks.pop(103), town.exchange

    def come(letters: Any, *given: Any) -> Any:
        if any(letter.kind == "begin" for letter in letters.values()):
            town.desks[101].answering.demand = "client"
        if any(letter.kind == "off" for letter in letters.values()):
            town.desks[103] = late
        return exchange(letters, *given)

    monkeypatch.setattr(town, "exchange", come)
    private: dict[str, Any] = {"dp": "client", "dp_clip": 0.5, "dp_noise": 2.0, "dp_where": "server"}
    notes = carried_out(town, tmp_path / "run", monkeypatch, clients=2, **private)  # which has a secret, too
    for client in (1, 3):
        assert len([note for note in notes if f"client 'site {client}' takes no part" in note]) == 1
    run = cg.load_run(tmp_path / "run")
    assert run.trained.known.names == ["site 0", "site 2"]
    for client in (0, 2):
        (kept,) = (tmp_path / "sites" / f"client-{client}" / "runs").iterdir()
        assert kept.name == Members.read(tmp_path / "run" / "network.json").run
    assert not (tmp_path / "sites" / "client-1" / "runs").exists()


def test_who_does_not_answer_at_first_is_none_who_refuses(tmp_path: Path) -> None:
    town = Town(data_of(), tmp_path / "sites")

    def lost(node: int, asked: Letter, answer: Letter) -> Letter | UpdateError:
        town.spoil = lambda node, asked, answer: answer
        return NoAnswerError("it is not there")

    members = gather(town, 4, 10)
    town.spoil = lost
    config = RunConfig.make({"algorithm": "fedrep", "data": "arrays", **SETTINGS})
    run = train_over(town, config, members, FAST, tmp_path / "run")
    assert [r["participants"] for r in run.history] == [4, 4, 4]


def test_a_run_that_has_begun_is_resumed_without_one_that_now_refuses(tmp_path: Path) -> None:
    town = Town(data_of(), tmp_path / "sites")
    members = gather(town, 4, 10)
    settings = {"algorithm": "fedrep", "data": "arrays", **SETTINGS}
    train_over(town, RunConfig.make({**settings, "rounds": 1}), members, FAST, tmp_path / "run")
    town.restart(101)
    town.desks[101].answering.demand = "client"
    more = RunConfig.make({**settings, "rounds": 3})
    run = train_over(town, more, members, FAST, tmp_path / "run", resume=True)
    assert [r["participants"] for r in run.history] == [4, 3, 3]


def test_a_run_of_which_something_was_asked_cannot_be_called_off(tmp_path: Path) -> None:
    town, notes = Town(data_of(), tmp_path / "sites"), list[str]()
    members = gather(town, 4, 10)
    config = RunConfig.make({"algorithm": "fedavg", "data": "arrays", **SETTINGS, "rounds": 1})
    train_over(town, config, members, FAST, tmp_path / "run")
    begun = tmp_path / "sites" / "client-0" / "runs" / members.run / "begin.json"
    town.desks[100].answering.call_off(members.run)
    assert begun.is_file()
    town.restart(100)
    town.desks[100].answering.note = notes.append
    town.desks[100].answering.call_off(members.run)
    assert begun.is_file()
    assert town.desks[100].answering._of(members.run).number == 0
    assert notes == [f"goes on with the run {members.run}"]


def test_a_demand_that_is_met(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    private: dict[str, Any] = {"dp": "client", "dp_clip": 0.5, "dp_noise": 2.0, "dp_where": "client"}
    notes = carried_out(town_of(tmp_path, 1), tmp_path / "run", monkeypatch, clients=4, **private)
    assert not [note for note in notes if "takes no part" in note]
    assert cg.load_run(tmp_path / "run").summary["clients"] == 4


def test_why_a_client_is_away_is_said_once_and_that_it_is_back(tmp_path: Path) -> None:
    notes: list[str] = []

    class Hearing(Silent):
        def note(self, text: str) -> None:
            notes.append(text)

    def lost(node: int, asked: Letter, answer: Letter) -> Letter | UpdateError:
        away = any(f'\\"round\\": {round}'.encode() in asked.body for round in (2, 3, 4))
        return UpdateError("its data are others") if node == 102 and asked.kind == "ask" and away else answer

    town = Town(data_of(), tmp_path / "sites")
    town.spoil = lost
    config = RunConfig.make({"algorithm": "fedrep", "data": "arrays", **SETTINGS, "rounds": 6})
    run = train_over(town, config, gather(town, 4, 10), FAST, tmp_path / "run", observer=Hearing())
    assert [r.get("missing") for r in run.history] == [None, 1, 1, 1, None, None]
    told = [note for note in notes if "site 2" in note]
    assert told[0].startswith("round 2: client site 2 in round 2 gave no answer that can be used: its data are others")
    assert told[-1] == "round 5: client site 2 takes part again"
    assert len(told) == 2
    assert run.summary["refused"]["site 2"]["rounds"] == 3


def test_others_hear_that_no_run_has_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    town = town_of(tmp_path, 1)
    heard: list[str] = []
    town.desks[102].note = heard.append
    with pytest.raises(RunError, match="3 of 4 clients have come"):
        carried_out(town, tmp_path / "run", monkeypatch, clients=4, wait=0.5)
    assert [text for text in heard if text.startswith("no run has begun: 3 of 4 clients have come within 0.5 s")]
    assert {node for node, asked, _ in town.letters if asked.kind == "told"} == {100, 102, 103}


def test_who_did_not_take_the_model_is_named_until_it_does(tmp_path: Path) -> None:
    """By what its disk says, without its folders."""
    town, full = Town(data_of(), tmp_path / "sites"), [True]
    config = RunConfig.make({"algorithm": "fedrep", "data": "arrays", **SETTINGS})
    members = gather(town, 4, 10)

    def spoil(node: int, asked: Letter, answer: Letter) -> Letter:
        said = OSError(errno.ENOSPC, "No space left on device", "/home/ann/projects/site/checkpoint")
        return answer._replace(body=failed(said)) if full[0] and node == 101 and asked.kind == "end" else answer

    town.spoil = spoil
    run = train_over(town, config, members, FAST, tmp_path / "run")
    why = f"it failed, and says {quoted(quoted('checkpoint') + ' on its disk: No space left on device')}"
    assert run.summary["clients_without_model"] == {"site 1": why}
    assert cg.load_run(tmp_path / "run").summary["clients_without_model"] == {"site 1": why}
    (clause,) = special_clients(run.summary)
    assert clause.startswith("with 1 client that did not take the finished model (--resume offers it again): 'site 1'")
    full[0] = False
    again = train_over(town, config, members, FAST, tmp_path / "run", resume=True)
    assert "clients_without_model" not in again.summary
    assert "clients_without_model" not in cg.load_run(tmp_path / "run").summary
    assert cg.load_run(tmp_path / "sites" / "client-1" / "models" / members.run).trained.known.names == ["site 1"]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("'/home/ann/a b/x.csv' cannot be read", "'x.csv' cannot be read"),
        ("/srv/data/x.csv, line 2: no number", "x.csv, line 2: no number"),
        (r"'C:\Users\ann\x.csv' cannot be read", "'x.csv' cannot be read"),
        ("texts were read for 'hf:owner/model', 3/4 of them", "texts were read for 'hf:owner/model', 3/4 of them"),
    ],
)
def test_folders_of_a_host_stay_there(said: str, told: str) -> None:
    with pytest.raises(UpdateError) as heard:
        read_answer(Acknowledged, unpack(failed(RunError(said)))[0])
    assert isinstance(heard.value, FailedError)
    assert heard.value.said == quoted(told)


def test_another_version_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    town, notes = Town(data_of(), tmp_path / "sites"), list[str]()
    gather(town, 4, 10, notes.append)
    assert not [note for note in notes if "version" in note]
    monkeypatch.setattr("commonground.data.described.version", lambda name: "0.0.7")
    gather(town, 4, 10, notes.append)
    ours = version("commonground")
    assert f"client site 3 has version 0.0.7, and the server {ours}" in notes


def test_what_one_client_says_of_itself_is_in_nobody_else_s_way(tmp_path: Path) -> None:
    """It describes targets of which no mean can be made, and takes no part; the others train."""
    data = data_of()
    town, notes = Town(data, tmp_path / "sites"), list[str]()

    def lie(node: int, asked: Letter, answer: Letter) -> Letter:
        if node != 101 or asked.kind != "hello":
            return answer
        said = json.loads(answer.body) | {"task": "regression", "task_settings": {"mean": ["a"], "std": ["b"]}}
        return Letter("ok", answer.run, json.dumps(said).encode())

    town.spoil = lie
    members = gather(town, data.clients - 1, 20, notes.append)
    assert members.nodes == tuple(100 + c for c in range(data.clients) if c != 1)
    assert any(note.startswith("node 101 cannot take part: this describes targets") for note in notes)
    config = RunConfig.make({**SETTINGS, "algorithm": "fedavg", "data": "arrays"})
    assert len(train_over(town, config, members, FAST, tmp_path / "run").clients) == data.clients - 1


def test_who_is_started_anew_while_others_are_waited_for_is_known_as_what_it_is_now(tmp_path: Path) -> None:
    whole = made_data((12, 9, 30), client_names=("a", "b", "c"))
    town, notes = Town(whole, tmp_path / "sites"), list[str]()
    late = town.desks.pop(102)

    def note(text: str) -> None:
        notes.append(text)
        if "there: 2" in text:  # a is another now, on the same key, and the last one comes
            town.data[0], town.names[0] = part_of(made_data((20, 4)), [0]), "changed"
            town.restart(100)
            town.desks[102] = late

    members = gather(town, 3, 20, note)
    assert [(told.name, told.train) for told in members.descriptions] == [("b", 9), ("c", 30), ("changed", 20)]
    told = "client changed, which was 'a' with 12 training rows, has been started anew: 20 training rows"
    assert notes.count(told) == 1
    assert sum("client b" in text for text in notes) == 1
    config = RunConfig.make({**SETTINGS, "algorithm": "fedavg", "data": "arrays"})
    run = train_over(town, config, members, FAST, tmp_path / "run")
    assert "refused" not in run.summary
    assert [row["rounds"] for row in run.clients] == [3, 3, 3]


def test_who_is_turned_away_may_come_back_with_less_to_ask_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its owner hears why, and starts it anew without the demand while the server still waits."""
    monkeypatch.setattr("commonground.network.gathering._LONGEST", 1.0)
    town, notes, without = town_of(tmp_path, 1), list[str](), dict[int, str]()
    config = RunConfig.make({**SETTINGS, "algorithm": "fedavg", "data": "arrays"})

    def note(text: str) -> None:
        notes.append(text)
        if "there: 3" in text:
            assert list(without) == [101]
            town.restart(101)

    members = gather(town, 4, 20, note, without, config)
    assert members.nodes == (100, 101, 102, 103)
    assert without == {}
    assert sum("takes no part in this run" in text for text in notes) == 1
    assert "client site 1 is there" in str(notes)


def test_a_model_folder_of_a_client_s_host_is_its_owner_s_to_name(tmp_path: Path) -> None:
    """A head of such a folder would be in the answers of methods whose clients send theirs."""
    data = part_of(data_of(), [0])
    config = {**SETTINGS, "algorithm": "flute", "data": "arrays", "clients": 4, "lr": 0.1, "optimizer": "sgd"}
    client = Answering(data, "site 0", tmp_path)
    for model in (f"hf:{tmp_path}", "hf:/etc", "hf:./here", "hf:~/there", "hf:no/such/folder"):
        begin = {"run": "0" * 32, "config": {**config, "model": model}, "number": 0, "class_names": data.class_names}
        with pytest.raises(ConfigError, match="names a folder of this host as its model"):
            client.begin(json.dumps(begin).encode())
    assert not is_folder("hf:bert-base-uncased")
    assert not is_folder("hf:sentence-transformers/all-MiniLM-L6-v2")


@pytest.mark.parametrize("named", [{"init_from": "w.safetensors"}, {"model_options": {"adapter": "adapter"}}])
def test_no_server_makes_a_client_read_weights_of_its_host(named: dict[str, Any], tmp_path: Path) -> None:
    config = {**SETTINGS, "algorithm": "flute", "data": "arrays", "clients": 4, "lr": 0.1, "optimizer": "sgd", **named}
    data = part_of(data_of(), [0])
    begin = {"run": "0" * 32, "config": config, "number": 0, "class_names": data.class_names}
    client = Answering(data, "site 0", tmp_path)
    with pytest.raises(ConfigError, match="names weights that this host is to begin with"):
        client.begin(json.dumps(begin).encode())
    assert not client.has_begun("0" * 32)
    with pytest.raises(ConfigError, match="is not for a run over a network, which begins with new weights"):
        run_settings({"algorithm": "flute", **named}, tmp_path / "run", resume=False)

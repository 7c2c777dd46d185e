"""Settings that look at more than a round's answers, over a network: the numbers of one machine."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

import commonground as cg
from commonground.cli import main
from commonground.config import RunConfig
from commonground.data.part import part_of
from commonground.engine.backends.message_client import MessageClient
from commonground.engine.backends.serialization import pack, unpack
from commonground.engine.prepare import prepare_setup
from commonground.engine.setup import Setup
from commonground.errors import ConfigError, RunError, UpdateError
from commonground.network import Answering, Limits, gather, train_over
from commonground.network.desk import Desk
from commonground.network.post import Letter
from commonground.network.running import run_settings
from commonground.network.tuning import HeadTuningStart, tuning_of, tuning_setup
from commonground.precision import computing_with
from commonground.privacy import Budget
from commonground.tasks import untuned_clients
from tests.helpers import made_data
from tests.network.test_network_engine import SETTINGS, data_of, over
from tests.network.town import Town


@pytest.mark.parametrize(
    ("algorithm", "more"),
    [
        ("fedrep", {"validation_fraction": 0.3}),
        ("fedavg", {"validation_fraction": 0.3, "early_stopping": 1, "rounds": 6, "lr": 0.9}),
        ("fedper", {"validation_fraction": 0.3, "early_stopping": 1, "rounds": 6, "lr": 0.9, "rank_by": "log_loss"}),
    ],
)
def test_validation_rows_judge_rounds_as_on_one_machine(algorithm: str, more: dict[str, Any], tmp_path: Path) -> None:
    data, settings = data_of(), {**SETTINGS, **more}
    here = cg.train(algorithm, data, engine="serial", out=tmp_path / "here", **settings)
    there = over(Town(data, tmp_path / "sites"), tmp_path / "run", algorithm=algorithm, **settings)
    same(here, there, tmp_path)
    for key in ("validation_accuracy", "validation_log_loss"):
        figures = [[row[key] for row in run.history if row.get(key) is not None] for run in (here, there)]
        assert figures[0] == pytest.approx(figures[1], rel=1e-5), key
    assert any(row["validation_accuracy"] is not None for row in there.history)
    stopped = [run.summary.get("early_stopping", {}) for run in (here, there)]
    assert [stop.get("best_round") for stop in stopped] == [stopped[0].get("best_round")] * 2
    assert not stopped[0] or stopped[0]["best_round"] < len(here.history)


@pytest.mark.parametrize(
    "more", [{}, {"finetune": "all"}, {"validation_fraction": 0.3, "early_stopping": 1, "rounds": 6, "lr": 0.9}]
)
def test_heads_are_tuned_as_on_one_machine(more: dict[str, Any], tmp_path: Path) -> None:
    settings = {**SETTINGS, "finetune_epochs": 2, **more}
    here = cg.train("fedavg", data_of(), engine="serial", out=tmp_path / "here", **settings)
    town, notes = Town(data_of(), tmp_path / "sites"), list[str]()
    for desk in town.desks.values():
        desk.note = notes.append
    there = over(town, tmp_path / "run", algorithm="fedavg", **settings)
    same(here, there, tmp_path)
    assert there.summary["personal_accuracy_of"] == here.summary["personal_accuracy_of"]
    (run,) = {path.name for folder in town.folders for path in (folder / "models").iterdir()}
    assert notes.count(f"takes part in the run {run}") == len(town.desks)
    assert len([note for note in notes if note.startswith(f"tunes its head after the run {run}, ")]) == len(town.desks)


def test_fewer_rounds_than_before_are_refused_before_anything_is_started(tmp_path: Path) -> None:
    settings = {**SETTINGS, "rounds": 3}
    over(Town(data_of(), tmp_path / "sites"), tmp_path / "run", algorithm="fedavg", **settings)
    with pytest.raises(
        RunError, match=r"has 3 rounds, of which 3 are done; it can go on with as many or more, not with 2"
    ):
        run_settings({"rounds": 2}, tmp_path / "run", resume=True)
    with pytest.raises(RunError, match="its learning rate follows the share of its rounds"):
        run_settings({"rounds": 4, "lr_schedule": "cosine"}, tmp_path / "run", resume=True)
    assert run_settings({"rounds": 4}, tmp_path / "run", resume=True)["rounds"] == 4


def test_a_client_that_is_away_while_heads_are_tuned_has_the_global_model(tmp_path: Path) -> None:
    town, settings = Town(data_of(), tmp_path / "sites"), {**SETTINGS, "finetune_epochs": 1}

    def silent(node: int, asked: Letter, answer: Letter) -> Letter | UpdateError:
        town.restart(node)  # what is tuned is in what the tuning begins with
        tuning = asked.kind == "ask" and b'\\"train\\"' in asked.body and b'\\"round\\": 4' in asked.body
        return UpdateError("it did not answer") if tuning and node == 102 else answer

    town.spoil = silent
    over(town, tmp_path / "run", algorithm="fedavg", **settings)
    untuned = cg.train("fedavg", data_of(), engine="serial", **SETTINGS)
    for client in (1, 2):
        own = cg.load_run(next((tmp_path / "sites" / f"client-{client}" / "models").iterdir()))
        x = data_of().x_test[:3]
        assert np.array_equal(own.predict(x, client=0), untuned.predict(x)) == (client == 2)


def test_a_server_that_stops_while_heads_are_tuned_is_continued(tmp_path: Path) -> None:
    town, settings = Town(data_of(), tmp_path / "sites"), {**SETTINGS, "finetune_epochs": 1}
    here = cg.train("fedavg", data_of(), engine="serial", **settings)

    def stop(node: int, asked: Letter, answer: Letter) -> Letter:
        if asked.kind == "ask" and b'\\"round\\": 4' in asked.body:
            raise KeyboardInterrupt
        return answer

    town.spoil = stop
    with pytest.raises(KeyboardInterrupt):
        over(town, tmp_path / "run", algorithm="fedavg", **settings)
    town.spoil = lambda node, asked, answer: answer
    run = over(town, tmp_path / "run", algorithm="fedavg", resume=True, **settings)
    assert run.summary["weights_sha256"] == here.summary["weights_sha256"]


def test_a_client_with_one_training_row_holds_none_out(tmp_path: Path) -> None:
    data = made_data((1, 9, 8), dtype=np.float32, client_names=["a", "b", "c"])
    settings = {**SETTINGS, "validation_fraction": 0.4, "rounds": 2}
    here = cg.train("fedper", data, engine="serial", **settings)
    there = over(Town(data, tmp_path / "sites"), tmp_path / "run", algorithm="fedper", **settings)
    assert there.summary["weights_sha256"] == here.summary["weights_sha256"]


@pytest.mark.parametrize(
    ("setting", "shown"), [({"metrics": "full"}, "--metrics full"), ({"class_weights": "balanced"}, "--class-weights")]
)
def test_what_somebody_would_have_to_see_all_samples_for_is_refused(
    setting: dict[str, Any], shown: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=f"{shown}.* is not possible where the clients' samples stay with them"):
        over(Town(data_of(), tmp_path / "sites"), tmp_path / "run", algorithm="fedavg", **SETTINGS, **setting)


def test_a_client_that_cannot_begin_says_why(tmp_path: Path) -> None:
    """A model that is code of its host, which its owner has not allowed."""
    path = tmp_path / "mine.py"
    settings = {**SETTINGS, "model": f"{path}:net"}
    path.write_text("from torch import nn\n\ndef net(shape, classes):\n    return nn.Linear(4, 3)\n")
    with pytest.raises(RunError, match=r"this client runs it only with --allow-code"):
        over(Town(data_of(), tmp_path / "sites"), tmp_path / "run", algorithm="fedavg", **settings)


def test_a_run_does_not_begin_again_with_other_settings(tmp_path: Path) -> None:
    over(Town(data_of(), tmp_path / "sites"), tmp_path / "run", algorithm="local", **{**SETTINGS, "rounds": 1})
    folder = tmp_path / "sites" / "client-0"
    text = next(folder.glob("runs/*/begin.json")).read_bytes()
    client = Answering(part_of(data_of(), [0]), "site 0", folder)
    client.begin(text)
    assert b'"number":0' in text
    with pytest.raises(UpdateError, match="has begun here with other settings"):
        client.begin(text.replace(b'"number":0', b'"number":1'))
    assert b'"rounds":1,' in text
    client.begin(text.replace(b'"rounds":1,', b'"rounds":7,'))  # a run may go on
    assert b'"rounds":7,' in next(folder.glob("runs/*/begin.json")).read_bytes()


@pytest.mark.parametrize("name", ["test_share", "test_seed"])
def test_test_rows_are_with_the_clients(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"--{name.replace('_', '-')} is not for a run over a network"):
        run_settings({"algorithm": "fedavg", name: 0}, tmp_path / "run", resume=False)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dp": "client"}, r"--dp client needs --dp-clip"),
        ({"dp": "client", "dp_clip": 1.0}, r"--dp client needs --dp-noise"),
        ({"dp": "example"}, r"--dp example needs --dp-clip"),
        ({"dp": "example", "dp_clip": 1.0}, r"--dp example needs --dp-noise"),
        ({"dp_clip": 1.0}, r"--dp-clip is a setting of differential privacy"),
        ({"algorithm": "fedproto", "dp": "client", "dp_clip": 1.0, "dp_noise": 1.0}, r"cannot make FedProto private"),
        ({"algorithm": "ditto", "batch_norm": "local"}, r"Ditto trains two models at each client"),
        ({"algorithm": "apfl", "optimizer": "adam"}, r"APFL takes steps of SGD alone"),
    ],
)
def test_what_settings_alone_make_impossible_is_refused_before_a_client_is_asked(
    settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        run_settings({"algorithm": "fedavg"} | settings, tmp_path / "run", resume=False)


def test_whose_model_is_kept_is_told_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In :func:`test_a_run_goes_on_with_the_data_that_it_began_with_alone` nothing is kept, and nothing told."""
    town, notes = Town(data_of(), tmp_path / "sites"), list[str]()
    for desk in town.desks.values():
        desk.answering.note = notes.append
    over(town, tmp_path / "run", algorithm="local", **{**SETTINGS, "rounds": 1})
    kept = sorted(str(next(folder.glob("models/*"))) for folder in town.folders)
    assert sorted(notes) == [f"the run is over; this client's model is in '{folder}'" for folder in kept]
    np.save(tmp_path / "new.npy", data_of().x_test[:5])
    for number, folder in enumerate(kept):
        capsys.readouterr()
        assert main(["predict", folder, str(tmp_path / "new.npy"), "--client", f"site {number}"]) == 0
        named = capsys.readouterr().out
        assert named.count("\n") == 6
        assert main(["predict", folder, str(tmp_path / "new.npy")]) == 0  # there is no other whose it could be
        assert capsys.readouterr().out == named


def test_a_run_goes_on_with_the_data_that_it_began_with_alone(tmp_path: Path) -> None:
    settings = {**SETTINGS, "algorithm": "local", "rounds": 1}
    over(Town(data_of(), tmp_path / "sites"), tmp_path / "run", **settings)
    folder = tmp_path / "sites" / "client-0"
    began = next(folder.glob("runs/*/begin.json"))
    run, own, notes = began.parent.name, part_of(data_of(), [0]), list[str]()
    other = replace(own, y_train=own.y_train[::-1].copy())
    Answering(own, "site 0", folder).begin(began.read_bytes())
    client = Answering(other, "site 0", folder, note=notes.append)
    with pytest.raises(UpdateError, match=r"^its data are others than those with which it began the run$") as refused:
        client.begin(began.read_bytes())
    desk: Desk[int] = Desk(client, notes.append)
    for number, kind in enumerate(("ask", "end") * 2):
        desk.take(number, Letter(kind, run, b""))
        assert b"its data are others than those" in desk.answers.get(timeout=10)[1].body
    desk.close()
    assert notes == [str(refused.value.__cause__)]  # once, and to the owner alone
    says = (
        rf"the run {run} began here with other data \(fingerprint {own.fingerprint()[:12]}, now .*\), and this client"
    )
    assert re.match(says, notes[0])
    began.with_name("data.sha256").unlink()  # as an earlier version left it
    client.begin(began.read_bytes())
    assert not began.with_name("data.sha256").exists()


LOCAL = {"dp": "client", "dp_clip": 0.5, "dp_noise": 2.0, "dp_where": "client", "dp_secret_noise": True}
EXAMPLE = {"dp": "example", "dp_clip": 0.5, "dp_noise": 2.0, "dp_secret_noise": True}


@pytest.mark.parametrize(
    ("demand", "least", "settings", "refused"),
    [
        ("client", 0.0, LOCAL, ""), ("client", 2.0, LOCAL, ""), ("example", 2.0, LOCAL, ""),
        ("example", 1.0, EXAMPLE, ""),
        ("client", 2.5, LOCAL, r"a --dp-noise of at least 2\.5 alone, as its owner demands, and this one has 2"),
        ("client", 0.0, EXAMPLE, r"in runs with --dp client --dp-where client alone, as its owner demands"),
        ("client", 0.0, LOCAL | {"dp_where": "server"}, r"with --dp client --dp-where client alone"),
        ("example", 0.0, LOCAL | {"dp_where": "server"}, r"--dp-where client or --dp example alone"),
        ("client", 0.0, {}, r"with --dp client --dp-where client alone"),
    ],
)  # fmt: skip
def test_a_client_takes_part_where_its_owners_demands_are_met(
    demand: Literal["client", "example"], least: float, settings: dict[str, Any], refused: str, tmp_path: Path
) -> None:
    config = {
        **SETTINGS,
        "algorithm": "fedavg",
        "data": "arrays",
        "clients": 4,
        "lr": 0.1,
        "optimizer": "sgd",
        **settings,
    }
    data = part_of(data_of(), [0])
    begin = {"run": "0" * 32, "config": config, "number": 0, "class_names": data.class_names}
    client = Answering(data, "site 0", tmp_path, demand=demand, least_noise=least)
    if refused:
        with pytest.raises(ConfigError, match=refused):
            client.begin(json.dumps(begin).encode())
        assert not client.has_begun("0" * 32)
    else:
        client.begin(json.dumps(begin).encode())


@pytest.mark.parametrize("kind", ["missing", "shape", "nan", "text", "unasked"])
def test_heads_that_cannot_be_are_refused(kind: str) -> None:
    setup = setup_of(finetune_epochs=0 if kind == "unasked" else 1)
    right = tuning_of("ab" * 16, setup_of().fine_tuning(setup.initial))
    head = unpack(base64.b64decode(right.head))[1]
    assert set(head) == {"head.weight", "head.bias"}
    changed = {
        "missing": {"head.weight": head["head.weight"]},
        "shape": {**head, "head.bias": head["head.bias"][:-1]},
        "nan": {**head, "head.bias": head["head.bias"] * float("nan")},
    }.get(kind, head)
    text = "§" if kind == "text" else base64.b64encode(pack({}, changed)).decode()
    with pytest.raises(UpdateError, match="head"):
        tuning_setup(setup, HeadTuningStart(run="ab" * 16, head=text))


def setup_of(finetune_epochs: int = 1) -> Setup:
    settings = {**SETTINGS, "algorithm": "fedavg", "data": "arrays", "finetune_epochs": finetune_epochs}
    return prepare_setup(RunConfig.make(settings), data_of())


def same(here: cg.Run, there: cg.Run, tmp_path: Path) -> None:
    data = data_of()
    assert there.summary["weights_sha256"] == here.summary["weights_sha256"]
    assert there.summary["metrics"]["accuracy"] == here.summary["metrics"]["accuracy"]
    for client in range(data.clients):  # whose model is that of the round that is kept
        own = cg.load_run(next((tmp_path / "sites" / f"client-{client}" / "models").iterdir()))
        x = data.x_test[data.test_indices(client)]
        assert np.array_equal(own.predict(x, client=0), here.predict(x, client=client))
        assert own.clients[0]["rounds"] == there.clients[client]["rounds"] > 0


class Away(Town):
    """A town in which a node is given no letter while it is away."""

    gone: frozenset[int] = frozenset()

    def exchange(
        self, letters: Mapping[int, Letter], seconds: float, check_stop: Callable[[], None] = lambda: None
    ) -> Iterator[tuple[int, Letter | UpdateError]]:
        missed = [node for node in letters if node in self.gone and self._is_last(letters[node])]
        yield from ((node, UpdateError("it is not there")) for node in missed)
        yield from super().exchange({n: one for n, one in letters.items() if n not in missed}, seconds, check_stop)

    def _is_last(self, letter: Letter) -> bool:
        """Of the tuning of heads (the round after the run's third), or of the end."""
        tunes = letter.kind == "begin" and bool(json.loads(letter.body).get("tuning"))
        return letter.kind == "end" or tunes or (letter.kind == "ask" and unpack(letter.body)[0].get("round") == 4)


def test_whose_head_was_not_tuned_is_told_and_gets_its_model_when_it_is_back(tmp_path: Path) -> None:
    town, settings = Away(data_of(), tmp_path / "sites"), {**SETTINGS, "finetune_epochs": 1}
    town.gone = frozenset({102})
    run = over(town, tmp_path / "run", algorithm="fedavg", **settings)
    ((name, why),) = run.summary["untuned_clients"].items()
    assert name == data_of().client_name(2)
    assert why.endswith("it is not there")
    assert run.summary["personal_accuracy_of"].endswith("of 1 client, who gave no answer to that, as it was before")
    assert untuned_clients(run.summary).startswith("with 1 client whose model could not be fine-tuned: 'site 2' (")
    kept = tmp_path / "sites" / "client-2" / "models"
    assert not kept.exists()
    town.gone = frozenset()
    again = over(town, tmp_path / "run", algorithm="fedavg", resume=True, **settings)
    assert run.summary["clients_without_model"] == {name: "it is not there"}
    assert again.summary == {key: value for key, value in run.summary.items() if key != "clients_without_model"}
    own, untuned = cg.load_run(next(kept.iterdir())), cg.train("fedavg", data_of(), engine="serial", **SETTINGS)
    x = data_of().x_test[:3]
    assert np.array_equal(own.predict(x, client=0), untuned.predict(x))


@pytest.mark.parametrize("silent", [0, 2])
def test_models_made_of_few_noisy_answers_hide_less(silent: int, tmp_path: Path) -> None:
    town = Town(data_of(), tmp_path / "sites")

    def lost(node: int, asked: Letter, answer: Letter) -> Letter | UpdateError:
        trains = asked.kind == "ask" and unpack(asked.body)[0].get("kind") == "train"
        away = trains and node in range(100, 100 + silent) and unpack(asked.body)[0]["round"] == 2
        return UpdateError("it did not answer") if away else answer

    town.spoil = lost
    noise = {"dp": "client", "dp_where": "client", "dp_clip": 1.0, "dp_noise": 1.0}
    run = over(town, tmp_path / "run", algorithm="fedavg", **{**SETTINGS, **noise})
    told, clients = run.summary["privacy"], data_of().clients
    assert [row["participants"] for row in run.history] == [clients, clients - silent, clients]
    few = Budget((clients - silent) ** 0.5, 3, clients, clients).epsilon(told["delta"])[0]
    assert told["epsilon_of_models"] == pytest.approx(few)
    assert told["epsilon"] == pytest.approx(Budget(1.0, 3, clients, clients).epsilon(told["delta"])[0])


def test_no_round_needs_more_answers_than_it_asks_for(tmp_path: Path) -> None:
    town = Town(data_of(), tmp_path / "sites")
    members, config = gather(town, 3, 10), RunConfig.make({"algorithm": "fedavg", "data": "arrays", **SETTINGS})
    with pytest.raises(ConfigError, match="--min-answers is 9, and a round asks 4 clients; no round would count"):
        train_over(town, config, members, Limits(min_answers=9), tmp_path / "run")


def test_a_run_computes_with_its_own_threads_beside_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client of two runs at once: each question in the threads of its run, and afterwards those there were."""
    town = Town(data_of(), tmp_path / "sites")
    for threads in (1, 2):
        over(town, tmp_path / f"run{threads}", algorithm="fedavg", **{**SETTINGS, "rounds": 1, "threads": threads})
    asked = [letter for node, letter, _ in town.letters if node == 100 and letter.kind in ("begin", "ask")]
    runs = list(dict.fromkeys(letter.run for letter in asked if letter.kind == "ask"))
    begun = [letter.body for letter in asked if letter.kind == "begin"]
    client = Answering(part_of(data_of(), [0]), data_of().client_name(0), tmp_path / "own")
    for body in begun:
        client.begin(body)
    assert len(client._clients) == 1  # one run at a time is in memory
    seen, usual = list[int](), MessageClient.handle

    def watched(self: MessageClient, message: bytes) -> bytes:
        seen.append(torch.get_num_threads())
        return usual(self, message)

    monkeypatch.setattr(MessageClient, "handle", watched)
    with computing_with("fp32", 3):
        for run, threads in zip(runs, (1, 2), strict=True):
            seen.clear()
            client.ask(run, next(one.body for one in asked if one.kind == "ask" and one.run == run))
            assert seen == [threads]
            assert torch.get_num_threads() == 3


def test_a_lost_reply_is_told_as_that(tmp_path: Path) -> None:
    town = Town(data_of(), tmp_path / "sites")

    def lost(node: int, asked: Letter, answer: Letter) -> Letter | UpdateError:
        reply = asked.kind == "ask" and unpack(asked.body)[0].get("kind") == "reply"
        return UpdateError("it did not answer") if reply and node == 102 and b"2" in asked.body else answer

    town.spoil = lost
    run = over(town, tmp_path / "run", algorithm="flute", **SETTINGS)
    ((_, told),) = run.summary["refused"].items()
    assert "its update counts, but what it kept of the round is dropped, as no reply came" in told["why"]

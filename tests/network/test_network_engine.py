"""Clients that answer over any transport: the numbers of ``serial``, and what becomes of those who fail."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import commonground as cg
from commonground.cli import main
from commonground.config import RunConfig
from commonground.console import result_table
from commonground.data import FederatedDataset
from commonground.data.arrays import Preprocess
from commonground.data.part import part_of
from commonground.engine import loop
from commonground.engine.backends.serialization import unpack
from commonground.engine.observer import Silent
from commonground.engine.run import Run
from commonground.errors import ConfigError, RunError, UpdateError
from commonground.network import Limits, Members, gather, train_over
from commonground.network.post import Letter
from commonground.report.write import write_report
from tests.helpers import made_data
from tests.language import token_data
from tests.network.town import Town
from tests.token_rows import minilm

FAST = Limits(seconds=20, patience=0.2, pause=0.01)


def data_of() -> FederatedDataset:
    return made_data((12, 7, 10, 15), dtype=np.float32, client_names=[f"site {c}" for c in range(4)])


def over(town: Town, out: Path, limits: Limits = FAST, resume: bool = False, **settings: Any) -> Run:
    members = Members.read(out / "network.json") if resume else gather(town, len(town.desks), 10)
    return train_over(town, RunConfig.make({"data": "arrays", **settings}), members, limits, out, resume=resume)


SETTINGS: dict[str, Any] = {"rounds": 3, "model": "mlp", "threads": 1, "batch_size": 8, "seed": 5}


@pytest.mark.parametrize(
    ("algorithm", "more"),
    [
        ("fedrep", {}), ("flute", {}), ("scaffold", {}), ("ditto", {}), ("fedcp", {}), ("l2gd", {"rounds": 6}),
        ("fedproto", {}), ("fedbn", {"model_options": {"norm": "batch"}}), ("fedavg", {"participation": 0.5}),
        ("fedavg", {"batch_norm": "local", "model_options": {"norm": "batch"}}), ("pfedme", {}), ("apfl", {}),
        ("fedavg", {"aggregate": "trimmed:0.25"}), ("fedrep", {"aggregate": "krum:0"}),
        ("ditto", {"aggregate": "median"}),
        ("rolora", {"options": {"rank": 2}}), ("flora", {"options": {"rank": 2, "downlink": "stack"}}),
    ],
)  # fmt: skip
def test_the_numbers_are_those_of_one_machine(algorithm: str, more: dict[str, Any], tmp_path: Path) -> None:
    data = data_of()
    settings = {**SETTINGS, **more}
    here = cg.train(algorithm, data, engine="serial", **settings)
    there = over(Town(data, tmp_path / "sites"), tmp_path / "run", algorithm=algorithm, **settings)
    assert there.summary["weights_sha256"] == here.summary["weights_sha256"]
    assert there.summary["engine"] == "network"
    assert there.summary["metrics"]["accuracy"] == here.summary["metrics"]["accuracy"]
    losses = [[row["test_loss"] for row in run.clients] for run in (there, here)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)  # here several clients' rows go through the model together
    assert [r["train_loss"] for r in there.history] == [r["train_loss"] for r in here.history]
    for client in range(data.clients):  # whose model is its own, on its own host
        own = cg.load_run(next((tmp_path / "sites" / f"client-{client}" / "models").iterdir()))
        assert own.summary["clients"] == 1
        assert own.clients[0]["name"] == f"site {client}"
        assert own.clients[0]["rounds"] == there.clients[client]["rounds"]
        assert ("untrained_clients" in own.summary) == (
            there.clients[client]["rounds"] == 0 and "untrained_clients" in there.summary
        )
        assert own.summary["engine"] == "network"
        assert not {"bytes_up", "bytes_down", "seconds"} & {*own.summary}
        x = data.x_test[data.test_indices(client)]
        assert np.array_equal(own.predict(x, client=0), here.predict(x, client=client))
        server = cg.load_run(tmp_path / "run")
        if here.trained.own(client):
            with pytest.raises(ConfigError, match="on the client's own host, and so is its model: in the folder"):
                server.predict(x, client=client)
            with pytest.raises(ConfigError, match="on the client's own host"):
                cg.export_model(server, tmp_path / "exported", client=client)
        else:
            assert np.array_equal(server.predict(x, client=client), here.predict(x, client=client))


def test_a_client_that_is_absent_loses_its_rounds_and_not_the_run(tmp_path: Path) -> None:
    """Silent in round 2: as if it had not been sampled then, in its own state as well."""
    data = data_of()
    town = Town(data, tmp_path / "sites")
    rounds: list[int] = []

    def lost(node: int, asked: Letter, answer: Letter) -> Letter | UpdateError:
        silent = node == 102 and asked.kind == "ask" and b'"train' in asked.body and b'\\"round\\": 2' in asked.body
        rounds.append(silent)
        return UpdateError("it did not answer") if silent else answer

    town.spoil = lost
    run = over(town, tmp_path / "run", algorithm="fedrep", **SETTINGS)
    assert sum(rounds) == 1
    assert run.summary["refused"] == {"site 2": {"rounds": 1, "why": run.summary["refused"]["site 2"]["why"]}}
    assert "site 2 in round 2" in run.summary["refused"]["site 2"]["why"]
    assert [r["participants"] for r in run.history] == [4, 3, 4]
    assert [r.get("missing") for r in run.history] == [None, 1, None]
    assert [row["rounds"] for row in run.clients] == [3, 3, 2, 3]
    assert "lost_clients" not in run.summary
    with monkey_sampling({2: [0, 1, 3]}):
        here = cg.train("fedrep", data, engine="serial", **SETTINGS)
    assert run.summary["weights_sha256"] == here.summary["weights_sha256"]


def test_a_robust_mean_of_too_few_answers_is_not_taken(tmp_path: Path) -> None:
    """Of three updates trimmed:0.25 would leave out none, and be a plain mean without a word."""
    town, settings = Town(data_of(), tmp_path / "sites"), {**SETTINGS, "aggregate": "trimmed:0.25"}
    town.spoil = lambda node, asked, answer: (
        UpdateError("it did not answer")
        if node == 102 and asked.kind == "ask" and b'\\"round\\": 2' in asked.body
        else answer
    )
    said = r"in round 2 3 of 4 clients gave .* and --aggregate trimmed:0\.25 needs 4: .* did not answer; continue with"
    with pytest.raises(RunError, match=said):
        over(town, tmp_path / "run", algorithm="fedavg", **settings)
    town.spoil = lambda node, asked, answer: answer
    run = over(town, tmp_path / "run", resume=True, algorithm="fedavg", **settings)
    here = cg.train("fedavg", data_of(), engine="serial", **settings)
    assert run.summary["weights_sha256"] == here.summary["weights_sha256"]


def test_a_client_that_is_lost_for_good_is_named(tmp_path: Path) -> None:
    town = Town(data_of(), tmp_path / "sites")
    town.spoil = lambda node, asked, answer: (
        UpdateError("nobody is there") if node == 101 and asked.kind == "ask" else answer
    )
    run = over(town, tmp_path / "run", algorithm="fedrep", **SETTINGS)
    assert run.summary["lost_clients"] == ["site 1"]
    assert "site 1 in round 3" in run.summary["lost_why"]["site 1"]
    assert run.summary["lost_why"]["site 1"].endswith("nobody is there")
    out = io.StringIO()
    Console(file=out, width=400).print(result_table(run))
    assert "mean over 3 of 4 clients" in out.getvalue()
    assert "without 1 client, whose last test did not count: 'site 1' (" in out.getvalue()
    page = write_report(tmp_path / "run").read_text("utf-8")
    assert "mean over 3 of 4 clients" in page
    assert "These figures are without 1 client, whose last test did not count" in page
    assert run.summary["refused"]["site 1"]["rounds"] == 3
    assert np.isfinite(run.summary["personal_accuracy"]["mean"])
    assert [row["personal_accuracy"] != "" for row in run.clients] == [True, False, True, True]
    assert all(row["test_samples"] > 0 for row in run.clients)  # which it holds all the same


def test_why_a_client_was_not_tested_is_told_of_a_global_model_too(tmp_path: Path) -> None:
    town = Town(data_of(), tmp_path / "sites")

    def lost(node: int, asked: Letter, answer: Letter) -> Letter | UpdateError:
        test = asked.kind == "ask" and b'"train' not in asked.body
        return UpdateError("nobody is there") if node == 101 and test else answer

    town.spoil = lost
    run = over(town, tmp_path / "run", algorithm="fedavg", **SETTINGS)
    assert run.summary["lost_clients"] == ["site 1"]
    assert run.summary["lost_why"]["site 1"].endswith("nobody is there")


def test_a_client_that_comes_too_late_is_told_of_once(tmp_path: Path) -> None:
    town, notes = Town(data_of(), tmp_path / "sites"), list[str]()
    late = town.desks.pop(103)
    members = gather(town, 3, 10)
    town.desks[103] = late

    class Hearing(Silent):
        def note(self, text: str) -> None:
            notes.append(text)

    config = RunConfig.make({"algorithm": "fedavg", "data": "arrays", **SETTINGS})
    train_over(town, config, members, FAST, tmp_path / "run", observer=Hearing())
    late_ones = [note for note in notes if "103" in note]
    assert late_ones == ["node 103 is there, and not in this run, which has begun without it; it may be in the next"]


def test_a_restarted_client_goes_on_where_it_was(tmp_path: Path) -> None:
    data = data_of()
    town = Town(data, tmp_path / "sites")

    def restart(node: int, asked: Letter, answer: Letter) -> Letter:
        if asked.kind == "ask":
            town.restart(node)
        return answer

    town.spoil = restart
    run = over(town, tmp_path / "run", algorithm="fedrep", **SETTINGS)
    here = cg.train("fedrep", data, engine="serial", **SETTINGS)
    assert run.summary["weights_sha256"] == here.summary["weights_sha256"]


def test_a_server_that_stops_is_continued(tmp_path: Path) -> None:
    data = data_of()
    town = Town(data, tmp_path / "sites")

    def stop(node: int, asked: Letter, answer: Letter) -> Letter:
        if asked.kind == "ask" and b'\\"round\\": 3' in asked.body:
            raise KeyboardInterrupt
        return answer

    town.spoil = stop
    with pytest.raises(KeyboardInterrupt):
        over(town, tmp_path / "run", algorithm="scaffold", **SETTINGS)
    town.spoil = lambda node, asked, answer: answer
    run = over(town, tmp_path / "run", algorithm="scaffold", resume=True, **SETTINGS)
    here = cg.train("scaffold", data, engine="serial", **SETTINGS)
    assert run.summary["weights_sha256"] == here.summary["weights_sha256"]


def test_no_personal_tensor_is_in_any_message(tmp_path: Path) -> None:
    for algorithm in ("fedrep", "fedper", "ditto"):
        town = Town(data_of(), tmp_path / algorithm)
        over(town, tmp_path / f"run {algorithm}", algorithm=algorithm, **SETTINGS)
        said = b"".join(answer.body for _, _, answer in town.letters)
        states = [f.read_bytes() for folder in town.folders for f in folder.rglob("round-*.safetensors")]
        assert states
        heads = 0
        for state in states:
            tail = state[-64:]  # the last numbers of what is kept: of a head, or of Ditto's own model
            heads += tail in said
        assert heads == 0, algorithm


@contextmanager
def monkey_sampling(rounds: Mapping[int, list[int]]) -> Iterator[None]:
    """Inside, these rounds have these participants."""
    true = loop.sample_clients
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "sample_clients", lambda c, n, round, *more: rounds.get(round) or true(c, n, round, *more))
        yield


def test_a_round_of_lora_sends_the_scheduled_factor_alone(tmp_path: Path) -> None:
    """RoLoRA on a real pretrained BERT of six layers: one factor a round goes either way, and the head."""
    pytest.importorskip("peft")
    data = token_data(2, sizes=(4, 5))
    data = replace(data, client_names=("north", "south"))
    settings: dict[str, Any] = {
        **SETTINGS, "model": f"hf:{minilm()}", "rounds": 2, "model_options": {"rank": 2}, "batch_size": 4,
    }  # fmt: skip
    here = cg.train("rolora", data, engine="serial", **settings)
    town = Town(data, tmp_path / "sites", tokenizer=f"hf:{minilm()}")
    there = over(town, tmp_path / "run", algorithm="rolora", **settings)
    assert there.summary["weights_sha256"] == here.summary["weights_sha256"]
    rounds: dict[int, set[str]] = {}
    for _, _, answer in town.letters:
        if answer.kind == "ok" and b'"safe' not in answer.body and b'\\"samples\\"' in answer.body:
            fields, tensors = unpack(answer.body)
            rounds.setdefault(fields["round"], set()).update(tensors)
            sent = sum(4 * value.numel() for value in tensors.values())
            assert len(answer.body) < 1.03 * sent + 40_000
    kinds = [{name.rsplit("lora_", 1)[-1][:1] for name in names if "lora_" in name} for names in rounds.values()]
    assert sorted(map(sorted, kinds)) == [["A"], ["B"]]
    asked = [letter.body for _, letter, _ in town.letters if letter.kind == "ask" and b'\\"round\\": 2' in letter.body]
    assert max(map(len, asked)) < 1_000_000  # of a model of 90 MB


def test_a_server_exports_the_global_model_of_a_run_with_one_client(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The client's own is on its host."""
    town = Town(part_of(data_of(), [0]), tmp_path / "sites")
    over(town, tmp_path / "run", algorithm="ditto", **SETTINGS | {"rounds": 1})
    assert main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "out")]) == 0
    assert "global" in capsys.readouterr().out


def test_classes_of_which_clients_tell_are_named_as_not_covered(tmp_path: Path) -> None:
    private = {"dp": "client", "dp_clip": 1.0, "dp_noise": 1.0, "rounds": 1}
    said = {}
    for counted in (True, False):  # whether the clients' own rows say them, or all know them beforehand
        town = Town(data_of(), tmp_path / f"sites-{counted}")
        for client, own in enumerate(town.data):
            town.data[client] = replace(own, counted_classes=counted)
            town.restart(100 + client)
        run = over(town, tmp_path / f"run-{counted}", algorithm="fedavg", **SETTINGS | private)
        said[counted] = run.summary["privacy"]["not_covered"]
    assert said[True].endswith(
        "; classes, which are made of what each client tells the server of its own rows and reach every client's model"
    )
    assert "classes" not in said[False]
    assert "that the clients brought" not in said[False]  # their samples are as they are stored


def test_what_clients_bring_with_them_is_named_as_not_covered(tmp_path: Path) -> None:
    """A schema that scales: the server sees what inputs are scaled by, and not of whose rows that was learnt."""
    private = {"dp": "client", "dp_clip": 1.0, "dp_noise": 1.0, "rounds": 1}
    town = Town(data_of(), tmp_path / "sites")
    for client, own in enumerate(town.data):
        town.data[client] = replace(own, preprocess=Preprocess(mean=(0.5,), std=(2.0,)))
        town.restart(100 + client)
    run = over(town, tmp_path / "run", algorithm="fedavg", **SETTINGS | private)
    assert (
        "; what a schema or data.json tells that the clients brought: of whose rows"
        in (run.summary["privacy"]["not_covered"])
    )


def test_a_loss_is_tried_on_rows_of_clients_alone(tmp_path: Path) -> None:
    """A server has no rows, and what it has in their place may have no loss: here log(y) of y = 0."""
    code = tmp_path / "deviance.py"
    code.write_text(
        "def deviance(output, y):\n    mu = output.exp()\n    return (y * (y / mu).log() - y + mu).sum(1)\n"
    )
    rng = np.random.default_rng(0)
    x = [rng.normal(size=(20, 4)).astype(np.float32) for _ in range(3)]
    y = [(1 + rng.random((20, 1))).astype(np.float32) for _ in range(3)]
    arrays = [(one[:15], two[:15], one[15:], two[15:]) for one, two in zip(x, y, strict=True)]
    data = cg.FederatedDataset.from_arrays(arrays, task="regression", client_names=("a", "b", "c"))
    settings = {**SETTINGS, "model": "mlp", "rounds": 1, "loss": f"{code}:deviance"}
    here = cg.train("fedavg", data, engine="serial", **settings)
    town = Town(data, tmp_path / "sites")
    for desk in town.desks.values():
        desk.answering.model_code = True
    there = over(town, tmp_path / "run", algorithm="fedavg", **settings)
    assert there.summary["weights_sha256"] == here.summary["weights_sha256"]


def test_texts_of_clients_are_as_long_as_the_longest_of_all(tmp_path: Path) -> None:
    """Each host reads its own table, and the run is that on one machine with the joined one."""
    pytest.importorskip("peft")
    read: dict[str, Any] = {"client_column": "site", "text_column": "text", "label": "label"}
    read |= {"tokenizer": f"hf:{minilm()}"}
    lines = ["site\ttext\tlabel\tsplit"]
    for site, longest in (("north", 3), ("south", 9), ("west", 6)):
        for row in range(6):
            words = " ".join(["good" if row % 2 else "bad"] * (1 + row * longest // 5))
            lines.append(f"{site}\t{words}\t{'yes' if row % 2 else 'no'}\t{'test' if row > 3 else 'train'}")
    joined = tmp_path / "joined.tsv"
    joined.write_text("\n".join(lines))
    data = cg.load_data(joined, **read)
    town = Town(data, tmp_path / "sites", tokenizer=f"hf:{minilm()}")
    for client, name in enumerate(data.client_names or ()):
        own = tmp_path / f"{name}.tsv"
        own.write_text("\n".join(line for line in lines if line.startswith((f"{name}\t", "site\t"))))
        town.data[client] = replace(cg.load_data(own, **read), name=data.name)
        town.restart(100 + client)
    assert len({own.x_train.shape[1] for own in town.data}) == 3
    settings: dict[str, Any] = {
        **SETTINGS, "model": f"hf:{minilm()}", "rounds": 1, "model_options": {"rank": 2}, "batch_size": 4,
    }  # fmt: skip
    here = cg.train("lora", data, engine="serial", **settings)
    there = over(town, tmp_path / "run", algorithm="lora", **settings)
    assert there.summary["weights_sha256"] == here.summary["weights_sha256"]
    assert there.personal_accuracy == here.personal_accuracy
    begun = next((tmp_path / "sites" / "client-1" / "runs").glob("*/begin.json"))
    told = json.loads(begun.read_text())
    del told["tokens"]  # as an earlier version kept it
    begun.write_text(json.dumps(told))
    town.restart(101)  # a client that is started again pads its texts again
    more = over(town, tmp_path / "run", resume=True, algorithm="lora", **settings | {"rounds": 2})
    here = cg.train("lora", data, engine="serial", **settings | {"rounds": 2})
    assert more.summary["weights_sha256"] == here.summary["weights_sha256"]


@pytest.mark.parametrize("algorithm", ["fedrep", "scaffold"])
def test_a_finished_run_goes_on_with_more_rounds(algorithm: str, tmp_path: Path) -> None:
    data, settings = data_of(), {**SETTINGS, "algorithm": algorithm}
    town = Town(data, tmp_path / "sites")
    over(town, tmp_path / "run", **settings | {"rounds": 2})
    town.restart(101)
    more = over(town, tmp_path / "run", resume=True, **settings | {"rounds": 4})
    here = cg.train(algorithm, data, engine="serial", **SETTINGS | {"rounds": 4})
    assert more.summary["weights_sha256"] == here.summary["weights_sha256"]


def test_a_servers_folder_is_not_served(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of which no request could be answered: the models are with the clients, whose folders are."""
    pytest.importorskip("uvicorn")
    out = tmp_path / "run"
    over(Town(data_of(), tmp_path / "sites"), out, algorithm="fedrep", **SETTINGS)
    for wanted in (["--token-for", "site 1"], ["--port", "0"]):
        assert main(["serve", str(out), *wanted]) == 2
        printed = capsys.readouterr()
        assert "is on the client's own host, and so is its model: in the folder 'models' there" in printed.err
        assert not printed.out
    own = next((tmp_path / "sites" / "client-1" / "models").iterdir())
    assert main(["serve", str(own), "--token-for", "site 1"]) == 0
    over(Town(data_of(), tmp_path / "others"), tmp_path / "one", algorithm="fedavg", **SETTINGS)
    assert main(["serve", str(tmp_path / "one"), "--token-for", "site 1"]) == 0

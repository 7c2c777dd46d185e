"""New clients that stay: asked by name ever after, from another process too, and nobody else is changed by them."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import commonground as cg
from commonground.algorithms import registry
from commonground.algorithms.head_tuning import HeadTuning
from commonground.cli import main
from commonground.data.arrays import Preprocess
from commonground.engine.added import AddedClients
from commonground.engine.backends import factory
from commonground.engine.network import plain_algorithm
from commonground.engine.state.tokens import Tokens
from commonground.errors import ConfigError, DataError, RunError
from tests.helpers import made_data

SETTINGS: dict[str, Any] = {"clients": 5, "classes_per_client": 3, "rounds": 2, "engine": "serial", "seed": 1}


def trained(folder: Path, algorithm: str = "fedrep", **more: Any) -> cg.Run:
    return cg.train(algorithm, "digits", out=folder, **SETTINGS | more)


def newcomers(clients: int = 3, seed: int = 9) -> cg.FederatedDataset:
    return cg.load_data("digits", clients, classes_per_client=2, seed=seed)


@pytest.mark.parametrize("algorithm", ["fedrep", "fedavg", "fedrod", "lg-fedavg"])
def test_added_clients_answer(algorithm: str, tmp_path: Path) -> None:
    run, data = trained(tmp_path, algorithm), newcomers()
    files = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    kept = cg.keep_clients(run, data, seed=4)
    assert kept.names == ("new-0", "new-1", "new-2")
    assert {p: p.read_bytes() for p in files} == files, "the run itself stays as it is"
    own = []
    for c, name in enumerate(kept.names):
        rows = data.test_indices(c)
        said = kept.run.predict(data.x_test[rows], name)
        own.append((said.argmax(1) == data.y_test[rows]).mean())
        again = cg.load_run(tmp_path)
        np.testing.assert_array_equal(again.predict(data.x_test[rows], name), said)
    assert kept.mean == pytest.approx(np.mean(own))
    assert np.mean(own) > 0.8
    cg.export_model(kept.run, tmp_path / "taken", client="new-1")
    taken = cg.load_exported(tmp_path / "taken")
    np.testing.assert_array_equal(taken.predict(data.x_test[:9]), kept.run.predict(data.x_test[:9], "new-1"))
    body = run.trained.body()
    model = kept.run.model("new-1").state_dict()
    assert all(torch.equal(model[name], value) for name, value in body.items())
    head = [name for name in model if name not in body]
    assert head
    assert not any(torch.equal(model[n], kept.run.model("new-2").state_dict()[n]) for n in head if "weight" in n)


@pytest.mark.parametrize(
    ("algorithm", "more"),
    [
        ("lora", {}),
        ("flora", {"options": {"head": "frozen"}}),
        ("lora", {"options": {"head": "shared"}, "finetune_epochs": 1}),
    ],
)
def test_added_clients_take_their_factors_along(algorithm: str, more: dict[str, Any], tmp_path: Path) -> None:
    data = newcomers(1)
    kept = cg.keep_clients(trained(tmp_path, algorithm, **more), data, epochs=2)
    said = kept.run.predict(data.x_test[:9], "new-0")
    np.testing.assert_array_equal(cg.load_run(tmp_path).predict(data.x_test[:9], "new-0"), said)
    cg.export_model(kept.run, tmp_path / "taken", client="new-0")
    np.testing.assert_array_equal(cg.load_exported(tmp_path / "taken").predict(data.x_test[:9]), said)


@pytest.mark.parametrize(
    "of_the_server", [{"weighting": "samples"}, {"server_optimizer": "momentum"}, {"aggregate": "median"}]
)
def test_whatever_the_server_did_with_updates(of_the_server: dict[str, Any], tmp_path: Path) -> None:
    kept = cg.keep_clients(trained(tmp_path, "fedavg", **of_the_server), newcomers(1), epochs=1)
    assert kept.run.trained.known.names[-1] == "new-0"


def test_more_of_them_and_one_again(tmp_path: Path) -> None:
    run, data = trained(tmp_path), newcomers(2)
    once = cg.keep_clients(run, data, epochs=1)
    twice = cg.keep_clients(once.run, newcomers(2, seed=5), epochs=1)
    assert twice.run.trained.known.names == ["0", "1", "2", "3", "4", "new-0", "new-1", "new-2", "new-3"]
    x = data.x_test[:20]
    before = {name: once.run.predict(x, name) for name in ("new-0", "new-1")}
    np.testing.assert_array_equal(before["new-1"], twice.run.predict(x, "new-1"))
    clients = [(data.x_train[i], data.y_train[i], data.x_test[j], data.y_test[j]) for i, j in parts(data)]
    names = ["new-1", "else"]
    named = cg.FederatedDataset.from_arrays(clients, classes=10, client_names=names, preprocess=data.preprocess)
    third = cg.keep_clients(twice.run, named, epochs=3)
    assert third.run.trained.known.names[-1] == "else"
    assert len(third.run.trained.known.names) == 10
    assert not np.array_equal(third.run.predict(x, "new-1"), before["new-1"])
    np.testing.assert_array_equal(third.run.predict(x, "new-0"), before["new-0"])
    with pytest.raises(RunError, match=r"have got new heads, or have left it, since it was read: read it again"):
        once.run.predict(x, "new-1")


def parts(data: cg.FederatedDataset) -> list[tuple[Any, Any]]:
    return [(data.train_indices(c), data.test_indices(c)) for c in range(data.clients)]


def test_more_rounds_make_the_heads_void(tmp_path: Path) -> None:
    cg.keep_clients(trained(tmp_path), newcomers(2), epochs=1)
    settings = SETTINGS | {"rounds": 3}
    longer = cg.train("fedrep", "digits", out=tmp_path, resume=True, **settings)
    with pytest.raises(ConfigError, match=r"'new-1' was added to .* before its last rounds"):
        longer.predict(newcomers(2).x_test[:2], "new-1")
    with pytest.raises(ConfigError, match="add it again"):
        cg.load_run(tmp_path).model("new-0")
    again = cg.keep_clients(cg.load_run(tmp_path), newcomers(1), epochs=1).run
    assert again.trained.known.names[5:] == ["new-2"], "those before are gone: their heads are of no use"
    assert again.predict(newcomers(2).x_test[:2], "new-2").shape == (2, 10)


def test_refusals(tmp_path: Path) -> None:
    data = newcomers(2)
    with pytest.raises(ConfigError, match="this run is in none; train with out="):
        cg.keep_clients(cg.train("fedrep", "digits", **SETTINGS), data)
    run = trained(tmp_path / "run")
    few = [(data.x_train[:9], np.arange(9) % 2, data.x_test[:4], np.arange(4) % 2)]
    with pytest.raises(
        ConfigError, match=r"has the classes '0', .*, and the new clients' data 2 of them, or in another order"
    ):
        cg.keep_clients(run, cg.FederatedDataset.from_arrays(few, preprocess=data.preprocess))
    clients = [(data.x_train[i], data.y_train[i], data.x_test[j], data.y_test[j]) for i, j in parts(data)]
    taken = cg.FederatedDataset.from_arrays(clients, classes=10, client_names=["3", "x"], preprocess=data.preprocess)
    with pytest.raises(ConfigError, match="has trained a client '3' already"):
        cg.keep_clients(run, taken)
    assert not (tmp_path / "run" / "added").exists()


def test_one_after_the_other_on_the_same_run(tmp_path: Path) -> None:
    """Whether the run is one object, one that was read before, or its folder; and what was given back before."""
    run, data = trained(tmp_path / "run"), newcomers(1)
    (parts_of,) = [(data.x_train[i], data.y_train[i], data.x_test[j], data.y_test[j]) for i, j in parts(data)]

    def named(*names: str) -> cg.FederatedDataset:
        return cg.FederatedDataset.from_arrays(
            [parts_of] * len(names), classes=10, client_names=names, preprocess=data.preprocess
        )

    other = cg.load_run(tmp_path / "run")
    assert other.trained.known.names == [str(c) for c in range(5)]
    first = cg.keep_clients(run, named("anna"), epochs=1)
    cg.keep_clients(run, named("bert"), epochs=1)
    cg.keep_clients(other, named("cora"), epochs=1)
    cg.keep_clients(tmp_path / "run", data, epochs=1)
    assert cg.keep_clients(str(tmp_path / "run"), data, epochs=1).names == ("new-4",)
    everyone = [str(c) for c in range(5)] + ["anna", "bert", "cora", "new-3", "new-4"]
    assert cg.load_run(tmp_path / "run").trained.known.names == everyone
    for known in (first.run, cg.load_run(tmp_path / "run")):
        assert {name for name in everyone if known.predict(data.x_test[:2], name).shape == (2, 10)} == set(everyone)
    assert run.trained.known.names[5:] == ["anna", "bert"], "what it knows of by itself"


def test_numbers_go_on_after_those_that_another_one_adds_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, make = trained(tmp_path), factory.make_engine
    others: list[str] = []

    def making(*args: Any) -> Any:
        if not others:
            others.append("busy")
            others[:] = cg.keep_clients(tmp_path, newcomers(2), epochs=1).names
        return make(*args)

    monkeypatch.setattr(import_module("commonground.adapt.few_shot"), "make_engine", making)
    assert cg.keep_clients(run, newcomers(1), epochs=1).names == ("new-2",)
    assert others == ["new-0", "new-1"]
    assert cg.load_run(tmp_path).trained.known.names[5:] == ["new-0", "new-1", "new-2"]


def test_a_number_is_a_client_only_where_no_name_is_one(tmp_path: Path) -> None:
    """Clients called 10, 11, 12 have no client 2, and a new one is not called as another one's number."""
    data = newcomers(2)
    clients = [(data.x_train[i], data.y_train[i], data.x_test[j], data.y_test[j]) for i, j in parts(data)]

    def named(*names: str) -> cg.FederatedDataset:
        return cg.FederatedDataset.from_arrays(clients, classes=10, client_names=names, preprocess=data.preprocess)

    numbers = cg.train("fedrep", named("10", "11"), rounds=1, out=tmp_path / "numbers")
    assert numbers.trained.known.number(11) == numbers.trained.known.number("11") == 1
    for name in (1, "1", 0):
        with pytest.raises(ConfigError, match=rf"has no client '{name}'"):
            numbers.model(name)
    assert cg.keep_clients(numbers, named("1", "x"), epochs=1).run.trained.known.number("1") == 2
    words = cg.train("fedrep", named("a", "b"), rounds=1, out=tmp_path / "words")
    assert words.trained.known.number(1) == words.trained.known.number("1") == 1
    with pytest.raises(ConfigError, match="has no client '1'"):
        words.trained.known.number("1", by_number=False)
    with pytest.raises(ConfigError, match="cannot be called '1', which is the number of client 'b'"):
        cg.keep_clients(words, named("1", "x"), epochs=1)
    with pytest.raises(ConfigError, match="cannot be called 'all'"):
        cg.keep_clients(words, named("all", "x"), epochs=1)
    again = cg.keep_clients(words, named("2", "x"), epochs=1).run  # there is no third client
    assert again.trained.known.number("2") == 2
    done = cg.export_model(again, tmp_path / "everyone", client="all")
    assert [each.client for each in done] == [0, 1, 2, 3]
    assert sorted(path.name for path in (tmp_path / "everyone").iterdir()) == [f"client-{c}" for c in range(4)]


@pytest.mark.parametrize("damage", ["index cut", "segment flipped", "segment gone", "names swapped"])
def test_damage_is_said(damage: str, tmp_path: Path) -> None:
    cg.keep_clients(trained(tmp_path), newcomers(2), epochs=1)
    index, segment = tmp_path / "added" / "clients.json", tmp_path / "added" / "heads-000001.safetensors"
    if damage == "index cut":
        index.write_text(index.read_text()[:60])
    elif damage == "segment gone":
        segment.unlink()
    elif damage == "segment flipped":
        raw = bytearray(segment.read_bytes())
        raw[-40] ^= 1
        segment.write_bytes(raw)
    else:
        read = json.loads(index.read_text())
        read["names"] = read["names"][::-1]
        index.write_text(json.dumps(read))
    with pytest.raises(RunError):
        [cg.load_run(tmp_path).model(name) for name in ("new-0", "new-1")]


def test_a_table_by_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)

    def write(name: str, shops: list[str]) -> Path:
        x = rng.normal(size=(40 * len(shops), 2))
        lines = ["shop,a,b,label"]
        lines += [
            f"{shops[i % len(shops)]},{p:.4f},{q:.4f},{'yes' if p + q > 0 else 'no'}" for i, (p, q) in enumerate(x)
        ]
        (tmp_path / name).write_text("\n".join(lines) + "\n")
        return tmp_path / name

    run = str(tmp_path / "run")
    columns = ["--client-column", "shop", "--target", "label"]
    old, new = write("old.csv", ["north", "south"]), write("new.csv", ["east", "west"])
    assert main(["train", "fedrep", "--data", str(old), *columns, "--rounds", "5", "--quiet", "--out", run]) == 0
    assert main(["adapt", run, "--data", str(new)]) == 2
    assert "give --shots K[,K…], --keep, or both" in capsys.readouterr().err
    assert main(["adapt", run, "--data", str(new), "--keep"]) == 0
    assert "2 clients added to the run: 'east', 'west'; accuracy" in " ".join(capsys.readouterr().out.split())
    one = str(write("one.csv", ["farout"]))
    assert main(["adapt", run, "--data", one, "--keep", "--shots", "3"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "1 client added to the run: 'farout'; accuracy" in told
    assert "1 new client of" in told
    assert "±" not in told  # of a single client there is no deviation
    assert main(["export", run, "--client", "farout", "--out", str(tmp_path / "farout")]) == 0
    assert "client 'farout'" in " ".join(capsys.readouterr().out.split())
    assert (
        "client number 4 (the first is 0)'s own, of 5 clients" in (tmp_path / "farout" / "README.md").read_text()
    )  # which names nobody
    assert main(["predict", run, str(new), "--out", str(tmp_path / "said.csv")]) == 0
    said = (tmp_path / "said.csv").read_text().splitlines()
    assert len(said) == 81
    told = capsys.readouterr().err
    assert "'east', 'west' came after the run, with heads trained on rows that may be among these; how good" in told
    assert main(["predict", run, str(old), "--out", str(tmp_path / "said.csv")]) == 0
    assert "came after the run" not in capsys.readouterr().err
    assert main(["adapt", run, "--data", str(new), "--keep"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "'east', 'west' (with new heads in place of earlier ones: 'east', 'west'); accuracy" in told
    assert main(["export", run, "--client", "east", "--out", str(tmp_path / "east"), "--quiet"]) == 0
    assert cg.load_exported(tmp_path / "east").schema is not None


def test_none_added(tmp_path: Path) -> None:
    added = AddedClients.read(tmp_path, "abc")
    assert (added.names, added.weights, added.segments) == ((), "abc", ())


def test_clients_whose_samples_are_stored_otherwise_are_tried_and_not_kept(tmp_path: Path) -> None:
    """Pictures as fractions are what a run on bytes would take for black; each is scaled its own way."""
    rng = np.random.default_rng(0)

    def clients(divisor: int) -> cg.FederatedDataset:
        made = []
        for _ in range(3):
            y = np.arange(40) % 2
            x = (rng.integers(0, 60, (40, 4, 4, 1)) + 150 * y[:, None, None, None]).astype(np.uint8)
            x = x if divisor == 1 else (x / np.float32(divisor)).astype(np.float32)
            made.append((x[:30], y[:30], x[30:], y[30:]))
        return cg.FederatedDataset.from_arrays(
            made, classes=2, preprocess=Preprocess(scale=1 / 255) if divisor == 1 else None
        )

    run = cg.train("fedavg", clients(1), rounds=20, out=tmp_path, model="mlp")
    found = cg.adapt(run, clients(255), [20], repeats=1)
    assert min(result.mean for result in found) > 0.9
    with pytest.raises(DataError, match="are stored otherwise than those of the run"):
        cg.keep_clients(run, clients(255))


def test_no_file_of_a_users_is_run_to_build_the_network_of_a_newcomer(tmp_path: Path) -> None:
    file, ran = tmp_path / "mine.py", tmp_path / "ran"
    file.write_text(
        "from commonground.algorithms.fedavg import FedAvg\n\n\nclass Mine(FedAvg):\n    name = 'mine'\n"
        "    title = 'Mine'\n    source = 'here'\n"
    )
    try:
        run = cg.train(f"{file}:Mine", made_data(), model="mlp", rounds=1, finetune_epochs=1, out=tmp_path / "run")
    finally:
        registry.pop("mine", None)
    file.write_text(f"open({str(ran)!r}, 'w').close()\n" + file.read_text())
    assert isinstance(run.trained.algorithm, HeadTuning)
    assert plain_algorithm(run.config, run.trained.algorithm).name == "local"
    assert not ran.exists()


def test_who_was_kept_can_leave_again(tmp_path: Path) -> None:
    """Its head is in no file any more, nor the one that it had before; the others answer as they did."""
    run = trained(tmp_path / "run")
    x = newcomers().x_test[:9]
    kept = cg.keep_clients(run, newcomers(), seed=4).run
    kept = cg.keep_clients(kept, replace(newcomers(1), client_names=("anna",))).run
    heads = {name: kept.trained.values_of(kept.trained.known.number(name)) for name in ("new-1", "anna")}
    answers = {name: kept.predict(x, name) for name in ("new-0", "new-2", "anna", 0)}
    tokens = Tokens(tmp_path / "run")
    hers, other = tokens.issue("new-1"), tokens.issue("new-0")

    left = cg.forget_clients(kept, ["new-1"])
    for known in (left, cg.load_run(tmp_path / "run")):
        assert [*known.trained.known.names][-3:] == ["new-0", "new-2", "anna"]
        for name, said in answers.items():
            np.testing.assert_array_equal(known.predict(x, name), said)
        with pytest.raises(ConfigError, match="new-1"):
            known.predict(x, "new-1")
    written = b"".join(path.read_bytes() for path in (tmp_path / "run" / "added").iterdir())
    assert row_of(heads["anna"]) in written
    assert row_of(heads["new-1"]) not in written
    assert (tokens.whose(hers), tokens.whose(other)) == (None, "new-0")
    assert cg.keep_clients(left, newcomers(1)).names == ("new-3",)  # no name is given twice


def row_of(model: cg.Tensors) -> bytes:
    """Of a client's head, the last layer, what its file holds as it is."""
    return [value for name, value in model.items() if name.endswith("weight")][-1].numpy().tobytes()


def test_a_renewed_head_leaves_the_files(tmp_path: Path) -> None:
    run = trained(tmp_path)
    kept = cg.keep_clients(run, newcomers(2), seed=4).run
    before = kept.trained.values_of(kept.trained.known.number("new-0"))
    again = cg.keep_clients(kept, replace(newcomers(1, seed=3), client_names=("new-0",)))
    assert again.renewed == ("new-0",)
    written = b"".join(path.read_bytes() for path in (tmp_path / "added").iterdir())
    assert row_of(before) not in written
    assert row_of(again.run.trained.values_of(again.run.trained.known.number("new-0"))) in written


def test_who_can_not_leave(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(tmp_path)
    cg.keep_clients(run, newcomers(1))
    with pytest.raises(ConfigError, match=r"has trained the run .* and what it taught the shared model stays in it"):
        cg.forget_clients(tmp_path, ["0"])
    with pytest.raises(ConfigError, match="nobody"):
        cg.forget_clients(tmp_path, ["new-0", "nobody"])
    assert "new-0" in cg.load_run(tmp_path).trained.known.names  # all or none
    assert main(["adapt", str(tmp_path), "--forget", "new-0", "--shots", "3"]) == 2
    assert "--forget needs nothing but the run and names; leave out --shots" in capsys.readouterr().err
    assert main(["adapt", str(tmp_path), "--forget", "new-0"]) == 0
    assert "'new-0', with its head and its tokens for a service" in capsys.readouterr().err
    assert cg.load_run(tmp_path).trained.added.names == ()
    assert [path.name for path in (tmp_path / "added").iterdir()] == ["clients.json"]

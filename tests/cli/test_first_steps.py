"""What newcomers do wrong, or expect: each of these once gave a wrong answer in silence, or a traceback."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import commonground as cg
from commonground.cli import main
from commonground.config import RunConfig
from commonground.engine import load_run
from commonground.errors import ConfigError, DataError, ModelError
from commonground.models.lora_options import LoRAOptions
from tests.helpers import made_data
from tests.language import tiny_model, token_data


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs a command that must be refused with one sentence, which is returned."""

    def refused(*args: str) -> str:
        assert main(list(args)) == 2
        text = capsys.readouterr().err
        assert text.count("\n") == 1
        return text

    return refused


def test_the_rank_of_a_pretrained_model_is_the_models(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    model = tiny_model("bert", tmp_path / "bert")
    for name in ("rank", "alpha"):
        with pytest.raises(ConfigError, match=rf"--set model\.{name}=2"):
            cg.train("rolora", token_data(), model=model, rounds=1, options={name: 2})
    plain = cg.train("lora", made_data(), model="mlp", rounds=1, options={"rank": 2})
    assert {v.shape[0] for n, v in plain.shared.items() if n.endswith("lora_A")} == {2}
    usual = cg.train("lora", made_data(shape=(9,)), model="mlp", rounds=1)
    assert {v.shape[0] for n, v in usual.shared.items() if n.endswith("lora_A")} == {8}


def test_layers_that_run_backwards() -> None:
    assert LoRAOptions(layers="1,3-5").layers == [1, 3, 4, 5]
    with pytest.raises(ConfigError, match="runs backwards from 3 to 1; write 1-3"):
        LoRAOptions(layers="3-1")


def test_a_folder_keeps_its_reproduction(tmp_path: Path, said: Any) -> None:
    out = str(tmp_path / "one")
    small = ["--set", "n=10", "--set", "rounds=5", "--set", "m=[3]", "--seeds", "2", "--quiet"]
    assert main(["reproduce", "fedrep-theorem1", *small, "--out", out]) == 0
    before = (tmp_path / "one" / "reproduction.json").read_text()
    assert "here d = 10, k = 2, n = 10" in json.loads(before)["notes"][0]
    assert "already holds fedrep-theorem1, not flute-fig3" in said("reproduce", "flute-fig3", "--out", out)
    again = tmp_path / "again"
    again.mkdir()
    (again / "reruns.json").write_text("{}")
    assert "holds cells measured again (--rerun); choose" in said("reproduce", "flute-fig3", "--out", str(again))
    text = said("reproduce", "fedrep-theorem1", *small, "--seeds", "3", "--out", out)
    assert "holds fedrep-theorem1 with --seeds 2, not 3" in text
    assert "with --set" in said("reproduce", "fedrep-theorem1", *small, "--set", "d=8", "--out", out)
    (tmp_path / "file").write_text("")
    assert "is a file" in said("reproduce", "fedrep-theorem1", "--out", str(tmp_path / "file"))
    assert (tmp_path / "one" / "reproduction.json").read_text() == before
    assert main(["reproduce", "fedrep-theorem1", *small, "--out", out]) == 0


def test_too_little_memory_is_one_sentence(tmp_path: Path, said: Any) -> None:
    asked = ["--set", "d=1000000000000", "--seeds", "2", "--out", str(tmp_path / "r")]
    assert "needs more memory than there is" in said("reproduce", "fedrep-theorem1", *asked)


def test_resuming_nothing_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = ["--clients", "3", "--classes-per-client", "4", "--rounds", "1"]
    assert main(["train", "fedavg", *few, "--resume", "--out", str(tmp_path / "new")]) == 0
    assert f"there is no run in '{tmp_path / 'new'}' yet" in capsys.readouterr().err


def test_clients_with_names_have_numbers_too(tmp_path: Path) -> None:
    cases: list[tuple[str, dict[str | int, int], tuple[str | int, ...]]] = [
        ("c", {"a": 0, "1": 1, 1: 1, "2": 2, "c": 2}, ("3", "-1", "d")),
        ("0", {"a": 0, "0": 2}, ("1", 1, "2", "3", "-1", "c")),  # a number of no name
    ]
    for last, known, wrongs in cases:
        data = made_data((4, 5, 6), client_names=["a", "b", last])
        cg.train("fedavg", data, model="linear", rounds=1, out=tmp_path / last)
        run = load_run(tmp_path / last)
        assert {name: run.trained.known.number(name) for name in known} == known
        for wrong in wrongs:
            with pytest.raises(ConfigError, match="has no client"):
                run.trained.known.number(wrong)
    with pytest.raises(ConfigError, match="0 is the name of one client and the number of another, 'a'"):
        run.trained.known.number(0)


def test_samples_are_answered_by_the_client_of_the_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also where names are other clients' numbers."""
    data = made_data((4, 5, 6, 7), client_names=["1", "2", "3", "4"])
    run = cg.train("local", data, model="linear", rounds=3, lr=0.5, out=tmp_path / "run")
    np.save(tmp_path / "x.npy", data.x_test[:3])
    for name in ("1", "2", "4"):
        assert main(["predict", str(tmp_path / "run"), "--client", name, "--input", str(tmp_path / "x.npy")]) == 0
        told = [float(line.split(",")[-1]) for line in capsys.readouterr().out.splitlines()[1:]]
        assert told == pytest.approx(run.predict(data.x_test[:3], name).max(1), abs=1e-5)


def test_predict_names_the_cell_and_the_unfinished_run(
    tmp_path: Path, said: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    cg.train("fedavg", made_data(), model="linear", rounds=2, out=tmp_path / "run")
    table = tmp_path / "t.csv"
    asked = ["predict", str(tmp_path / "run"), "--client", "0", "--input", str(table)]
    table.write_text("f1,f2,f3,f4\n1,2,3,4\n5,6,x,8\n")
    assert "row 3: column 3 is 'x', no number" in said(*asked)
    table.write_text("1,2,3,4\n5,6,7,8\n")
    assert main(asked) == 0
    assert capsys.readouterr().err == ""
    for name in ("summary.json", "clients.csv"):  # as before the run's end
        (tmp_path / "run" / name).unlink()
    assert main(asked) == 0
    printed = capsys.readouterr()
    assert "is not finished: these are its models at the last checkpoint" in printed.err
    assert printed.out.count("\n") == 3
    assert main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "out")]) == 0
    assert "is not finished: these are its models at the last checkpoint" in capsys.readouterr().err
    assert "| rounds | some of 2: the run is not finished |" in (tmp_path / "out" / "README.md").read_text("utf-8")
    assert main(["serve", str(tmp_path / "run"), "--token-for", "0"]) == 0
    assert "is not finished: these are its models at the last checkpoint" in capsys.readouterr().err


def test_what_cannot_be_written_is_called_by_the_name_that_was_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cg.train("fedavg", made_data(), model="linear", rounds=1, out=tmp_path / "run")
    (tmp_path / "t.csv").write_text("1,2,3,4\n")
    asked = ["predict", str(tmp_path / "run"), "--client", "0", "--input", str(tmp_path / "t.csv")]
    assert main([*asked, "--out", "/proc/nothing.csv"]) == 2
    told = capsys.readouterr().err
    assert "'/proc/nothing.csv'" in told
    assert ".part" not in told


def test_a_methods_setting_among_the_runs_is_pointed_at() -> None:
    with pytest.raises(
        ConfigError, match=r"'head_epochs' is a setting of FedRep: give it as options={'head_epochs': …}"
    ):
        cg.train("fedrep", made_data(), head_epochs=2)
    with pytest.raises(ConfigError, match="unknown setting 'heads'"):
        cg.train("fedrep", made_data(), heads=2)


class Branching(nn.Module):
    """Its forward looks at values, which no stacked pass can."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = self.body(x)
        out: torch.Tensor = self.head(features.relu() if float(features.detach().sum()) > 0 else features.tanh())
        return out


def test_a_model_that_cannot_be_stacked_gets_another_engine() -> None:
    with pytest.raises(ModelError, match=r"cannot be stacked over clients \(.*\); take the engine") as caught:
        cg.train("fedavg", made_data(), model=Branching(), rounds=1, engine="batched")
    assert "issue" not in str(caught.value)
    assert cg.train("fedavg", made_data(), model=Branching(), rounds=1).summary["engine"] != "batched"
    assert cg.train("fedavg", made_data(), model="mlp", rounds=1).summary["engine"] == "batched"


def test_python_types() -> None:
    with pytest.raises(DataError, match="the clients of 'arrays' are int; a list of"):
        cg.FederatedDataset.from_arrays(5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="or the path of a file, and no NoneType"):
        cg.load_data(None)
    one, other = ((np.zeros((2, n)), np.array([0, 1])) for n in (5, 6))
    with pytest.raises(DataError, match=r"client 1 have the shape \(6,\), training samples of client 0 \(5,\)"):
        cg.FederatedDataset.from_arrays([(*one, *one), (*other, *other)])


def test_arguments_of_another_kind_are_refused_in_one_sentence(tmp_path: Path) -> None:
    small: dict[str, Any] = {"rounds": 1, "model": "mlp"}
    with pytest.raises(ConfigError, match=r"^out must be the path of a folder, not 3$"):
        cg.train("fedavg", made_data(), out=3, **small)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^resume=True needs out=…, the folder of the run to continue$"):
        cg.train("fedavg", made_data(), resume=True, **small)
    for name in ("rounds", "seed", "clients", "lr"):
        with pytest.raises(ConfigError, match=f"^'{name}' is True: a number is needed, not a truth value$"):
            RunConfig.make({name: True})
    with pytest.raises(ConfigError, match=r"^folder must be the path of a folder, not 3$"):
        cg.load_run(3)  # type: ignore[arg-type]
    cg.train("fedavg", made_data(), model=Branching(), rounds=1, out=tmp_path)
    with pytest.raises(ConfigError, match=r"^model must be an nn\.Module object, not 'mlp'$"):
        cg.load_run(tmp_path, model="mlp")  # type: ignore[arg-type]


def test_threads_spin_briefly_while_they_wait_unless_the_user_says_otherwise() -> None:
    code = "import os, commonground; print(os.environ.get('GOMP_SPINCOUNT'), os.environ.get('OMP_WAIT_POLICY'))"
    ours = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    clean = {name: value for name, value in os.environ.items() if name not in ours}
    for own, expected in (
        ({}, "2000 None"),
        ({"OMP_WAIT_POLICY": "active"}, "None active"),
        ({"GOMP_SPINCOUNT": "7"}, "7 None"),
    ):
        done = subprocess.run([sys.executable, "-c", code], env=clean | own, capture_output=True, text=True, check=True)
        assert done.stdout == f"{expected}\n"


def test_the_demo_s_advice_is_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--seeds", "1", "--rounds", "2"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "2 rounds, one seed" in text
    (advice,) = re.findall(r"try (commonground demo --rounds \d+)\)", text)
    readme = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
    assert f"`{advice}`" in readme


def test_methods_to_compare_may_be_written_with_commas(tmp_path: Path, said: Any) -> None:
    named = ["fedrep,fedavg:lr=0.1,momentum=0", "lg-fedavg,local,"]
    assert "unknown algorithm 'fedrep,fedavg'" in said("compare", *named)  # a METHOD with settings ends with them
    named = ["fedavg:lr=0.1,momentum=0", "lg-fedavg,local,"]
    assert main(["compare", *named, "--rounds", "1", "--seeds", "1", "--out", str(tmp_path / "all"), "--quiet"]) == 0
    entries = json.loads((tmp_path / "all" / "comparison.json").read_text())["methods"]
    assert [entry["method"] for entry in entries] == ["fedavg:lr=0.1,momentum=0", "lg-fedavg", "local"]


def test_a_table_by_its_path_and_its_target_by_its_other_name(tmp_path: Path) -> None:
    """As on the command line, where --label is --target."""
    table = tmp_path / "t.csv"
    table.write_text("who,x,yes\n" + "".join(f"{n % 2},{n},{n // 2 % 2}\n" for n in range(24)))
    asked: dict[str, Any] = {"client_column": "who", "rounds": 1, "model": "linear"}
    one, other = cg.train("fedrep", table, label="yes", **asked), cg.train("fedrep", str(table), target="yes", **asked)
    assert one.summary["weights_sha256"] == other.summary["weights_sha256"]
    assert one.config.target == "yes"
    assert cg.compare(["fedrep", "fedavg"], table, seeds=1, label="yes", **asked).runs
    (tmp_path / "mine.toml").write_text('label = "yes"\n')
    assert RunConfig.read(tmp_path / "mine.toml") == {"target": "yes"}
    with pytest.raises(ConfigError, match="target='x' and label='yes' both name the column to predict; give one"):
        cg.train("fedrep", table, label="yes", target="x", **asked)

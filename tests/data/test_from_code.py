"""Data from a function of one's own file, and whose files are run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import commonground as cg
from commonground.cli import main
from commonground.errors import CommonGroundError, ConfigError

FILE = """
import numpy as np
import commonground as cg

def arrays(n, seed):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 4)).astype(np.float32), rng.integers(0, 3, n)

def clients(clients=3, seed=0):
    return [(*arrays(8, seed + c), *arrays(4, 100 + c)) for c in range(clients)]

def dataset():
    return cg.FederatedDataset.from_arrays(clients(), name="mine")

def source(seed=0, data_dir=None):
    (x, y), (a, b) = arrays(60, seed), arrays(30, 1)
    return cg.Source("folder " + data_dir.name, x, y, a, b, 3, ("a", "b", "c"))

def everything(**given):
    assert {"seed", "data_dir", "max_length"} <= set(given) and "clients" not in given
    return clients(2)

def needs_clients(clients):
    return globals()["clients"](clients)

def numbers(clients=3):
    return [(x, y * 0.5, a, b * 0.5) for x, y, a, b in globals()["clients"](clients)]

def wrong():
    return 3

def needs(number):
    return clients()

def fails():
    return 1 / 0

def refuses():
    raise cg.CommonGroundError("the archive is closed")

constant = 5
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    return path


def test_what_a_function_may_return_and_take(file: Path, tmp_path: Path) -> None:
    assert cg.load_data(f"{file}:clients").clients == 3
    data = cg.load_data(f"{file}:clients", 4, seed=1)
    assert (data.clients, data.name) == (4, "clients")
    assert data.fingerprint() != cg.load_data(f"{file}:clients", 4).fingerprint()
    assert cg.load_data(f"{file}:dataset").name == "mine"
    assert cg.load_data(f"{file}:everything", seed=3).clients == 2
    dealt = cg.load_data(f"{file}:source", 5, partition="dirichlet:1", data_dir=tmp_path)
    assert dealt.clients == 5
    assert dealt.name == f"folder {tmp_path.name}"


@pytest.mark.parametrize(
    ("name", "given", "sentence"),
    [
        ("absent", {}, r"mine\.py' has no function 'absent'"),
        ("constant", {}, "names a int, not a function that returns data"),
        ("wrong", {}, "returned a int; it must return a FederatedDataset, a Source or a list of"),
        ("needs", {}, "needs the argument 'number', which is none of clients, classes_per_client"),
        ("fails", {}, r":fails' failed: ZeroDivisionError in .*mine\.py, line 36: division by zero"),
        ("refuses", {}, "^the archive is closed$"),
        ("dataset", {"clients": 4}, "clients=4 splits samples, and .* returns a data set that is split already"),
        ("dataset", {"partition": "iid"}, "partition='iid' splits samples"),
        ("needs_clients", {}, "needs_clients' needs clients, which is not given; give it, or its parameter a default"),
        ("dataset", {"label": "y"}, "label='y' names a column, and .* is a function; it may take label as a parameter"),
        ("dataset", {"task": "regression"}, "task='regression' .* returns samples for classification"),
        ("source", {"task": "regression"}, "task='regression' .* returns samples for classification"),
        ("clients", {"image_size": 8}, "is a function; image_size says how a file or folder is read"),
        ("clients", {"drop": "a", "scaling": "none"}, "is a function; drop, scaling say how"),
        ("numbers", {}, 'numbers to be predicted are for task="regression"'),
    ],
)
def test_errors_are_sentences(file: Path, name: str, given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(CommonGroundError, match=sentence):
        cg.load_data(f"{file}:{name}", **given)


def test_arrays_of_a_function_are_for_the_task_that_is_given(file: Path) -> None:
    data = cg.load_data(f"{file}:numbers", task="regression")
    assert data.task.name == "regression"
    assert sorted(set(data.y_train.ravel().tolist())) == [0.0, 0.5, 1.0]
    assert cg.load_data(f"{file}:needs_clients", 2).clients == 2


def test_a_file_that_cannot_be_loaded_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\ny = x +\n")
    (tmp_path / "b.py").write_text("x = 1\n\nraise OSError('no disk')\n")
    with pytest.raises(ConfigError, match=r"a\.py' could not be loaded: SyntaxError in .*a\.py, line 2: invalid"):
        cg.load_data(f"{tmp_path / 'a.py'}:f")
    with pytest.raises(ConfigError, match=r"could not be loaded: OSError in .*b\.py, line 3: no disk"):
        cg.load_data(f"{tmp_path / 'b.py'}:f")
    with pytest.raises(ConfigError, match=r"the data 'absent\.py:f' names the file 'absent.py', which does not exist"):
        cg.load_data("absent.py:f")


MARKED = """
from pathlib import Path
from commonground import Algorithm
from torch import nn

Path({mark!r}).touch()

{code}
"""
NET = """
class Net(nn.Sequential):
    def __init__(self, shape, classes):
        super().__init__(nn.Linear(shape[0], 6), nn.Tanh(), nn.Linear(6, classes))
"""


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(list(arguments)) == 2
    return capsys.readouterr().err


def test_the_command_and_whose_code_it_runs(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a folder names is run by `train --resume`, which its owner typed, and by others only if told to."""
    mark, net, run = tmp_path / "mark", tmp_path / "net.py", str(tmp_path / "run")
    file.write_text(FILE + f"\n__import__('pathlib').Path({str(mark)!r}).touch()\n")
    net.write_text(MARKED.format(mark=str(mark), code=NET))
    given = ["--data", f"{file}:clients", "--model", f"{net}:Net", "--rounds", "2", "--quiet"]
    assert main(["train", "fedrep", *given, "--out", run]) == 0
    assert main(["train", "--resume", "--rounds", "3", "--quiet", "--out", run]) == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["rounds"], summary["clients"]) == (3, 3)
    mark.unlink()
    np.save(tmp_path / "x.npy", np.zeros((2, 4)))
    asked = {
        "predict": ["predict", run, "--client", "1", "--input", str(tmp_path / "x.npy")],
        "adapt": ["adapt", run, "--shots", "2", "--epochs", "1", "--repeats", "1", "--quiet"],
        "export": ["export", run, "--out", str(tmp_path / "out")],
    }
    for command in asked.values():
        assert "net.py:Net', whose code would be run: if you trust that file, say so with --trust-code" in said(
            capsys, *command
        )
    assert main(["report", run]) == 0
    assert not mark.exists()
    assert main([*asked["predict"], "--trust-code"]) == 0
    assert main([*asked["adapt"], "--trust-code"]) == 0
    assert "FedRep has no global model; name a client" in said(capsys, *asked["export"], "--trust-code")
    assert mark.exists()


def test_adapt_asks_before_it_runs_the_data_file(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(tmp_path / "run")
    cg.train("fedrep", f"{file}:clients", model="mlp", rounds=1, out=run)
    ask = ["adapt", run, "--shots", "2", "--epochs", "1", "--repeats", "1", "--quiet"]
    assert "has the data '" in said(capsys, *ask)
    assert main([*ask, "--trust-code"]) == 0
    assert main([*ask, "--data", f"{file}:clients"]) == 0


@pytest.mark.parametrize("what", ["data", "partition"])
def test_samples_of_a_run_are_not_made_again_by_code_that_nobody_trusts(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Which a folder of somebody else may name."""
    mark, file = tmp_path / "mark", tmp_path / "mine.py"
    file.write_text(MADE.format(mark=str(mark)))
    name, run = f"{file}:{'made' if what == 'data' else 'dealt'}", str(tmp_path / "run")
    assert main(["train", "fedrep", f"--{what}", name, "--rounds", "1", "--out", run, "--quiet"]) == 0
    assert mark.exists()
    mark.unlink()
    capsys.readouterr()
    sentence = f"has the {what} '{name}', whose code would be run: if you trust that file, say so with --trust-code"
    assert sentence in said(capsys, "predict", run, "--tested", "--client", "1")
    loaded = cg.load_run(run)
    with pytest.raises(ConfigError, match="whose code would be run: if you trust that file"):
        cg.predict_tests(loaded, client=1)
    if what == "data":
        assert sentence in said(capsys, "adapt", run, "--shots", "2")
    assert not mark.exists()
    assert main(["predict", run, "--tested", "--client", "1", "--trust-code"]) == 0
    assert mark.exists()
    tested = cg.predict_tests(cg.load_run(run, trust_code=True), client=1)
    settings: dict[str, Any] = {what: name, "rounds": 1}
    assert len(tested) == len(cg.predict_tests(cg.train("fedrep", **settings), client=1))  # which ran it already


MADE = """
import numpy as np
from pathlib import Path
from commonground.data import Split

Path({mark!r}).touch()

def dealt(source, clients, seed):
    train, test = ([np.flatnonzero(y % 2 == which) for which in (0, 1)] for y in (source.y_train, source.y_test))
    return Split.of_rows(train, test)

def made():
    rng = np.random.default_rng(0)
    return [(rng.normal(size=(8, 4)), np.arange(8) % 2, rng.normal(size=(4, 4)), np.arange(4) % 2) for c in range(3)]
"""

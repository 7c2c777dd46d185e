"""What the command loads before it has to: a question or a mistake is answered without PyTorch."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import click
import pytest

from commonground.catalogue import check_file, check_names
from commonground.cli import cli
from commonground.errors import CommonGroundError

HEAVY = ("torch", "numpy", "pandas", "pyarrow", "sklearn", "matplotlib", "transformers", "scipy", "safetensors")

# One after another in one process, each with its exit code and what is loaded after it.
PROGRAM = """
import contextlib, io, json, sys
from commonground.cli import main
found = []
for line in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(line)
    found.append([code, out.getvalue(), err.getvalue(), [name for name in HEAVY if name in sys.modules]])
print(json.dumps(found))
""".replace("HEAVY", repr(HEAVY))


def _answers(lines: list[list[str]]) -> dict[str, tuple[int, str, str]]:
    """Exit code and what is printed, by line; nothing of weight may be loaded on the way."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(lines)], capture_output=True, text=True, check=True
    )
    answers = {}
    for line, (code, out, err, loaded) in zip(lines, json.loads(done.stdout), strict=True):
        assert loaded == [], line
        answers[" ".join(line)] = (code, out, err)
    return answers


def _commands(group: click.Group, *above: str) -> Iterator[list[str]]:
    """All commands, those below others as well, as they are written."""
    for name, command in group.commands.items():
        yield [*above, name]
        if isinstance(command, click.Group):
            yield from _commands(command, *above, name)


def test_help_and_version() -> None:
    words = list(_commands(cli))
    assert ["deploy", "client"] in words
    answers = _answers([["--help"], ["--version"], *([*each, "--help"] for each in words)])
    assert all("Example: " in answers[" ".join([*each, "--help"])][1] for each in words)
    assert {code for code, _, _ in answers.values()} == {0}
    assert answers["--version"][1].split()[-1] == version("commonground")
    assert "Usage: commonground train" in answers["train --help"][1]


def test_lists() -> None:
    lines = [["list", *words.split()] for words in (
        "algorithms", "data", "models", "experiments", "fedrep", "models mlp", "hf:NAME_OR_FOLDER", "sst2",
        "fedrep-table1", "models hf:roberta-large", "hf",
    )]  # fmt: skip
    answers = _answers(lines)
    assert {code for code, _, _ in answers.values()} == {0}
    assert "Collins" in answers["list fedrep"][1]
    pretrained = ("hf:NAME_OR_FOLDER", "models hf:roberta-large", "hf")
    assert len({answers[f"list {name}"][1] for name in pretrained}) == 1


def test_mistakes(tmp_path: Path) -> None:
    expected = {
        "train fedrep --bogus": "No such option",
        "train fedrep --optimizer agd": "did you mean",
        "train fedrep --rounds 0": "'rounds' is 0",
        "train fedrep --rounds many": "'many' is not a valid integer",
        "train fedrep --lr-schedule cosin": "did you mean 'cosine'",
        "train fedrpe": "unknown algorithm 'fedrpe' (did you mean 'fedrep'?); known are apfl,",
        "train fedrep --set lr": "is not of the form KEY=VALUE",
        "train fedrep --data mnits": "unknown data 'mnits' (did you mean 'mnist'?); it is one of digits, mnist,",
        "train fedrep --model nlp": "unknown model 'nlp' (did you mean 'mlp'?); known are linear, mlp,",
        "train fedrep --partition diriclet:1": "unknown partition 'diriclet:1' (did you mean 'dirichlet'?)",
        "train fedrep --partition shards:foo=1": "partition 'shards:foo=1': 'foo=1' is not understood; the forms are",
        "train fedrep --partition dirichlet:much": "alpha must be a number, not 'much'",
        "train fedrep --data nosuch.csv": "there is no file nosuch.csv",
        "train fedrep --task regresion": "unknown task 'regresion' (did you mean 'regression'?); known are answers,",
        "train fedrep --loss mse": "the loss 'mse' is no function in a file; write it as file.py:function",
        "train fedrep --metric f1": "the metric 'f1' is no function in a file",
        "train fedrep --device gpu": "unknown device 'gpu'",
        f"train fedrep --out {__file__}": "is a file; --out needs a folder",
        f"compare fedrep --out {__file__}": "is a file; --out needs a folder",
        f"adapt {tmp_path} --shots 5 --out {__file__}": "holds no run",
        "compare fedrep fedavg --task clasification": "did you mean 'classification'?",
        "compare fedrep --data nosuch": "unknown data 'nosuch'; it is one of",
        "train fedrep --data ../nowhere/pets": "there is no file or folder '../nowhere/pets', seen from '",
        "train fedrep --data glue/sst2": "'; of the Hugging Face hub it is hf:glue/sst2\n",
        "train fedrep --data ./glue/sst2/x": f"seen from '{Path.cwd()}'\n",
        "train fedrep --data /nowhere/pets": "there is no file or folder '/nowhere/pets'\n",
        "predict nowhere x.csv": "'nowhere' holds no run (it has no config.toml)",
        "adapt nowhere --shots 5": "'nowhere' holds no run",
        "export nowhere --out x": "'nowhere' holds no run",
        "serve nowhere": "'nowhere' holds no run",
        "train fedrep --set had_epochs=3": "FedRep has no setting 'had_epochs' (did you mean 'head_epochs'?)",
        "compare fedrep fedavgg": "unknown algorithm 'fedavgg' (did you mean 'fedavg'?)",
        f"train --config {tmp_path / 'none.toml'}": "does not exist",
        "train": "name an algorithm",
        "train --resume": "--resume needs --out",
        "trian fedrep": "No such command 'trian'",
        "list fedrpe": "did you mean 'fedrep'?",
        "list fedrep fedavg": "'fedrep' is listed by itself, without 'fedavg' behind it",
        "reproduce fedrep-tabel1 --out t": "unknown experiment 'fedrep-tabel1' (did you mean 'fedrep-table1'?)",
        "reproduce --out t": "name an experiment",
        "reproduce fedrep-fig1 --out t --set n": "is not of the form KEY=VALUE",
        "completion bsh": "did you mean 'bash'?",
        "example t.xls": "written as .csv or .parquet",
    }
    answers = _answers([line.split() for line in expected])
    for line, sentence in expected.items():
        code, _, said = answers[line]
        assert code == 2, line
        assert sentence in said, line
        assert said.count("\n") == 1, line


@pytest.mark.parametrize("words", [["--help"], ["list", "algorithms"], ["list", "methods"]])
def test_a_process_of_its_own_loads_few_modules(words: list[str]) -> None:
    """Of the whole process, which the command's entry point starts as a shell does."""
    code = (
        "import sys; sys.argv = ['commonground', *sys.argv[1:]]; from commonground.cli import main; main(); "
        f"print(len(sys.modules), [name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    modules, _, heavy = done.stderr.strip().partition(" ")
    assert heavy == "[]"
    assert int(modules) < 700  # PyTorch alone are some 2,000


def test_the_first_round_comes_before_what_only_later_steps_need() -> None:
    """A first run on digits waits for PyTorch, and for nothing of the like: libraries of tables, tests and figures."""
    code = (
        "import sys, commonground as cg; "
        "cg.train('fedavg', 'digits', clients=5, rounds=1, model='linear', on_round=lambda row: print("
        f"[name for name in {HEAVY!r} if name in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["['torch', 'numpy', 'safetensors']"]


def test_an_unknown_name_is_told_alike_before_and_after_pytorch() -> None:
    """What is looked up in files is what the registries have."""
    from commonground import load_data
    from commonground.data import parse_partition
    from commonground.models import build_model

    for key, call in (
        ("data", lambda name: load_data(name, 2)),
        ("model", lambda name: build_model(name, (4,), 2)),
        ("partition", parse_partition),
    ):
        with pytest.raises(CommonGroundError) as early:
            check_names({key: "nosuch"})
        with pytest.raises(CommonGroundError) as late:
            call("nosuch")
        assert str(early.value) == str(late.value)
        assert type(early.value) is type(late.value)


@pytest.mark.parametrize(
    "values",
    [
        {"data": "digits", "model": "mlp", "partition": "shards:2"},
        {"data": "hf:owner/name", "model": "hf:roberta-base", "partition": " column:hospital"},
        {"data": "table.csv", "model": "net.py:Net", "partition": "dirichlet:0.5"},
        {"data": "own.py:function"},
        {"data": "own.py:function", "task": "a task that this file defines"},
        {"data": "../pictures"},
        {"data": "sub/folder"},
        {},
    ],
)
def test_what_may_be_known_elsewhere_is_not_refused_early(values: dict[str, str]) -> None:
    check_names(values)


def test_a_folder_with_the_name_of_no_data_set_is_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pictures").mkdir()
    monkeypatch.chdir(tmp_path)
    check_names({"data": "pictures"})


@pytest.mark.parametrize("name", ["hf:owner/table.json", "digits", "folder.d"])
def test_names_that_are_no_file_s_are_not_looked_for(name: str) -> None:
    check_file(name)
    with pytest.raises(CommonGroundError, match="there is no file"):
        check_file("nowhere/table.jsonl")

"""Callers in Python read of arguments where the command's users read of options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

import commonground as cg
from commonground import wording
from commonground.cli import main
from commonground.errors import CommonGroundError, ConfigError, warn
from commonground.wording import as_read, naming_options


@pytest.fixture(autouse=True)
def _in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wording, "_options_named", False)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("leave out --momentum", "leave out momentum"),
        ("--lr 0.05 is too large; --lr 1e-3 may do", "lr=0.05 is too large; lr=1e-3 may do"),
        ("--missing-target drop leaves such rows out", "missing_target drop leaves such rows out"),
        (
            "say --kinds a=comma-number or --kinds a=point-number",
            'say kinds="a=comma-number" or kinds="a=point-number"',
        ),
        ("say --kinds age=comma-number,day=date", 'say kinds="age=comma-number,day=date"'),
        ("choose another --out", "choose another out"),
        ("add --resume, or another --out", "add resume=True, or another out"),
        ("accept that with --allow-other-numerics", "accept that with allow_other_numerics=True"),
        ("give either --client ID or --global", "give either client=… or shared=True"),
        ("--set mu=0.5 and --set head=frozen", 'options={"mu": 0.5} and options={"head": "frozen"}'),
        ("--set model.hidden=…", 'model_options={"hidden": …}'),
        ("the column '--lr' of 'a--b' and --", "the column '--lr' of 'a--b' and --"),
        ("--init-from 'runs/first' is no run", "init_from 'runs/first' is no run"),
        ("a client's --lr, and the run's --lr", "a client's lr, and the run's lr"),
        ("'a file of --lr 3.csv' has no --lr 3", "'a file of --lr 3.csv' has no lr=3"),
        ("`commonground deploy stop 7 --folder x` ends it", "`commonground deploy stop 7 --folder x` ends it"),
        ("add it again (commonground adapt --keep), or --lr", "add it again (commonground adapt --keep), or lr"),
        ("(--worst-min-rows 5 leaves them out)", "(worst_min_rows=5 leaves them out)"),
        ("--dp-epsilon 8 needs", "dp_epsilon=8 needs"),
        ("--participation 10% of", "participation 10% of"),
        ("no option at all", "no option at all"),
    ],
)
def test_options_become_arguments(written: str, read: str) -> None:
    assert as_read(written) == read
    assert str(ConfigError(written)) == read
    assert ConfigError(written).args == (written,)
    with naming_options():
        assert as_read(written) == written
        assert str(ConfigError(written)) == written
    assert as_read(written) == read


TABLE = pd.DataFrame({"who": ["a", "b"] * 20, "n": np.arange(40), "y": ["p", "q", "q", "p"] * 10})


def trained() -> cg.Run:
    return cg.train("fedrep", cg.load_data(TABLE, client_column="who", target="y"), rounds=1)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: cg.train("fedavg", "digits", early_stopping=3), "early_stopping=3 needs .*; add validation_fraction"),
        (lambda: cg.load_data(TABLE.assign(y=[None] + ["p"] * 39), client_column="who", target="y"), "missing_target"),
        (
            lambda: cg.predict_rows(trained(), TABLE.drop(columns="who")),
            r"give client=… \(FedRep has no glob",
        ),
        (lambda: cg.train("fedavg", "digits", rank_by="foo"), "rank_by foo"),
    ],
)
def test_calls_are_answered_in_their_own_words(call: Callable[[], Any], says: str) -> None:
    with pytest.raises(CommonGroundError, match=says) as found:
        call()
    assert "--" not in str(found.value)


def test_warnings_too() -> None:
    with pytest.warns(UserWarning, match="^take a larger batch_size$"):
        warn("take a larger --batch-size")


def test_the_command_names_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "fedavg", "--early-stopping", "3"]) == 2
    assert "--early-stopping 3 needs rows to judge by; add --validation-fraction" in capsys.readouterr().err
    assert str(ConfigError("--lr")) == "lr"

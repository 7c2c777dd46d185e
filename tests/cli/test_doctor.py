"""``commonground doctor``: what is here, what is missing, and when that is an error."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from commonground import doctor
from commonground.cli import main
from commonground.data import available_sources
from commonground.doctor import FEATURES, findings, machine
from commonground.doctor.packages import Package

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes an installation of ``a-thing`` that asks for some packages, and has the doctor look at it."""

    def made(*requirements: str) -> None:
        folder = tmp_path / "a_thing-2.0.dist-info"
        folder.mkdir()
        asked = "".join(f"Requires-Dist: {one}\n" for one in requirements)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.3\nName: a-thing\nVersion: 2.0\n{asked}")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setattr(doctor, "examine", lambda data_dir: findings.examine(data_dir, "a-thing"))

    return made


def _told(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, dict[str, Any]]:
    code = main(["doctor", "--json", *args])
    return code, json.loads(capsys.readouterr().out)


def test_everything_is_here(installed: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    installed("torch>=2", "numpy", "click>=8; python_version < '3'", "httpx>=900; extra == 'serve'")
    code, told = _told(capsys, "--data-dir", str(tmp_path / "none"))
    assert code == 0
    assert told["problems"] == []
    assert told["version"] == "2.0"
    assert [(one["name"], one["wanted"], one["fits"]) for one in told["needed"]] == [
        ("torch", ">=2", True),
        ("numpy", "", True),
    ]
    assert told["devices"][0]["name"] == "cpu"
    assert told["cores"] >= 1
    serve = next(extra for extra in told["extras"] if extra["name"] == "serve")
    assert not serve["fits"]
    assert serve["install"] == "pip install 'commonground[serve]' (in a clone: pip install -e '.[serve]')"
    assert serve["packages"][0]["wanted"] == ">=900"
    assert told["data"]["chosen"] == "--data-dir"
    assert not told["data"]["exists"]
    assert told["data"]["writable"]
    assert told["data"]["there"] == ["digits"]
    assert told["confinement"]["works"] == (told["confinement"]["why"] == "")
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    for word in ("everything that is needed is here", "pip install 'commonground[serve]'", "cores", "GB"):
        assert word in shown


def test_what_is_broken_ends_with_1(installed: Any, capsys: pytest.CaptureFixture[str]) -> None:
    installed("torch>=900", "no-such-package>=1", "numpy")
    code, told = _told(capsys)
    assert code == 1
    first, second = told["problems"]
    assert "is here and >=900 is needed: pip install 'torch>=900'" in first
    assert second == "no-such-package is missing: pip install 'no-such-package>=1'"
    assert main(["doctor"]) == 1
    shown = capsys.readouterr().out
    assert "broken: no-such-package is missing" in shown
    assert "everything" not in shown


def test_without_pytorch(installed: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """What needs it is left out, and the sentence says so once."""
    installed("torch>=2")
    monkeypatch.setitem(sys.modules, "torch", None)
    code, told = _told(capsys)
    assert code == 1
    assert [problem.split(":")[0] for problem in told["problems"]] == ["PyTorch cannot be loaded"]
    assert told["data"] is None
    assert main(["doctor"]) == 1


def test_a_source_tree_alone(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(doctor, "examine", lambda data_dir: findings.examine(data_dir, "no-such-package"))
    code, told = _told(capsys)
    assert code == 1
    assert "only its source is here" in told["problems"][0]


@pytest.mark.parametrize(
    ("wanted", "there", "fits"),
    [(">=2.6,<3", "2.13.0+cpu", True), (">=2.6,<3", "3.0", False), ("", "1", True), (">=5,<6", "5.0.0rc1", False)],
)
def test_versions(wanted: str, there: str, fits: bool) -> None:
    assert Package("x", wanted, there).fits is fits
    assert not Package("x", wanted, None).fits


def test_every_extra_for_users_says_what_it_is_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert set(FEATURES) == set(project["optional-dependencies"]) - {"dev", "docs", "pandas"}


def test_data_sets_that_are_there(tmp_path: Path) -> None:
    """As the loaders look for them: a file of each that is missing, and none is."""
    (tmp_path / "cifar-100-binary").mkdir()
    for name in ("train.bin", "test.bin"):
        assert "cifar100" not in machine.data_folder(str(tmp_path)).there
        (tmp_path / "cifar-100-binary" / name).touch()
    (tmp_path / "cifar-10-binary.tar.gz").touch()
    (tmp_path / "glue" / "RTE").mkdir(parents=True)
    (tmp_path / "glue" / "RTE" / "train.tsv").touch()
    (tmp_path / "glue" / "QQP-clean.zip").touch()
    (tmp_path / "mnist").mkdir()
    for part in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (tmp_path / "mnist" / f"{part}-ubyte.gz").touch()
    found = machine.data_folder(str(tmp_path))
    assert found.there == ("digits", "mnist", "cifar10", "cifar100", "qqp")
    assert set(found.there) | set(found.missing) == {info.name for info in available_sources()}
    (tmp_path / "glue" / "RTE" / "dev.tsv").touch()
    assert "rte" in machine.data_folder(str(tmp_path)).there


def test_programs_that_cannot_be_confined(monkeypatch: pytest.MonkeyPatch) -> None:
    from commonground.errors import ConfigError
    from commonground.papers.rolora import code_execution

    def refuse() -> None:
        raise ConfigError("programs cannot be confined here (Landlock: no)")

    monkeypatch.setattr(code_execution, "require_confinement", refuse)
    assert machine.confinement() == machine.Confinement(False, "programs cannot be confined here (Landlock: no)")

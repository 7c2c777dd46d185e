"""What is built: the sources that are needed and no data sets; a wheel with every file of the package."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BUILT = pytest.mark.skipif(
    importlib.util.find_spec("hatchling") is None, reason="hatchling, which builds the distributions, is not installed"
)


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both distributions."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return folder


def _of_the_package() -> set[str]:
    files = (path for path in (ROOT / "src").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {str(path.relative_to(ROOT / "src")) for path in files}


@BUILT
def test_the_wheel_has_the_package_and_nothing_else(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        names = [name for name in file.namelist() if ".dist-info/" not in name]
        about = Parser().parsestr(file.read(next(n for n in file.namelist() if n.endswith("METADATA"))).decode())
        scripts = file.read(next(n for n in file.namelist() if n.endswith("entry_points.txt"))).decode()
    assert set(names) == _of_the_package()
    assert {"commonground/py.typed", "commonground/report/page.css"} <= set(names)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert about["Version"] == project["version"]
    assert set(about.get_all("Provides-Extra", [])) == set(project["optional-dependencies"])
    assert about["License-Expression"] == "Apache-2.0"
    assert "commonground = commonground.cli:main" in scripts


@BUILT
def test_the_sources_are_whole_and_without_data(dist: Path) -> None:
    (archive,) = dist.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        members = {member.name.partition("/")[2]: member for member in file.getmembers() if member.isfile()}
    assert {f"src/{name}" for name in _of_the_package()} <= set(members)
    expected = {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "Makefile", "constraints.txt"}
    assert expected | {"tests/test_distribution.py", "docs/ARCHITECTURE.md"} <= set(members)
    assert not any(name.startswith(("results/", ".ci-data/", "runs/", "data/")) for name in members)
    assert max(member.size for member in members.values()) < 200_000  # a data set is larger
    assert archive.stat().st_size < 3_000_000

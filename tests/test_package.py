"""The names users import, and what importing them costs."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest

import commonground as cg

HEAVY = ("torch", "numpy", "pydantic", "rich", "pandas", "pyarrow", "matplotlib", "transformers", "scipy", "sklearn")


def _declared() -> dict[str, str]:
    """The names that type checkers and editors see, with the modules they are imported from."""
    (block,) = (node for node in ast.parse(Path(cg.__file__).read_text("utf-8")).body if isinstance(node, ast.If)
                and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING")  # fmt: skip
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


def _run(code: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_every_name_is_there_and_the_one_that_type_checkers_see() -> None:
    declared = _declared()
    assert sorted(declared) == sorted(cg.__all__)
    for name, module in declared.items():
        assert getattr(cg, name) is getattr(import_module(module), name)
    assert set(cg.__all__) | {"__version__"} <= set(dir(cg))
    assert cg.__version__ == version("commonground")


def test_star_imports_give_all_names() -> None:
    names: dict[str, object] = {}
    exec("from commonground import *", names)
    assert set(cg.__all__) <= set(names)


def test_no_other_name_is_there() -> None:
    other = "fedrep"
    with pytest.raises(AttributeError, match="module 'commonground' has no attribute 'fedrep'"):
        getattr(cg, other)
    assert not hasattr(cg, "_none")
    assert cg.data.load_data is cg.load_data  # packages below it are found without an import of their own


def test_importing_the_package_loads_nothing_of_weight() -> None:
    code = f"import sys, commonground; print([name for name in {HEAVY!r} if name in sys.modules], len(sys.modules))"
    (said,) = _run(code)
    heavy, _, modules = said.rpartition(" ")
    assert heavy == "[]"
    assert int(modules) < 120


@pytest.mark.parametrize("first", ["compare.grid", "adapt"])
def test_its_functions_stay_functions(first: str) -> None:
    """``commonground.compare`` and ``.adapt`` are packages as well, which must not take the functions' place."""
    code = (
        f"import commonground.{first}, commonground as cg; "
        "print(type(cg.compare).__name__, type(cg.adapt).__name__); "
        "import commonground.compare.grid, commonground.prediction.texts; "
        "print(type(cg.compare).__name__, type(cg.adapt).__name__)"
    )
    assert _run(code) == ["function function"] * 2


def test_what_does_not_train_is_light() -> None:
    """Configurations can be made and checked without PyTorch."""
    code = (
        "import sys; from commonground.config import RunConfig; RunConfig(rounds=3, lr=0.1); "
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    assert _run(code) == ["['pydantic']"]

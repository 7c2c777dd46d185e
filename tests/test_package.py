"""The names users import, and what importing them costs."""

from __future__ import annotations

import subprocess
import sys

import commonground as cg

HEAVY = ("rich", "pandas", "pyarrow", "matplotlib", "transformers", "scipy.stats", "sklearn")


def test_every_name_is_there() -> None:
    for name in cg.__all__:
        assert getattr(cg, name) is not None
    assert callable(cg.compare)
    assert callable(cg.adapt)


def test_the_package_is_light_and_its_functions_stay_functions() -> None:
    """``commonground.compare`` and ``.adapt`` are packages as well, which must not take the functions' place."""
    code = (
        "import sys, commonground as cg; "
        f"print([name for name in {HEAVY!r} if name in sys.modules]); "
        "import commonground.compare.grid, commonground.adapt.texts; "
        "print(type(cg.compare).__name__, type(cg.adapt).__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "function function"]

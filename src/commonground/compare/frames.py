"""A comparison as DataFrames."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commonground.compare.tables import method_table
from commonground.engine import Run
from commonground.engine.run import figures_of
from commonground.engine.state.folder import RunFolder
from commonground.errors import ConfigError, RunError
from commonground.suggest import meant

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["frame"]

_TABLES = ("methods", "runs", "clients", "rounds")


def frame(what: str, result: Mapping[str, Any], runs: Mapping[str, list[Run]], folder: Path | None) -> pd.DataFrame:
    """What :meth:`~commonground.compare.Comparison.to_pandas` gives, made of the comparison's attributes."""
    if what not in _TABLES:
        raise ConfigError(f"a comparison's tables are {', '.join(_TABLES)}, not {what!r}{meant(str(what), _TABLES)}")
    try:
        import pandas as pd
    except ImportError:
        raise ConfigError("to_pandas needs pandas: pip install pandas") from None
    if what == "methods":
        rows: list[Mapping[str, Any]] = list(method_table(result).rows)
    elif what == "runs":
        rows = [{"method": entry["method"], **one} for entry in result["methods"] for one in entry["by_seed"]]
    else:
        return figures_of(pd.DataFrame(list(_of_runs(what, result, runs, folder))))
    return pd.DataFrame(rows).replace("", None)


def _of_runs(
    what: str, result: Mapping[str, Any], runs: Mapping[str, list[Run]], folder: Path | None
) -> Iterator[Mapping[str, Any]]:
    """The clients or the rounds of every run, from memory or from the runs' folders."""
    for entry in result["methods"]:
        for number, seed in enumerate(result["seeds"]):
            about = {"method": entry["method"], "seed": seed}
            if runs:
                run = runs[entry["method"]][number]
                rows = run.clients if what == "clients" else run.history
            else:
                assert folder is not None
                files = RunFolder(folder / entry["runs"][number])
                if not files.exists:
                    raise RunError(f"'{files.path}', a run of the comparison, is not there any more")
                rows = files.clients() if what == "clients" else files.rounds.rows()
            yield from ({**about, **row} for row in rows)

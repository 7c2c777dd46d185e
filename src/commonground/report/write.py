"""The report of whatever a folder holds."""

from __future__ import annotations

from pathlib import Path

from commonground.errors import RunError
from commonground.report.comparison import write_comparison_report
from commonground.report.reproduction import write_reproduction_report
from commonground.report.run import write_run_report

__all__ = ["write_report"]


def write_report(folder: str | Path) -> Path:
    """Write ``report.html`` and ``figures/`` for a run, a comparison or a reproduction.

    Args:
        folder: with ``results.json`` or ``reproduction.json`` (a reproduction), ``comparison.json`` or a run's files.

    Returns:
        The path of the page.

    Raises:
        RunError: the folder is none of them, is not finished, or a file is damaged.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise RunError(f"there is no folder '{folder}'")
    if any((folder / name).is_file() for name in ("results.json", "reproduction.json")):
        return write_reproduction_report(folder)
    if (folder / "comparison.json").is_file():
        return write_comparison_report(folder)
    if any((folder / name).is_file() for name in ("summary.json", "config.toml", "rounds.jsonl")):
        return write_run_report(folder)
    raise RunError(
        f"'{folder}' holds neither a run (summary.json), nor a comparison (comparison.json), nor a reproduction "
        "(results.json or reproduction.json)"
    )

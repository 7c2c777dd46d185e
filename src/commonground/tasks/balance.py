"""What is to be said where most rows are of one class, so that accuracy says little."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from commonground.quoting import quoted
from commonground.tasks.headline import Metric

__all__ = ["UNBALANCED", "about_balance"]

UNBALANCED = 0.75  # share of test rows that are of one class


def about_balance(summary: Mapping[str, Any]) -> str:
    """A sentence on accuracy beside balanced accuracy and AUC, if the classes are unbalanced; else nothing.

    Args:
        summary: of a run.
    """
    most, metrics = summary.get("majority"), summary.get("metrics") or {}
    if most is None or most["test_share"] < UNBALANCED or "balanced_accuracy" not in metrics:
        return ""
    share = f"{100 * most['test_share']:.1f} %"
    accuracy, balanced = Metric("accuracy", True), Metric("balanced_accuracy", True)
    auc = Metric("auc", False)
    over = {key: metrics[key]["over_rows"] for key in ("accuracy", "balanced_accuracy", "auc")}
    return (
        f"{share} of the test rows are of the class {quoted(str(most['class']))}: whoever always answers so has an "
        f"accuracy of {share}, and this run {accuracy.show(over['accuracy'])}, a balanced accuracy of "
        f"{balanced.show(over['balanced_accuracy'])} and an AUC of {auc.show(over['auc'])} (0.5 is chance), each over "
        "all rows."
    )

"""What columns of answers are called, none of them as another."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from commonground.tasks import Task

__all__ = ["headings", "of_answers"]


def headings(*columns: tuple[str, Iterable[str]]) -> list[str]:
    """The names of columns in their order; one that is taken already has its kind before it (``predicted class``).

    Args:
        columns: kinds, each with its names.

    >>> headings(("client", ["class"]), ("predicted", ["class"]), ("probability of", ["no", "class"]))
    ['class', 'predicted class', 'no', 'probability of class']
    """
    found: dict[str, None] = {}
    for kind, names in columns:
        for name in names:
            while name in found:
                name = f"{kind} {name}"
            found[name] = None
    return list(found)


def of_answers(task: Task, names: Sequence[str]) -> list[tuple[str, Sequence[str]]]:
    """For :func:`headings`, the columns of a task's answers: the class and each class's probability, or what is
    predicted of each target or label.

    Args:
        task: what is predicted.
        names: of the classes, targets or labels.
    """
    if task.softmax:
        return [("predicted", ["class"]), ("probability of", names)]
    return [("predicted", task.columns(names))]

"""A finished run's answers row by row."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from commonground.engine import Run
from commonground.engine.predictions import predictions_of

__all__ = ["answers"]


def answers(run: Run, x: npt.NDArray[np.floating], client: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """What each row's own client's model says of it.

    Args:
        run: finished.
        x: [rows, …].
        client: [rows] numbers; −1 for nobody's: answered by the global model, or where the method has none by the mean
            of what all clients' own models say.

    Returns:
        [rows, outputs].
    """
    trained = run.trained
    said = np.empty((len(x), trained.split["classes"]))
    order = np.argsort(client, kind="stable")
    starts = np.flatnonzero(np.diff(client[order], prepend=-2))
    for rows in np.split(order, starts[1:]) if len(order) else []:
        whose = int(client[rows[0]])
        if whose >= 0 or trained.has_global_model:
            said[rows] = predictions_of(trained, x[rows], None if whose < 0 else whose)
        else:
            each = (predictions_of(trained, x[rows], number) for number in range(trained.clients))
            said[rows] = sum(each) / trained.clients
    return said

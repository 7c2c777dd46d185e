"""Numbers over seeds: their means, and their intervals where more than one seed was measured."""

from __future__ import annotations

import math

from commonground.papers.outcome import Cell, interval_columns

T_97_5_OF_TWO = 0.95 * math.sqrt(2 / (4 * 0.975 * 0.025))  # the quantile of two degrees of freedom in closed form


def test_a_cell_over_three_seeds() -> None:
    cell = Cell.over_seeds("c", "m", 80.0, [70.0, 71.0, 75.0])
    half = T_97_5_OF_TWO * math.sqrt(7 / 3)  # the variance of these is 7
    assert (cell.measured, cell.seeds, cell.paper) == (72.0, 3, 80.0)
    assert cell.low is not None
    assert cell.high is not None
    assert abs(cell.low - (72 - half)) < 1e-12
    assert abs(cell.high - (72 + half)) < 1e-12
    assert interval_columns([70.0, 71.0, 75.0]) == {
        "measured": 72.0, "low": round(72 - half, 2), "high": round(72 + half, 2)
    }  # fmt: skip


def test_one_seed_says_nothing_of_others() -> None:
    assert Cell.over_seeds("c", "m", None, [70.0]) == Cell("c", "m", None, 70.0, None, None, 1)
    assert interval_columns([70.0]) == {"measured": 70.0, "low": "", "high": ""}

"""A table that looks like a real one and whose truth is known: what customers' contracts depend on, and how.

Every customer is a company with contracts of its own. Four things decide whether a contract is renewed, and they are
the same for all customers, though none of them is a column: whether use is high where the price is high (the product
of the two), whether the discount is unusual in either direction, the season, and the plan in relation to the tickets.
How much each counts, and in which direction, differs from customer to customer. So one model for all averages opposite
answers, and a customer alone has too few contracts to find the four things.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from commonground.errors import ConfigError
from commonground.keys import numpy_stream

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["CLIENT_COLUMN", "TARGET", "example_table"]

CLIENT_COLUMN = "customer"
TARGET = "renewed"
_FEWEST = 8  # rows of a customer
_PLANS = ("basic", "plus", "pro")
_CHANNELS = ("direct", "partner", "web")


def example_table(rows: int = 6000, customers: int = 60, seed: int = 0) -> pd.DataFrame:
    """The table, a row per contract.

    Args:
        rows: how many in all; customers have log-normal shares of them, at least 8 each.
        customers: how many.
        seed: keys every draw.

    Raises:
        ConfigError: fewer than 8 rows for each of at least 2 customers.
    """
    import pandas as pd

    if customers < 2 or rows < _FEWEST * customers:
        raise ConfigError(
            f"{rows} rows are too few for {customers} customers; at least 2 with {_FEWEST} each are needed"
        )
    rng = numpy_stream(seed, "example table")
    owner = rng.permutation(np.repeat(np.arange(customers), _sizes(rows, customers, rng)))
    use, price, discount, tickets = rng.normal(size=(4, rows))
    day = rng.integers(0, 3 * 365, rows)
    plan, channel = rng.integers(0, 3, rows), rng.integers(0, 3, rows)
    causes = np.stack(
        [
            np.tanh(1.5 * use * price),
            np.tanh(2 * (np.abs(discount) - 0.7)),
            np.sin(2 * np.pi * day / 365.2425),
            np.tanh(1.5 * tickets * (plan - 1)),
        ],
        axis=1,
    )
    weights = rng.normal(0.3, 1.0, (customers, causes.shape[1]))
    strength = np.einsum("nk,nk->n", causes, weights[owner]) + rng.normal(0, 0.3, customers)[owner]
    renewed = strength + rng.normal(0, 0.25, rows) > 0
    frame = pd.DataFrame(
        {
            "contract": [f"{number:06x}" for number in rng.permutation(16 * rows)[:rows]],
            CLIENT_COLUMN: [f"company {number:03d}" for number in owner],
            "start": (pd.Timestamp("2021-01-01") + pd.to_timedelta(day, "D")).strftime("%Y-%m-%d"),
            "plan": np.array(_PLANS)[plan],
            "channel": np.array(_CHANNELS)[channel],
            "minutes": np.round(400 + 120 * use, 1).clip(0),
            "price": np.round(79 + 14 * price, 2),
            "discount": np.round(10 + 3 * discount, 1).clip(0),
            "tickets": np.round(12 + 4 * tickets).astype(int).clip(0),
            "autopay": np.where(rng.random(rows) < 0.6, "yes", "no"),
            TARGET: np.where(renewed, "yes", "no"),
        }
    )
    frame.loc[rng.random(rows) < 0.03, "minutes"] = np.nan
    frame.loc[rng.random(rows) < 0.03, "channel"] = None
    return frame


def _sizes(rows: int, customers: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Rows of each customer, log-normal above the fewest, which add up."""
    share = np.exp(rng.normal(0, 0.5, customers))
    ends = np.rint(np.cumsum(share) / share.sum() * (rows - _FEWEST * customers)).astype(np.int64)
    sizes: npt.NDArray[np.int64] = _FEWEST + np.diff(ends, prepend=0)
    return sizes

"""How a server combines what its clients send: the mean, or a form of it that a few false updates cannot move far.

A file each. A further one is found by itself: a frozen dataclass derived from :class:`Aggregate`, with a name.
"""

import importlib
import pkgutil

from commonground.aggregation.base import Aggregate, aggregates, parse_aggregate

for _module in pkgutil.iter_modules(__path__, f"{__name__}."):
    importlib.import_module(_module.name)

MEAN: Aggregate = parse_aggregate("mean")

__all__ = ["MEAN", "Aggregate", "aggregates", "parse_aggregate"]

"""Comparisons: several methods on the same splits, starts and client samples, with paired statistics over seeds."""

from commonground.compare.comparison import Comparison, compare
from commonground.compare.grid import validation_split

__all__ = ["Comparison", "compare", "validation_split"]

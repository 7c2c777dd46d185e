"""Comparisons: several methods on the same splits, starts and client samples, with paired statistics over seeds."""

from commonground.compare.comparison import Comparison, compare
from commonground.compare.grid import validation_split
from commonground.compare.planned import ComparisonPlan, plan_comparison

__all__ = ["Comparison", "ComparisonPlan", "compare", "plan_comparison", "validation_split"]

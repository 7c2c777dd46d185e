"""Comparisons: several methods on the same splits, starts and client samples, with paired statistics over seeds."""

from commonground.compare.comparison import Comparison, compare
from commonground.compare.planned import ComparisonPlan, plan_comparison
from commonground.data.validation import validation_split

__all__ = ["Comparison", "ComparisonPlan", "compare", "plan_comparison", "validation_split"]

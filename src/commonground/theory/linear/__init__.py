"""FedRep for linear regression (Collins et al. 2021, Sections 4 and 5.1): problem, methods, errors and Theorem 1.

problem = draw_problem(range(20), d=10, k=2, n=100)
data = draw_samples(problem, m=5)
start = make_start("projected-gradient", problem, data)
run = alternate(problem, Alternation(None, step=0.2), start, rounds=50, data=data, r=0.1)
run.distance  # [20, 51]
"""

from commonground.theory.linear.errors import expected_error, new_client_error, outside, training_floor, value_floor
from commonground.theory.linear.fedsgd import SingleModel, fedsgd, single_model_error
from commonground.theory.linear.least_squares import least_squares, local_only
from commonground.theory.linear.methods import Alternation, Trajectory, alternate, smaller_step
from commonground.theory.linear.problem import (
    Problem,
    Samples,
    Scaling,
    check_dimensions,
    clients_per_round,
    draw_clients,
    draw_problem,
    draw_samples,
)
from commonground.theory.linear.starts import (
    Start,
    StartName,
    gaussian_start,
    make_start,
    method_of_moments,
    projected_gradient,
    random_start,
)
from commonground.theory.linear.theorem import (
    SubsetExtremes,
    contraction_factor,
    distance_bound,
    drawn_extremes,
    sample_size_unit,
    step_limit,
    subset_extremes,
    usable_step,
)

__all__ = [
    "Alternation",
    "Problem",
    "Samples",
    "Scaling",
    "SingleModel",
    "Start",
    "StartName",
    "SubsetExtremes",
    "Trajectory",
    "alternate",
    "check_dimensions",
    "clients_per_round",
    "contraction_factor",
    "distance_bound",
    "draw_clients",
    "draw_problem",
    "draw_samples",
    "drawn_extremes",
    "expected_error",
    "fedsgd",
    "gaussian_start",
    "least_squares",
    "local_only",
    "make_start",
    "method_of_moments",
    "new_client_error",
    "outside",
    "projected_gradient",
    "random_start",
    "sample_size_unit",
    "single_model_error",
    "smaller_step",
    "step_limit",
    "subset_extremes",
    "training_floor",
    "usable_step",
    "value_floor",
]

"""Numbers to be predicted, one or several for each sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from commonground.devices import wide
from commonground.errors import DataError
from commonground.single_precision import TARGET_STEPS, in_digits, rounding_shows, too_large
from commonground.tasks.base import Array, Bounds, Figures, Task, check_width, real_targets

__all__ = ["Regression"]


@dataclass(frozen=True)
class Regression(Task):
    """Numbers [k]: squared error, averaged over the k outputs.

    Metrics, each averaged over the outputs: ``mse``, ``rmse`` (the root of a set's ``mse``), ``mae`` and ``r2``, the
    coefficient of determination 1 − Σ(y − ŷ)²/Σ(y − ȳ)² with ȳ the mean over the same samples. For samples that do not
    differ in y (a client with one test sample), in one of the outputs, it is not defined, nor for such as differ by
    less than a millionth of their size where no mean is taken off before.

    Args:
        mean, std: of each output, if the model shall learn (y − mean)/std; losses are of these, metrics and predictions
            in y's own units. By default the model's outputs are y itself.
    """

    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    name = "regression"
    metric = "rmse"
    higher_is_better = False
    percent = False
    counted = "targets"
    divides = False
    # A squared error's curvature grows with head and features: FedRep's ten head epochs diverge at a table's 0.05.
    highest_default_lr = 0.02

    @classmethod
    def standardised(cls, targets: npt.ArrayLike) -> Regression:
        """The task for targets [N] or [N, k] of very different or large size: their own mean and deviation are used,
        taken over whatever samples are given, so of all clients if these are all clients' samples.
        """
        y = real_targets(np.asarray(targets), "targets").astype(np.float64)
        return cls(tuple(y.mean(0).tolist()), tuple(np.where(y.std(0) > 0, y.std(0), 1.0).tolist()))

    def targets(self, values: Array, field: str) -> Array:
        return real_targets(values, field)

    def outputs(self, targets: Sequence[Array], name: str) -> int:
        return int(targets[0].shape[1])

    def check_targets(self, name: str, split: str, targets: Array, outputs: int) -> None:
        check_width(name, split, targets, outputs, self.counted)

    def describe(self, outputs: int, held: str) -> str:
        return f"{outputs} {self.counted}" if outputs > 1 else "1 target"

    def members(self, targets: Array, outputs: int) -> npt.NDArray[np.bool_]:
        return np.ones((len(targets), outputs), dtype=np.bool_)

    @cached_property
    def in_double(self) -> bool:
        """See :attr:`Task.in_double`: their mean is taken off first."""
        return any(
            rounding_shows(mean, std, TARGET_STEPS) or too_large(abs(mean) + std)
            for mean, std in zip(self.mean, self.std, strict=True)
        )

    def as_tensor(self, targets: Array, dtype: torch.dtype) -> Tensor:
        y = torch.from_numpy(targets)
        kept = y if y.dtype == torch.float64 and self.in_double else y.to(dtype)
        if kept.dtype != y.dtype and not bool(kept.isfinite().all()):  # which would look like training that diverges
            raise DataError(
                f"a target is beyond what {str(dtype).removeprefix('torch.')} holds; divide all by a number, or choose "
                "--dtype float64"
            )
        return kept

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        return (output - self.learnt(output, y)).square().mean(1)

    def learnt(self, output: Tensor, y: Tensor) -> Tensor:
        scaled = (y - y.new_tensor(self.mean)) / y.new_tensor(self.std) if self.mean else y
        return scaled.to(output.dtype)

    def scores(self, output: Tensor, y: Tensor) -> dict[str, Tensor]:
        y = wide(y)
        off = self.interpret(wide(output)) - y
        if self.mean:  # the spread of large targets that differ little would be lost in their squares
            y = y - y.new_tensor(self.mean)
        return {"squared": off.square(), "absolute": off.abs(), "y": y, "y_squared": y.square()}

    def score_bounds(self, outputs: int) -> dict[str, Bounds]:
        positive = dict.fromkeys(("squared", "absolute", "y_squared"), Bounds(0, shape=(outputs,)))
        return {**positive, "y": Bounds(shape=(outputs,))}

    def metrics(self, means: Mapping[str, npt.NDArray[np.float64]]) -> Figures:
        squared, spread = means["squared"], means["y_squared"] - means["y"] ** 2
        # What is left of a spread of zero is rounding: y² and ȳ² agree to about 16 digits, and targets that differ by
        # less than a millionth of their size leave too few of the spread's (a task with a mean takes it off before).
        known = spread > 1e-12 * means["y_squared"]
        r2 = np.where(known, 1 - squared / np.where(known, spread, 1.0), np.nan)
        mse = squared.mean(1)
        return {"rmse": np.sqrt(mse), "mse": mse, "mae": means["absolute"].mean(1), "r2": r2.mean(1)}

    @property
    def plain(self) -> tuple[str, ...]:
        return ("rmse", "mse", "mae", "r2")

    def interpret(self, output: Tensor) -> Tensor:
        return output * output.new_tensor(self.std) + output.new_tensor(self.mean) if self.mean else output

    def columns(self, names: Sequence[str]) -> list[str]:
        return list(names)

    def choose(self, predicted: npt.NDArray[np.float64], names: Sequence[str]) -> list[str]:
        return [
            ", ".join(self._written(value) if self.in_double else f"{value:.6g}" for value in row) for row in predicted
        ]

    def table(self, predicted: npt.NDArray[np.float64], names: Sequence[str]) -> tuple[list[str], list[list[str]]]:
        return self.columns(names), [[self._written(value) for value in row] for row in predicted]

    def _written(self, value: float) -> str:
        return f"{value:.15g}" if self.in_double else in_digits(value)

"""By which channel means and deviations images become a model's input."""

from __future__ import annotations

from dataclasses import replace

from commonground.data.arrays import Preprocess
from commonground.data.federated import FederatedDataset
from commonground.errors import ConfigError, DataError

__all__ = ["STATISTICS", "normalize"]

STATISTICS: dict[str, Preprocess] = {
    name: Preprocess(scale=1 / 255, mean=mean, std=std)
    for name, mean, std in (
        ("none", (), ()),
        ("imagenet", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ("cifar10", (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
        ("cifar100", (0.507, 0.487, 0.441), (0.267, 0.256, 0.276)),
    )
}
"""By name, for pictures of bytes in red, green and blue; ``none`` takes bytes to 0…1."""


def normalize(data: FederatedDataset, by: str) -> FederatedDataset:
    """The same pictures, normalised otherwise; all arrays are shared with ``data``.

    Args:
        data: pictures of bytes [rows, height, width, 3].
        by: a name of :data:`STATISTICS`.

    Raises:
        ConfigError: there are no such statistics.
        DataError: the samples are no pictures in three colours.
    """
    if by not in STATISTICS:
        raise ConfigError(f"there are no statistics {by!r} to normalise images by; known are {', '.join(STATISTICS)}")
    if data.x_train.dtype != "uint8" or data.x_train.ndim != 4 or data.x_train.shape[-1] != 3:
        raise DataError(f"--normalize {by} is for pictures of bytes in three colours, which {data.name!r} are not")
    return replace(data, preprocess=STATISTICS[by])

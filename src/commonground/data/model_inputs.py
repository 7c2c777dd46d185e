"""A federated data set's samples as model inputs, where they are computed with."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from commonground.data.arrays import Array, Indices
from commonground.data.federated import FederatedDataset
from commonground.data.inputs import Inputs, each, select, to_device
from commonground.devices import device_bytes_free
from commonground.errors import DataError

__all__ = ["ModelInputs", "check_fits"]

# Share of a device's free memory; larger data stay on the host and are moved by batches: weights and activations need
# room as well.
RESIDENT_SHARE = 0.5
_ROWS_PER_CHECK = 8192


HOST = torch.device("cpu")


class ModelInputs:
    """A federated data set's samples as model inputs and targets, on a device.

    What fits stays on the device as it is stored (bytes or tokens); otherwise rows are moved as they are asked for.

    Args:
        data: the data set; its arrays are used in place, never copied as a whole on the host.
        dtype: the model's number type.
        device: where inputs and targets are wanted.
        inputs_stay: whether inputs are left on the host, for a model that moves them itself.

    Attributes:
        home: where inputs are.
    """

    def __init__(
        self,
        data: FederatedDataset,
        dtype: torch.dtype,
        device: torch.device = HOST,
        *,
        inputs_stay: bool = False,
    ) -> None:
        self.data, self.dtype, self.device = data, dtype, device
        self.home = HOST if inputs_stay else device
        self.format = data.format
        self._owners: dict[bool, Indices] = {}
        self._resident: dict[bool, tuple[Inputs, Tensor] | None] = {}

    @property
    def shape(self) -> tuple[int, ...]:
        """One sample's shape as the model sees it; images as (channels, height, width)."""
        return self.format.shape

    def arrange(self, inputs: Inputs) -> Inputs:
        """See :meth:`InputFormat.arrange`."""
        return self.format.arrange(inputs)

    @cached_property
    def black(self) -> Tensor:
        """See :meth:`InputFormat.black`."""
        return self.format.black(self.dtype).to(self.device)

    @cached_property
    def _noise(self) -> Tensor:
        """What is subtracted from each client's samples after scaling: [clients + 1, …], the last (nobody's) zero."""
        assert self.data.noise is not None
        images = torch.from_numpy(self.data.noise.images).to(self.dtype)
        images = images * self.format.preprocess.scale * self.data.noise.strength
        return torch.cat([images, torch.zeros_like(images[:1])]).to(self.device)

    def _noise_of(self, train: bool, index: Indices) -> Tensor | None:
        """The noise of samples given by position, [n, …]; [1, …] where one client owns them all."""
        if self.data.noise is None:
            return None
        if train not in self._owners:
            self._owners[train] = self.data.owners("train" if train else "test")
        owners = self._owners[train][index]
        if len(owners) and (owners == owners[0]).all():
            owners = owners[:1]
        return self._noise[to_device(torch.from_numpy(owners), self.device)]

    def rows(self, split: str, index: Indices) -> tuple[Inputs, Tensor]:
        """Inputs in storage order (images channels last) and targets of samples given by position."""
        train = split == "train"
        noise = self._noise_of(train, index)
        resident = self._kept(train)
        if resident is not None:
            at = to_device(torch.from_numpy(index), self.device)
            return self.format.make(select(resident[0], at), self.dtype, noise), resident[1][at]
        data = self.data
        x, y = (data.x_train, data.y_train) if train else (data.x_test, data.y_test)
        rows = x[index]
        stored = each(lambda value: to_device(value, self.home), self.format.tensors(rows))
        return self.format.make(stored, self.dtype, noise), to_device(self._targets(rows, y[index]), self.device)

    def _kept(self, train: bool) -> tuple[Inputs, Tensor] | None:
        """All stored samples and targets on the device, if they fit there; None where inputs stay on the host, which
        has them anyway.
        """
        if self.home.type == "cpu":
            return None
        if train not in self._resident:
            data = self.data
            x, y = (data.x_train, data.y_train) if train else (data.x_test, data.y_test)
            self._resident[train] = None
            if x.nbytes <= _room(self.device):
                stored = each(lambda value: value.to(self.device), self.format.tensors(x))
                self._resident[train] = stored, self._targets(x, y).to(self.device)
        return self._resident[train]

    @cached_property
    def _targets(self) -> Callable[[Array, Array], Tensor]:
        """From some stored samples and targets to targets as the task's loss takes them."""
        return self.data.task.target_reader(self.data.x_train, self.data.x_test, self.dtype)


def check_fits(data: FederatedDataset, dtype: torch.dtype) -> None:
    """Refuse samples that are finite as they are stored, and not in the number type that is computed with.

    Raises:
        DataError: names the first.
    """
    for split, x in (("train", data.x_train), ("test", data.x_test)):
        kinds = {name: x.dtype[name].base for name in x.dtype.names} if x.dtype.names else {"x": x.dtype}
        if dtype == torch.float64 or np.float64 not in kinds.values():
            continue
        for start in range(0, len(x), _ROWS_PER_CHECK):
            made = data.format.make(data.format.tensors(x[start : start + _ROWS_PER_CHECK]), dtype)
            for value in made.values():
                fine = torch.isfinite(value).flatten(1).all(1) if value.is_floating_point() else torch.ones(1) > 0
                if not fine.all():
                    row = start + int(fine.logical_not().nonzero()[0])
                    raise DataError(
                        f"{split} sample {row} of {data.name!r} has a number beyond single precision (3.4e38), in "
                        "which is computed; scale the samples, or take dtype='float64'"
                    )


def _room(device: torch.device) -> float:
    """Bytes that stored samples may take on a device."""
    free = device_bytes_free(device)
    return math.inf if free is None else RESIDENT_SHARE * free

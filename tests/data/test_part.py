"""A data set of some of another's clients: their samples and no others, under their own names."""

from __future__ import annotations

import numpy as np
import pytest

from commonground import FederatedDataset
from commonground.data.part import part_of
from commonground.data.validation import hold_out
from tests.helpers import made_data


@pytest.mark.parametrize("held", [0.0, 0.4])
def test_some_clients_in_an_order_of_their_own(held: float) -> None:
    data = made_data((5, 3, 8, 2), client_names=("a", "b", "c", "d"))
    data = hold_out(data, held, 0) if held else data
    part, chosen = part_of(data, [2, 0]), (2, 0)
    assert [part.client_name(c) for c in range(part.clients)] == ["c", "a"]
    for split in ("train", "test", "validation"):
        for here, there in enumerate(chosen):
            assert np.array_equal(samples(part, split, here), samples(data, split, there))
    assert len(part.y_train) == 13  # and no rows of others
    assert bool(part.validation_sizes.sum()) == bool(held)


def samples(data: FederatedDataset, split: str, client: int) -> np.ndarray:
    rows = getattr(data, f"{split}_indices")(client)
    return (data.x_test if split == "test" else data.x_train)[rows]

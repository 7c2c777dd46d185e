"""What clients say of their data cannot make a server allocate what nobody has."""

from __future__ import annotations

import numpy as np
import pytest

from commonground.data.described import describe_client, described_dataset
from commonground.data.part import part_of
from commonground.errors import DataError
from tests.helpers import made_data


def test_more_rows_than_anybody_has_are_refused_by_name() -> None:
    data = made_data((6, 7), dtype=np.float32)
    honest, liar = (describe_client(part_of(data, [c]), f"site {c}") for c in (0, 1))
    assert described_dataset([honest, liar]).clients == 2
    with pytest.raises(
        DataError, match=r"1,099,5\d\d,\d\d\d,\d\d\d of them client 'site 1'; a server takes up to 536,8"
    ):
        described_dataset([honest, liar.model_copy(update={"train": 1 << 40})])

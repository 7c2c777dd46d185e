"""What clients say of their data cannot make a server allocate what nobody has."""

from __future__ import annotations

import numpy as np
import pytest

from commonground.data.described import as_agreed, describe_client, described_dataset
from commonground.data.part import part_of
from commonground.errors import DataError
from tests.helpers import made_data
from tests.language import token_data


def test_more_rows_than_anybody_has_are_refused_by_name() -> None:
    data = made_data((6, 7), dtype=np.float32)
    honest, liar = (describe_client(part_of(data, [c]), f"site {c}") for c in (0, 1))
    assert described_dataset([honest, liar]).clients == 2
    with pytest.raises(
        DataError, match=r"1,099,5\d\d,\d\d\d,\d\d\d of them client 'site 1'; a server takes up to 536,8"
    ):
        described_dataset([honest, liar.model_copy(update={"train": 1 << 40})])


def test_texts_alone_may_be_of_several_lengths() -> None:
    """What is no token with its mark has the same shape at all clients."""
    one, other = (describe_client(part_of(token_data(2), [c]), f"site {c}") for c in (0, 1))
    assert one.tokens == other.tokens is not None
    longer = other.model_copy(update={"fields": (("", "<i4", (41, 2)),)})
    for told in ([one, longer], [longer, one]):
        assert described_dataset(told).x_train.shape[1:] == (41, 2)
    endless = other.model_copy(update={"fields": (("", "<i4", (1 << 18, 2)),)})
    many = longer.model_copy(update={"train": 1 << 28})
    for told in ([one, endless], [one, many]):
        with pytest.raises(DataError, match=r"client 'site 1' says that its longest text has .* tokens; a server"):
            described_dataset(told)
    with pytest.raises(DataError, match="all clients have texts, and 'made' is none"):
        as_agreed(made_data((6,)), ("a", "b", "c"), {}, 40)
    for fields in ((("", "<i4", (1, 2)),), (("", "<i4", (41, 3)),), (("", "<f4", (41, 2)),), (("x", "<i4", (41, 2)),)):
        odd = other.model_copy(update={"fields": fields})
        assert odd.tokens is None
        with pytest.raises(DataError, match="the clients 'site 0' and 'site 1' do not agree on the samples"):
            described_dataset([one, odd])

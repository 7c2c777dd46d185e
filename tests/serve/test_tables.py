"""A batch of rows is answered as each of them alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import commonground as cg
from commonground.errors import DataError

pytest.importorskip("fastapi")

from commonground.serve import RunModels
from commonground.serve.tables import tables_of

LARGE = 2**53 + 1


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> RunModels:
    rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("run")
    table = pd.DataFrame({"c": ["a", "b"] * 40, "num": rng.normal(size=80), "icat": [LARGE, 2**53, 3, 2**63 + 1] * 20})
    table["y"] = np.where(table.icat == LARGE, "yes", "no")
    data = cg.load_data(table, client_column="c", target="y", kinds={"icat": "category"})
    return RunModels(cg.train("fedrep", data, rounds=3, out=folder / "run"))


def test_a_batch_says_what_its_rows_say_alone(models: RunModels) -> None:
    """One kind of cells makes no other of its neighbours: null no double of a large whole number, words no refusal."""
    cells: list[tuple[Any, Any]] = [
        (1, LARGE), ("2", None), (None, "3"), (1.5, 3), (7, 2**63 + 1), (-1, 2.5), (LARGE, str(LARGE)), ("0.5", 3.0),
    ]  # fmt: skip
    rows = [{"num": num, "icat": icat} for num, icat in cells]
    alone = [models.predict("a", [row])[0] for row in rows]
    for order in (range(len(rows)), range(len(rows) - 1, -1, -1)):
        for place, said in zip(order, models.predict("a", [rows[place] for place in order]), strict=True):
            np.testing.assert_allclose(list(said.values.values()), list(alone[place].values.values()), rtol=1e-6)
            assert said.notes == alone[place].notes


def test_the_first_bad_row_is_named_by_its_place_in_the_request(models: RunModels) -> None:
    fine: dict[str, Any] = {"num": 1.0, "icat": 3}
    for bad, says in (("x", "row 3, column 'num'"), (2**64, "row 3, column 'num': 18446744073709551616 is a whole")):
        with pytest.raises(DataError, match=says):
            models.predict("a", [fine, {**fine, "num": "2"}, {**fine, "num": bad}])
    examples = [{**fine, "y": "yes"}, {**fine, "num": "2", "y": "no"}, {**fine, "icat": None, "y": "new"}]
    with pytest.raises(DataError, match="row 3 has no y, or one that the run does not know"):
        models.rows.examples(examples, "d")
    x, y = models.rows.examples([*examples[:2], *examples[:1]], "d")
    assert x[:, 0].tolist() == [1.0, 2.0, 1.0]
    assert y.tolist() == [1, 0, 1]


def test_rows_of_one_kind_are_one_table() -> None:
    rows = [{"a": 1, "k": "x"}, {"a": 2.5, "k": None}, {"a": None, "k": "y"}]
    assert len(tables_of(rows, ["a", "k"], {"a"})) == 1
    assert len(tables_of(rows, ["a", "k"])) == 3

"""A column that gives the target away is found, and no tree is grown where none could be good enough."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.tree import DecisionTreeClassifier

from commonground.data.tables.inspect import inspect_table
from commonground.data.tables.leaks import _fewest_mistakes


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    classes=st.integers(2, 4),
    values=st.sampled_from([3, 20, 500]),
    noise=st.sampled_from([0.0, 0.02, 1.0]),
)
def test_no_tree_makes_fewer_mistakes(seed: int, classes: int, values: int, noise: float) -> None:
    rng = np.random.default_rng(seed)
    x = rng.integers(0, values, 300).astype(float)
    target = np.where(rng.random(300) < noise, rng.integers(0, classes, 300), (x * classes / values).astype(int))
    tree = DecisionTreeClassifier(max_leaf_nodes=2 * classes, random_state=0).fit(x[:, None], target)
    wrong = (tree.predict(x[:, None]) != target).sum()
    assert _fewest_mistakes(x, target, 2 * classes) <= wrong


def test_many_plain_columns_grow_no_trees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grown = []
    real = DecisionTreeClassifier.fit

    def counted(tree: DecisionTreeClassifier, *given: Any, **more: Any) -> DecisionTreeClassifier:
        grown.append(tree)
        return real(tree, *given, **more)

    monkeypatch.setattr(DecisionTreeClassifier, "fit", counted)
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 400)
    columns = {f"x{i}": rng.normal(size=400) for i in range(60)} | {"leak": y * 3 + rng.random(400)}
    lines = [",".join(["who", *columns, "label"])]
    lines += [
        ",".join([f"c{row % 5}", *(f"{values[row]:.6f}" for values in columns.values()), ["no", "yes"][y[row]]])
        for row in range(400)
    ]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    found = inspect_table(tmp_path / "t.csv", client_column="who", target="label")
    assert [c.name for c in found.columns if c.suspicious.startswith("determines")] == ["leak"]
    assert len(grown) == 1

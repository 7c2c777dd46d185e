"""Tables of any making end in a sentence or in samples, never in a traceback."""

from __future__ import annotations

import contextlib
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from commonground import load_data
from commonground.data.tables.inspect import inspect_table
from commonground.data.tables.schema import TableSchema
from commonground.errors import CommonGroundError

QUICK = settings(max_examples=60, deadline=None, derandomize=True, database=None,
                 suppress_health_check=[HealthCheck.function_scoped_fixture])  # fmt: skip

HOSTILE = ("", " ", "NA", "nan", "inf", "-inf", "1e400", "0x10", "1_0", "٣", "1,5", "1.234,5", "1,234", "true", "No",
           "2024-02-30", "31.12.2023", "02/03/2024", "9999-12-31", "0001-01-01", "2024-01-01T25:00", "[bold]", "=1+1",
           "../../x", "\x1b[31mred", "a\tb", "'quoted'", '"', '""', "a;b", "a|b", "\ufeff", "\u202e", "\x00", "😀" * 5,
           "x" * 300, "-", "+", ".", ",", "#", "None", "__class__", "{}", "%d", "\\", "0", "-0", "1e-320",
           "00012")  # fmt: skip
cells = st.one_of(
    st.sampled_from(HOSTILE),
    st.integers(-5, 5).map(str),
    st.floats(allow_nan=False, width=32).map(str),
    st.text(max_size=6),
)
kinds = st.sampled_from(
    [st.integers(0, 3).map(str), st.sampled_from(["a", "b", "c"]), st.sampled_from(["yes", "no", ""]), cells,
     st.dates().map(str), st.floats(-1e3, 1e3).map(lambda v: f"{v:.2f}"), st.just("same"), st.text(max_size=30)]
)  # fmt: skip
names = st.one_of(st.sampled_from(["label", "who", "split", "sample", "x", "a b", "", *HOSTILE]), st.text(max_size=5))


@st.composite
def tables(draw: Any) -> bytes:
    """A file: mostly a table with a label and clients, sometimes ragged, with any names, separator and encoding."""
    width, rows = draw(st.integers(0, 4)), draw(st.integers(0, 14))
    header = [*draw(st.lists(names, min_size=width, max_size=width)), "who", "label"]
    columns = [draw(st.lists(draw(kinds), min_size=rows, max_size=rows)) for _ in range(width)]
    columns += [[f"c{i % 2}" for i in range(rows)], draw(st.lists(st.sampled_from("xy"), min_size=rows, max_size=rows))]
    lines = [header, *zip(*columns, strict=True)]
    if draw(st.integers(0, 9)) == 0 and rows:
        lines[draw(st.integers(0, rows))] = tuple(draw(st.lists(cells, max_size=6)))
    separator = draw(st.sampled_from(",,,;\t|"))
    quote = draw(st.booleans())
    text = "\n".join(
        separator.join(f'"{c.replace(chr(34), chr(34) * 2)}"' if quote else c for c in row) for row in lines
    )
    raw = (text + draw(st.sampled_from(["", "\n", "\n\n", "\r\n"]))).encode(
        draw(st.sampled_from(["utf-8", "utf-8", "latin-1", "utf-16", "utf-8-sig", "cp1252"])), "replace"
    )
    cut = draw(st.integers(0, 12))
    raw = raw[: len(raw) // 2] if cut == 0 else raw
    return gzip.compress(raw) if cut == 1 else raw


def load_or_sentence(path: Path, **options: Any) -> None:
    try:
        data = load_data(path, **options)
    except CommonGroundError:
        return
    assert np.isfinite(data.x_train).all()
    schema = data.schema
    assert schema is not None
    assert TableSchema.from_json(schema.to_json()) == schema
    assert data.x_train.shape[1] == len(schema.inputs)


@QUICK
@given(raw=tables())
@example(raw=b"")
@example(raw=b"a,\x00,a: sine of year,who,label\n" + b"2024-01-01,1,2,c0,x\n2024-02-01,2,3,c0,y\n" * 4)
@example(raw=b"\n\n\n")
@example(raw=b"who,label\nc0,x\nc0,y\nc1,x\nc1,y\n")
@example(raw=b"a,who,label\n" + b"1,c0,x\n" * 3)
@example(raw=b"a,who,label\n1,c0,x\n")
def test_any_text(raw: bytes, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(raw)
    load_or_sentence(path, client_column="who")
    load_or_sentence(path, client_column="who", few_rows="pool", scaling="client")
    with contextlib.suppress(CommonGroundError):
        inspect_table(path)


@QUICK
@given(
    raw=st.binary(max_size=200), name=st.sampled_from(["t.csv", "t.tsv", "t.parquet", "t.arrow", "t.jsonl", "t.csv.gz"])
)
def test_any_bytes(raw: bytes, name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(raw)
    with pytest.raises(CommonGroundError):
        load_data(path, 2)


values = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.lists(st.integers(), max_size=2)
)


@QUICK
@given(rows=st.lists(st.dictionaries(st.sampled_from(["a", "b", "who", "label", ""]), values, max_size=5), max_size=12))
def test_any_objects(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows), "utf-8", "replace")
    with contextlib.suppress(CommonGroundError):
        data = load_data(path, client_column="who", few_rows="pool")
        assert np.isfinite(data.x_train).all()

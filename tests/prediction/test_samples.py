"""Arrays and tables that lie about themselves, given to ``predict``: one sentence with the file's name."""

from __future__ import annotations

import io
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import commonground as cg
from commonground.cli import main
from commonground.data import add_feature_noise
from commonground.errors import DataError
from commonground.prediction.samples import read_samples

GOOD = np.arange(12.0).reshape(3, 4)


def _npy(header: bytes, body: bytes = GOOD.tobytes()) -> bytes:
    header = header.ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + body


LIES = {
    "empty": b"",
    "magic alone": b"\x93NUMPY",
    "another version": b"\x93NUMPY\x09\x00" + b"\x00" * 100,
    "a header beyond the file": b"\x93NUMPY\x01\x00\xff\xff{",
    "no dictionary": _npy(b"[1, 2"),
    "a call": _npy(b"__import__('os').getcwd()"),
    "no shape": _npy(b"{'descr': '<f8', 'fortran_order': False}"),
    "no type": _npy(b"{'descr': 'no type', 'fortran_order': False, 'shape': (3, 4)}"),
    "a type of words": _npy(b"{'descr': 7, 'fortran_order': False, 'shape': (3, 4)}"),
    "a negative shape": _npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': (-3, 4)}"),
    "a shape of floats": _npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': (3.0, 4)}"),
    "terabytes": _npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000, 4)}"),
    "beyond counting": _npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': (%d, 4)}" % 10**30),
    "deep": _npy(b"(" * 100),
    "not text": _npy(b"\xff\xfe\x00{'descr'"),
    "objects": _npy(b"{'descr': '|O', 'fortran_order': False, 'shape': (3, 4)}"),
    "cut": _npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': (3, 4)}", GOOD.tobytes()[:-1]),
    "one axis": _npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': (12,)}"),
}


@pytest.mark.parametrize("lie", LIES)
def test_arrays_that_lie(lie: str, tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    path.write_bytes(LIES[lie])
    with pytest.raises(DataError) as caught:
        read_samples(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("seed", range(4))
def test_arrays_damaged_at_random(seed: int, tmp_path: Path) -> None:
    """They are read, or refused; a header's own bytes decide."""
    file = io.BytesIO()
    np.save(file, GOOD)
    rng = np.random.default_rng(seed)
    path = tmp_path / "x.npy"
    for _ in range(100):
        content = bytearray(file.getvalue())
        for place in rng.integers(128, size=rng.integers(1, 4)):
            content[place] = int(rng.integers(256))
        path.write_bytes(content)
        with suppress(DataError):  # anything else is a traceback
            assert read_samples(path).ndim >= 2


def test_whole_arrays_and_tables(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", GOOD)
    np.savetxt(tmp_path / "x.csv", GOOD, delimiter=",")
    for name in ("x.npy", "x.csv"):
        np.testing.assert_array_equal(read_samples(tmp_path / name), GOOD)


def test_a_field_beyond_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("1,2\n" + "3" * 140_000 + ",4\n")
    with pytest.raises(DataError, match=r"x.csv' cannot be read as numbers: field larger than field limit"):
        read_samples(path)


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_of_a_model_that_all_have_nobody_says_whose(
    noise: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Unless clients differ in what is done to their samples, or one has been added with a head of its own."""
    data = cg.load_data("digits", 4, seed=0)
    data = add_feature_noise(data, noise, 0) if noise else data
    run = cg.train("fedavg", data, model="mlp", rounds=1, out=tmp_path / "run")
    assert run.trained.one_for_all == (not noise)
    np.save(tmp_path / "x.npy", data.x_test[:3])
    asked = ["predict", str(tmp_path / "run"), "--input", str(tmp_path / "x.npy")]
    assert main(asked) == (2 if noise else 0)
    said = capsys.readouterr()
    if noise:
        assert "give either --client ID or --global" in said.err
        return
    assert main([*asked, "--client", "2"]) == 0
    assert capsys.readouterr().out == said.out
    cg.keep_clients(run, cg.load_data("digits", 2, seed=1))
    assert main(asked) == 2
    assert "give either --client ID or --global" in capsys.readouterr().err
    assert not cg.train("fedrep", data, model="mlp", rounds=1).trained.one_for_all


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("1,2\n3,4,5\n", r"row 2: it has 3 cells, and the first row 2$"),
        ("1,2\n3,1_0\n", r"row 2: column 2 is '1_0', no number; columns are those"),
    ],
)
def test_rows_that_do_not_fit_are_named(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(text)
    with pytest.raises(DataError, match=says):
        read_samples(tmp_path / "x.csv")

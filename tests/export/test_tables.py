"""Models of tables taken away: raw rows by column name, and nothing of other clients in the folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import pytest

import commonground as cg
from commonground.cli import main
from commonground.errors import ConfigError, DataError, RunError
from tests.data.tables.test_schema import table


@pytest.mark.parametrize("scaling", ["pooled", "client"])
def test_raw_rows_by_name(scaling: str, tmp_path: Path) -> None:
    file, run_dir = table(tmp_path), tmp_path / "run"
    options = ["--client-column", "who", "--target", "label", "--scaling", scaling]
    settings = ["--rounds", "1", "--quiet", "--out", str(run_dir)]
    assert main(["train", "fedrep", "--data", str(file), *options, *settings]) == 0
    run = cg.load_run(run_dir)
    for name in ("w0", "w2"):
        assert main(["export", str(run_dir), "--client", name, "--out", str(tmp_path / name), "--quiet"]) == 0
    exported = cg.load_exported(tmp_path / "w2")
    rows = pd.read_csv(file).drop(columns=["label"])
    wanted = run.predict(rows, "w2")
    np.testing.assert_allclose(exported.predict(rows), wanted, rtol=1e-5, atol=1e-6)
    assert not np.allclose(cg.load_exported(tmp_path / "w0").predict(rows), wanted)
    shuffled = rows[rows.columns[::-1]]
    np.testing.assert_array_equal(exported.predict(shuffled), exported.predict(rows))
    with pytest.raises(DataError, match="income"):
        exported.predict(rows.drop(columns=["income"]))
    told = "".join(p.read_text("utf-8") for p in (tmp_path / "w2").iterdir() if p.suffix in (".json", ".md"))
    assert "w0" not in told, "another client's name"
    assert "lognormal" not in told
    assert str(tmp_path) not in told
    assert exported.schema is not None
    assert all(column.low is None and column.high is None for column in exported.schema.features)


def test_a_global_model_has_no_client_s_scale(tmp_path: Path) -> None:
    data = cg.load_data(str(table(tmp_path)), label="label", client_column="who", scaling="client")
    run = cg.train("fedavg", data, model="mlp", rounds=1, local_epochs=1, workers=1)
    with pytest.raises(ConfigError, match="scales by each client's own statistics, so name a client"):
        cg.export_model(run, tmp_path / "global")
    assert not (tmp_path / "global").exists()


def test_onnx_scales_by_itself(tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    data = cg.load_data(str(table(tmp_path)), label="label", client_column="who", scaling="client")
    run = cg.train("fedrep", data, model="mlp", rounds=1, local_epochs=1, workers=1)
    cg.export_model(run, tmp_path / "own", client="w1", format="onnx")
    raw = cg.load_data(str(table(tmp_path)), label="label", client_column="who", scaling="none")
    rows = raw.x_test[raw.test_indices(1)]
    session = runtime.InferenceSession(tmp_path / "own" / "model.onnx")
    (said,) = session.run(None, {"samples": rows})
    np.testing.assert_allclose(said, run.predict(data.x_test[data.test_indices(1)], "w1"), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("format", ["safetensors", "onnx", "torch"])
@pytest.mark.parametrize("task", ["classification", "regression"])
def test_a_client_s_scale_is_taken_off_in_double_precision(
    format: Literal["safetensors", "onnx", "torch"], task: str, tmp_path: Path
) -> None:
    """Its mean, rounded to single precision, would shift numbers of a million by a hundredth of their deviation."""
    pytest.importorskip("onnxruntime")
    rng = np.random.default_rng(0)
    who, z = rng.integers(0, 4, 300), rng.normal(size=300)
    frame = pd.DataFrame({"who": np.array(list("abcd"))[who], "t": (1e6 + 5 * z).round(2), "x": rng.normal(size=300)})
    frame["y"] = z * (who + 1) if task == "regression" else np.where((z > 0) ^ (who % 2 == 0), "p", "q")
    data = cg.load_data(frame, client_column="who", target="y", scaling="client", task=task)
    run = cg.train("fedrep", data, model="mlp", rounds=8)
    cg.export_model(run, tmp_path / "b", client="b", format=format)
    rows = frame[frame.who == "b"]
    if format == "safetensors":
        said = cg.load_exported(tmp_path / "b").predict(rows)
    else:
        text = (tmp_path / "b" / "README.md").read_text("utf-8")
        names: dict[str, Any] = {"folder": tmp_path / "b", "rows": rows}
        exec(text.split("```python\n")[1].split("```")[0], names)
        said = names["prediction"]
    own = run.predict(rows, "b")
    np.testing.assert_allclose(np.asarray(getattr(said, "detach", lambda: said)()), own, rtol=0, atol=2e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("format", ["onnx", "torch"])
def test_the_card_s_lines_take_raw_rows(format: Literal["onnx", "torch"], dtype: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    data = cg.load_data(str(table(tmp_path)), label="label", client_column="who")
    run = cg.train("fedrep", data, model="mlp", rounds=1, local_epochs=1, workers=1, dtype=dtype,
                   out=tmp_path / "run")  # fmt: skip
    cg.export_model(run, tmp_path / "own", client="w1", format=format)
    rows = pd.read_csv(table(tmp_path)).drop(columns=["label"])
    text = (tmp_path / "own" / "README.md").read_text("utf-8")
    names: dict[str, Any] = {"folder": tmp_path / "own", "rows": rows[rows.columns[::-1]]}
    exec(text.split("```python\n")[1].split("```")[0], names)
    said = names["prediction"]
    np.testing.assert_allclose(np.asarray(getattr(said, "detach", lambda: said)()), run.predict(rows, "w1"), atol=1e-5)
    for whose in (run, tmp_path / "run"):
        np.testing.assert_array_equal(cg.table_inputs(whose, rows), cg.table_inputs(tmp_path / "own", rows))
    with pytest.raises(DataError, match="income"):
        cg.table_inputs(tmp_path / "own", rows.drop(columns=["income"]))


def test_inputs_need_a_schema(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"holds no schema\.json; only models of tables have one"):
        cg.table_inputs(tmp_path, pd.DataFrame({"a": [1]}))
    data = cg.load_data(str(table(tmp_path)), label="label", client_column="who", scaling="client")
    cg.train("fedrep", data, model="mlp", rounds=1, workers=1, out=tmp_path / "run")
    with pytest.raises(ConfigError, match="scales by each client's own statistics; export a client's model"):
        cg.table_inputs(tmp_path / "run", pd.DataFrame({"a": [1]}))


def test_a_client_that_is_called_all_is_exported_by_its_name_in_quotes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"who": ["all", "b"] * 20, "x": rng.normal(size=40), "y": ["no", "up", "up", "no"] * 10})
    run = cg.train("fedrep", cg.load_data(frame, client_column="who", target="y"), rounds=1, out=tmp_path / "run")
    with pytest.raises(ConfigError, match=r"'all' stands for every client, .* in quotes, --client \"'all'\", and"):
        cg.export_model(run, tmp_path / "out", client="all")
    cg.export_model(run, tmp_path / "out", client="'all'")
    np.testing.assert_allclose(cg.load_exported(tmp_path / "out").predict(frame), run.predict(frame, "all"), rtol=1e-5)

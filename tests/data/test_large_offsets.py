"""Numbers that differ by little beside their size: what is added to a column changes nothing that is learnt of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import commonground as cg
from commonground.data.arrays import Preprocess
from commonground.data.formats.numbers import Numbers
from commonground.data.own_table import OwnTable
from commonground.data.tables.options import TableOptions
from commonground.data.tables.schema import TableSchema
from commonground.network import gather
from commonground.single_precision import common_part, rounding_shows
from commonground.tasks import Regression
from tests.network.town import Town

FAR = 1.7e9  # seconds since 1970; steps of single precision there are 128
Z = np.random.default_rng(0).normal(size=300)
Z[::10] += 1.0


def frame(offset: float, lacking: bool = False) -> pd.DataFrame:
    v: Any = (offset + 50 * Z).round(1)
    rows = pd.DataFrame({"who": np.arange(300) % 3, "v": v, "y": np.where(Z > 0, "p", "n")})
    rows["split"] = np.where(np.arange(300) % 4 == 0, "test", "train")
    if lacking:
        rows.loc[::7, "v"] = np.nan
    return rows


def loaded(offset: float, lacking: bool = False, **options: Any) -> cg.FederatedDataset:
    return cg.load_data(frame(offset, lacking), client_column="who", target="y", kinds={"v": "number"}, **options)


def scaled(data: cg.FederatedDataset) -> np.ndarray[Any, np.dtype[np.float64]]:
    stored = {"samples": torch.from_numpy(np.asarray(data.x_train))}
    return Numbers((data.x_train.shape[1],), data.preprocess).make(stored, torch.float32)["x"].double().numpy()


@pytest.mark.parametrize("scaling", ["pooled", "client", "bounds"])
@pytest.mark.parametrize("lacking", [False, True])
def test_a_table_s_column_is_told_apart_wherever_it_lies(scaling: str, lacking: bool) -> None:
    def how(offset: float) -> str:
        return f"bounds:v={offset - 300}:{offset + 300}" if scaling == "bounds" else scaling

    near, far = (loaded(offset, lacking, scaling=how(offset)) for offset in (0.0, FAR))
    assert near.schema is not None
    assert far.schema is not None
    assert near.schema.features[0].offset == 0.0
    assert far.schema.features[0].offset == pytest.approx(FAR, abs=4096)
    np.testing.assert_allclose(scaled(near), scaled(far), atol=2e-5)
    assert not [note for note in far.about["notes"] if "rounded" in note]
    again = TableSchema.from_json(far.schema.to_json())
    assert again == far.schema
    assert far.schema.reads_as(again)
    assert not far.schema.reads_as(near.schema)


def test_without_scaling_nothing_is_taken_off_and_it_is_told() -> None:
    """What numbers have in common would be learnt from the rows."""
    data = loaded(FAR, scaling="none")
    assert data.schema is not None
    assert data.schema.features[0].offset == 0.0
    assert [note for note in data.about["notes"] if "rounded to steps of 128" in note]


def test_bounds_alone_say_what_is_taken_off() -> None:
    """Under differential privacy no row may show in it."""
    bounds = f"bounds:v={FAR - 300}:{FAR + 300}"
    whole, half = (cg.load_data(rows, client_column="who", target="y", kinds={"v": "number"}, scaling=bounds)
                   for rows in (frame(FAR), frame(FAR)[:160]))  # fmt: skip
    assert whole.schema is not None
    assert half.schema is not None
    assert whole.schema.features == half.schema.features
    assert whole.schema.features[0].offset == FAR


def test_a_run_answers_rows_as_they_are(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"rounds": 3, "seed": 0, "threads": 1}
    near, far = (cg.train("fedavg", loaded(offset), **settings) for offset in (0.0, FAR))
    cg.train("fedavg", loaded(FAR), out=tmp_path / "run", **settings)
    from_folder = cg.load_run(tmp_path / "run")
    here, there = near.predict(frame(0.0), client="0"), from_folder.predict(frame(FAR), client="0")
    np.testing.assert_allclose(here, there, atol=1e-4)
    np.testing.assert_array_equal(there, far.predict(frame(FAR), client="0"))
    (folder,) = cg.export_model(from_folder, tmp_path / "out", client="0")
    np.testing.assert_allclose(cg.load_exported(folder.folder).predict(frame(FAR)), there, atol=1e-6)


@pytest.mark.parametrize("lacking", [False, True])
def test_clients_over_a_network_agree_on_it(lacking: bool, tmp_path: Path) -> None:
    agreed = []
    for offset in (0.0, FAR):
        folder = tmp_path / str(offset)
        folder.mkdir()
        tables = []
        for who, rows in frame(offset, lacking).groupby("who"):
            rows.drop(columns="who").to_csv(folder / f"{who}.csv", index=False, float_format="%.1f")
            tables.append(OwnTable(folder / f"{who}.csv", str(who), target="y"))
        assert not [note for table in tables for note in table.notes if "rounded" in note]
        told = gather(Town(tables, folder / "sites"), 3, 10).table
        assert told is not None
        agreed.append((told, [table.load(told) for table in tables]))
    (near, of_near), (far, of_far) = agreed
    assert near.features[0].offset == 0.0
    assert far.features[0].offset == far.features[0].fill == pytest.approx(FAR, abs=200)
    assert far.std[0] == pytest.approx(near.std[0], rel=1e-5)
    for one, other in zip(of_near, of_far, strict=True):
        np.testing.assert_allclose(scaled(one), scaled(other), atol=1e-4)


def test_arrays_in_double_precision() -> None:
    x = (FAR + 50 * Z)[:, None]
    mean, std = (float(x.mean()),), (float(x.std()),)
    made = Numbers((1,), Preprocess(mean=mean, std=std)).make({"samples": torch.from_numpy(x)}, torch.float32)["x"]
    assert made.dtype == torch.float32
    np.testing.assert_allclose(made.numpy(), (x - x.mean()) / x.std(), atol=1e-6)
    # Elsewhere products are of the numbers in the model's own type, as ever.
    usual, plain = Preprocess(mean=(1.0,), std=(3.0,)), torch.from_numpy(Z[:, None])
    assert not usual.in_double
    got = Numbers((1,), usual).make({"samples": plain}, torch.float32)["x"]
    assert torch.equal(got, (plain.float() - 1.0) / 3.0)


def test_targets_in_double_precision() -> None:
    y = FAR + 50 * Z
    task = Regression.standardised(y)
    kept = task.as_tensor(y[:, None], torch.float32)
    output = torch.from_numpy(Z[:, None]).float()
    expected = (Z - (y - y.mean()) / y.std()) ** 2
    np.testing.assert_allclose(task.loss(output, kept).numpy(), expected, atol=1e-6)
    assert Regression.standardised(Z).as_tensor(Z[:, None], torch.float32).dtype == torch.float32


def test_estimators() -> None:
    pytest.importorskip("sklearn")
    from commonground.sklearn import FederatedClassifier, FederatedRegressor

    groups, labels = np.arange(300) % 3, (Z > 0).astype(int)
    how: dict[str, Any] = {"rounds": 10, "random_state": 0}
    near, far = (
        FederatedClassifier("fedavg", **how).fit((offset + 50 * Z)[:, None], labels, groups=groups)
        for offset in (0.0, FAR)
    )
    assert far.score((FAR + 50 * Z)[:, None], labels, groups=groups) == pytest.approx(
        near.score((50 * Z)[:, None], labels, groups=groups), abs=0.01
    )
    regressor = FederatedRegressor("fedavg", rounds=30, random_state=0).fit(Z[:, None], FAR + 50 * Z, groups=groups)
    assert regressor.score(Z[:, None], FAR + 50 * Z, groups=groups) > 0.99


@pytest.mark.parametrize("format", ["onnx", "torch"])
def test_an_exported_model_takes_such_numbers_in_double_precision(format: Any, tmp_path: Path) -> None:
    x, y = (FAR + 50 * Z)[:, None], FAR + 10 * Z[:, None]
    data = cg.FederatedDataset.from_arrays(
        [(x[i::3][:75], y[i::3][:75], x[i::3][75:], y[i::3][75:]) for i in range(3)],
        task=Regression.standardised(y),
        preprocess=Preprocess(mean=(float(x.mean()),), std=(float(x.std()),)),
    )
    run = cg.train("fedavg", data, rounds=5, seed=0, out=tmp_path / "run")
    (folder,) = cg.export_model(run, tmp_path / "out", format=format)
    assert "as float64" in (folder.folder / "README.md").read_text()
    if format == "onnx":
        onnxruntime = pytest.importorskip("onnxruntime")

        (said,) = onnxruntime.InferenceSession(folder.folder / "model.onnx").run(None, {"samples": x})
    else:
        said = torch.export.load(folder.folder / "model.pt2").module()(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(said, run.predict(x), rtol=0, atol=1e-3)


@pytest.mark.parametrize(("size", "spread", "shows"), [(FAR, 50, True), (FAR, 6401, False), (0, 1e-9, False)])
def test_where_rounding_shows(size: float, spread: float, shows: bool) -> None:
    assert rounding_shows(size, spread) is shows
    assert rounding_shows(-size, spread) is shows


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_the_same_numbers_have_the_same_answer_however_they_are_stored(dtype: str) -> None:
    x = np.round(FAR / 128) * 128 + 128.0 * np.random.default_rng(1).integers(-9, 9, (60, 1))  # which float32 holds
    y = (x[:, 0] > x.mean()).astype(np.int64)
    how = Preprocess(mean=(float(x.mean()),), std=(float(x.std()),))
    data = cg.FederatedDataset.from_arrays([(x[:45], y[:45], x[45:], y[45:])], preprocess=how)
    run = cg.train("fedavg", data, rounds=5, seed=0)
    np.testing.assert_array_equal(run.predict(x.astype(dtype)), run.predict(x))
    small = cg.FederatedDataset.from_arrays(
        [(x[:45].astype(np.float32), y[:45], x[45:].astype(np.float32), y[45:])], preprocess=how
    )
    np.testing.assert_array_equal(cg.train("fedavg", small, rounds=5, seed=0).predict(x.astype(dtype)), run.predict(x))


def test_a_loss_of_ones_own_has_targets_in_the_outputs_type() -> None:
    y = FAR + 50 * Z[:, None]
    data = cg.FederatedDataset.from_arrays([(Z[:225, None], y[:225], Z[225:, None], y[225:])],
                                           task=Regression.standardised(y))  # fmt: skip

    def huber(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.huber_loss(output, target, reduction="none").mean(1)

    for engine in ("serial", "batched"):
        run = cg.train("fedavg", data, rounds=20, seed=0, engine=engine, loss=huber)
        off = run.predict(Z[225:, None]) - y[225:]
        assert run.summary["metrics"]["rmse"]["mean"] == pytest.approx(float(np.sqrt((off**2).mean())), rel=1e-4)
        assert run.summary["metrics"]["r2"]["mean"] > 0.9


def test_whole_numbers_as_targets_keep_their_digits() -> None:
    y = (FAR + 20 * Z).astype(np.int64)
    data = cg.FederatedDataset.from_arrays([(Z[:225, None], y[:225], Z[225:, None], y[225:])],
                                           task=Regression.standardised(y))  # fmt: skip
    assert (data.y_train[:, 0] == y[:225]).all()
    assert Regression().targets(np.arange(9), "y").dtype == np.float32


@pytest.mark.parametrize("format", ["onnx", "torch"])
def test_a_table_whose_numbers_are_constant_in_training_is_exported_as_any_other(format: Any, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    rows = frame(0.0)
    rows["day"] = np.where(rows["split"] == "test", 20240305, 20240101)
    kinds = {"v": "number", "day": "number"}
    data = cg.load_data(rows, client_column="who", target="y", kinds=kinds)
    run = cg.train("fedavg", data, rounds=2, seed=0, out=tmp_path / "run")
    (exported,) = cg.export_model(run, tmp_path / "out", format=format)
    inputs = cg.table_inputs(exported.folder, rows)
    if format == "onnx":
        (said,) = onnxruntime.InferenceSession(exported.folder / "model.onnx").run(None, {"samples": inputs})
    else:
        said = torch.export.load(exported.folder / "model.pt2").module()(torch.from_numpy(inputs)).detach().numpy()
    np.testing.assert_allclose(said, run.predict(rows), atol=1e-5)


@pytest.mark.parametrize("constant", [1, 3])
def test_clients_whose_numbers_are_all_the_same_tell_them_exactly(constant: int, tmp_path: Path) -> None:
    agreed = []
    for offset in (0.0, FAR):
        tables = []
        for who in range(3):
            rows = frame(offset)[who::3].drop(columns="who")
            rows["v"] = offset + 10.0 * who + (0.0 if who < constant else 1.0) * rows.index.to_numpy() % 40
            path = tmp_path / f"{offset}-{who}.csv"
            rows.to_csv(path, index=False, float_format="%.1f")
            tables.append(OwnTable(path, str(who), target="y", options=TableOptions(kinds={"v": "number"})))
        told = gather(Town(tables, tmp_path / str(offset)), 3, 10).table
        assert told is not None
        agreed.append(told)
    near, far = agreed
    assert far.std[0] == pytest.approx(near.std[0], rel=1e-6)
    assert far.mean[0] + far.features[0].offset - FAR == pytest.approx(near.mean[0], abs=1e-5)


def test_a_client_whose_numbers_lie_elsewhere_is_named() -> None:
    """Their own statistics are of numbers that were rounded before."""
    rows = frame(0.0)
    rows["v"] += np.array([1.5e9, 1.6e9, FAR])[rows["who"]]
    data = cg.load_data(rows, client_column="who", target="y", kinds={"v": "number"}, scaling="client")
    told = [note for note in data.about["notes"] if "single precision rounds away" in note]
    assert [note.partition("client '")[2][0] for note in told] == ["0", "1", "2"]
    near = loaded(0.0, scaling="client").about["notes"]
    assert not [note for note in near if "single precision" in note]


def test_some_rows_fewer_have_the_same_offset() -> None:
    """As where some are held out to judge by: the data set itself is still the run's."""
    data = loaded(FAR)
    run = cg.train("fedavg", data, rounds=2, seed=0, validation_fraction=0.2)
    assert run.trained.schema is not None
    assert data.schema is not None
    assert run.trained.schema.mean != data.schema.mean
    assert run.importance(data) is not None
    for spread in (1e-3, 1.0, 6000.0):
        offset = common_part(FAR + 0.3, FAR, spread)
        assert not rounding_shows(FAR - offset + 4 * spread, spread)

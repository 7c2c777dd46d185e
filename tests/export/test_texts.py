"""Exported models of texts say outside what they say inside, of texts of different lengths, by their cards' lines."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import commonground as cg
from commonground.engine.run import Run
from commonground.export.formats import _cause
from commonground.models.adapted import AdaptedModel
from tests.small_texts import trained

transformers = pytest.importorskip("transformers")
pytest.importorskip("peft")
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")  # of the exporters

TEXTS = ["good", "a good film the is", "bad day", "a film is true false bad good c d e", "the answer"]


def by_its_card(folder: Path, texts: list[str]) -> np.ndarray[Any, Any]:
    """Class probabilities as the lines of a folder's card give them."""
    (code,) = re.findall("```python\n(.*?)```", (folder / "README.md").read_text("utf-8"), flags=re.DOTALL)
    names: dict[str, Any] = {"folder": str(folder), "texts": texts}
    exec(code, names)
    said = torch.softmax(names["logits"], -1) if "logits" in names else names["prediction"]
    return np.asarray(getattr(said, "detach", lambda: said)())


@pytest.fixture(scope="module")
def without_padding(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trained("llama", tmp_path_factory.mktemp("llama"))


@pytest.mark.parametrize("format", ["peft", "safetensors", "onnx", "torch"])
def test_a_base_without_a_token_for_padding(format: Any, without_padding: Run, tmp_path: Path) -> None:
    if format == "onnx":
        pytest.importorskip("onnxruntime")
    run = without_padding
    cg.export_model(run, tmp_path / "own", client="x", format=format)
    own = cg.predict_rows(run, pd.DataFrame({"who": "x", "text": TEXTS}))[["bad", "good"]].to_numpy()
    assert np.ptp(own[:, 0]) > 0.01
    np.testing.assert_allclose(by_its_card(tmp_path / "own", TEXTS), own, atol=1e-6)
    network = run.trained.network
    assert isinstance(network, AdaptedModel)
    assert network.pad_token is None  # as it was


def test_a_token_that_ends_every_text_pads_none(tmp_path: Path) -> None:
    """transformers' head takes the last token that is no padding, which then would be the one before it."""
    from tokenizers import processors

    run = trained("llama", tmp_path)
    words = transformers.AutoTokenizer.from_pretrained(tmp_path / "base")
    ends = [(token, words.convert_tokens_to_ids(token)) for token in ("<s>", "</s>")]
    words.backend_tokenizer.post_processor = processors.TemplateProcessing("<s> $A </s>", None, ends)
    words.save_pretrained(tmp_path / "base")
    cg.export_model(run, tmp_path / "own", client="x", format="safetensors")
    own = cg.predict_rows(run, pd.DataFrame({"who": "x", "text": TEXTS}))[["bad", "good"]].to_numpy()
    np.testing.assert_allclose(by_its_card(tmp_path / "own", TEXTS), own, atol=1e-6)


def test_what_was_in_an_exporters_way_is_told_without_colours() -> None:
    error = RuntimeError("\x1b[31mthe exporter's own words\x1b[0m")
    assert _cause(error) == "the exporter's own words"
    error.__cause__ = ValueError("\n  the cause itself \nand more")
    assert _cause(error) == "the cause itself"

"""Pretrained weights that are not there, or are those of another model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from commonground.errors import ConfigError, ModelError
from commonground.models.adapted import AdaptedModel
from commonground.models.huggingface import build_adapted
from commonground.models.lora_options import LoRAOptions
from tests.language import tiny_model

pytest.importorskip("transformers")


def built(folder: Path, **options: Any) -> AdaptedModel:
    return build_adapted(f"hf:{folder}", 3, LoRAOptions(rank=2, **options), torch.float32)


def changed(folder: Path, change: Any) -> None:
    """Rewrite a folder's weights; ``change`` gives the new name and value of a tensor, or None."""
    file = folder / "model.safetensors"
    kept = [new for name, value in load_file(file).items() if (new := change(name, value)) is not None]
    save_file({name: value.contiguous() for name, value in kept}, file, {"format": "pt"})


def test_a_new_head_and_pooler_are_drawn(tmp_path: Path) -> None:
    tiny_model("bert", tmp_path)  # with a head of two classes, where three are wanted
    changed(tmp_path, lambda name, value: None if "pooler" in name else (name, value))
    model = built(tmp_path)
    assert model.drawn == ("bert.pooler.dense.bias", "bert.pooler.dense.weight")
    assert model.get_parameter("base.classifier.weight").shape[0] == 3


@pytest.mark.parametrize("kind", ["bert", "llama", "llama-lm"])
def test_weights_of_a_layer_that_are_missing_are_told(kind: str, tmp_path: Path) -> None:
    tiny_model(kind, tmp_path)
    changed(tmp_path, lambda name, value: None if "layers.1." in name or "layer.1." in name else (name, value))
    with pytest.raises(ModelError, match=r"lack \d+ of the \d+ tensors of \w+, such as '\S+\.1\.\S+'$"):
        built(tmp_path, generative=kind == "llama-lm")


def test_weights_under_other_names_are_told(tmp_path: Path) -> None:
    tiny_model("bert", tmp_path)
    changed(tmp_path, lambda name, value: (f"module.{name}", value))
    with pytest.raises(
        ModelError, match=r"such as 'bert\.\S+'; it has such as 'module\.\S+', which the model has not$"
    ):
        built(tmp_path)


def test_weights_of_another_shape_are_told(tmp_path: Path) -> None:
    tiny_model("bert", tmp_path)
    changed(tmp_path, lambda name, value: (name, value[:20] if "position_embeddings" in name else value))
    match = r"'bert\.embeddings\.position_embeddings\.weight' is \[20, 16\], not \[64, 16\]$"
    with pytest.raises(ModelError, match=match):
        built(tmp_path)


def test_a_language_model_without_what_gives_its_scores_is_told(tmp_path: Path) -> None:
    tiny_model("llama-lm", tmp_path)
    changed(tmp_path, lambda name, value: None if name == "lm_head.weight" else (name, value))
    with pytest.raises(ModelError, match=r"lack 1 of the \d+ tensors of LlamaForCausalLM, such as 'lm_head\.weight'"):
        built(tmp_path, generative=True)


def test_layers_without_weights_are_not_adapted(tmp_path: Path) -> None:
    import transformers

    config = transformers.DistilBertConfig(vocab_size=44, dim=16, n_layers=2, n_heads=2, hidden_dim=24)
    transformers.DistilBertModel(config).save_pretrained(tmp_path)
    assert built(tmp_path).drawn == ("pre_classifier.bias", "pre_classifier.weight")
    with pytest.raises(ConfigError, match=r"match 'pre_classifier' as well, of which '.*' has no weights"):
        built(tmp_path, target_modules="q_lin,pre_classifier")


def test_a_head_of_another_name_is_what_is_told(tmp_path: Path) -> None:
    """Not that weights do not fit, where the head of two classes is none of ours."""
    import transformers

    config = transformers.T5Config(vocab_size=44, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2)
    transformers.T5ForSequenceClassification(config).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="has no task head named 'classifier' or 'score'"):
        built(tmp_path, target_modules="q,v")


def test_models_that_cannot_read_two_tokens_are_built(tmp_path: Path) -> None:
    import transformers

    size: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2}
    config = transformers.CanineConfig(**size, intermediate_size=24, max_position_embeddings=64)
    transformers.CanineForSequenceClassification(config).save_pretrained(tmp_path)
    assert built(tmp_path).adapted

"""An adapted model says what transformers' own forward says: scaled or bounded scores, windows, rows of any length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from commonground.errors import ModelError
from commonground.models.huggingface import build_adapted
from commonground.models.lora_options import LoRAOptions

transformers = pytest.importorskip("transformers")

SIZE: dict[str, Any] = {
    "vocab_size": 60, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "initializer_range": 0.3, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "tied": ("LlamaConfig", {"tie_word_embeddings": True}),
    "granite": ("GraniteConfig", {"logits_scaling": 8.0, "residual_multiplier": 0.22, "embedding_multiplier": 12.0}),
    "cohere": ("CohereConfig", {"logit_scale": 0.0625, "pad_token_id": 0}),
    "gemma2": ("Gemma2Config", {"head_dim": 8, "query_pre_attn_scalar": 8, "final_logit_softcapping": 3.0,
                                "attn_logit_softcapping": 5.0, "sliding_window": 12, "pad_token_id": 0}),
    "opt": ("OPTConfig", {"ffn_dim": 48, "word_embed_proj_dim": 32, "pad_token_id": 0}),
    "biogpt": ("BioGptConfig", {"pad_token_id": 0}),
    "bart": ("BartConfig", {"d_model": 32, "decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 48,
                            "encoder_layers": 1, "encoder_attention_heads": 4, "encoder_ffn_dim": 48,
                            "pad_token_id": 0, "is_decoder": True}),
    "bert": ("BertConfig", {"is_decoder": True, "pad_token_id": 0}),
    "window": ("MistralConfig", {"sliding_window": 8}),
    "some-windows": ("Qwen2Config", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}),
}  # fmt: skip


def batch(lengths: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Random tokens of rows of these lengths; the last third of each is its answer."""
    drawn = torch.Generator().manual_seed(0)
    ids = torch.full((len(lengths), max(lengths)), -1)
    marks = torch.zeros_like(ids)
    for row, length in enumerate(lengths):
        ids[row, :length] = torch.randint(3, SIZE["vocab_size"], (length,), generator=drawn)
        marks[row, length - length // 3 : length] = 1
    return ids, marks


def made(kind: str, folder: Path, generative: bool) -> str:
    name, more = KINDS[kind]
    torch.manual_seed(1)
    config = getattr(transformers, name)(**{**SIZE, **more})
    auto = transformers.AutoModelForCausalLM if generative else transformers.AutoModelForSequenceClassification
    auto.from_config(config).save_pretrained(folder)
    return f"hf:{folder}"


@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_scored_by_the_models_own_logits(kind: str, tmp_path: Path) -> None:
    net = build_adapted(made(kind, tmp_path, True), 1, LoRAOptions(rank=2, generative=True), torch.float32)
    own = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    ids, marks = batch((40, 11, 25))
    net.eval()
    for grad in (False, True):  # tokens laid end to end, and padded
        with torch.set_grad_enabled(grad):
            got = net(ids, marks)
        for row, said in enumerate(got):
            length = int((ids[row] >= 0).sum())
            with torch.no_grad():
                logits = own(input_ids=ids[row : row + 1, :length]).logits[0]
            places = torch.nonzero(marks[row, :length])[:, 0] - 1
            torch.testing.assert_close(said[: len(places)].detach(), logits[places], rtol=1e-4, atol=1e-4)
            assert not said[len(places) :].any()


@pytest.mark.parametrize("kind", ["llama", "window", "some-windows"])
def test_a_row_is_classified_alike_alone_and_among_others(kind: str, tmp_path: Path) -> None:
    net = build_adapted(made(kind, tmp_path, False), 2, LoRAOptions(rank=2), torch.float32).eval()
    ids, marks = batch((40, 11, 25))
    with torch.no_grad():
        together = net(ids, torch.zeros_like(marks))
        for row in range(len(ids)):
            length = int((ids[row] >= 0).sum())
            alone = net(ids[row : row + 1, :length], torch.zeros(1, length, dtype=torch.long))
            torch.testing.assert_close(together[row], alone[0], rtol=1e-4, atol=1e-5)


def test_a_batch_may_hold_the_whole_vocabulary(tmp_path: Path) -> None:
    """Then no token is left to pad with that is not in it; what stands behind a row is masked."""
    net = build_adapted(made("llama", tmp_path, True), 1, LoRAOptions(rank=2, generative=True), torch.float32)
    ids = torch.full((2, 62), -1)
    ids[0, :60], ids[0, 60:], ids[1, :10] = torch.arange(60), 3, 5
    marks = torch.zeros_like(ids)
    marks[0, 30:], marks[1, 5:10] = 1, 1
    together = net(ids, marks)
    torch.testing.assert_close(together[1, :5], net(ids[1:, :10], marks[1:, :10])[0], rtol=1e-4, atol=1e-5)


def test_an_adapted_last_layer_counts(tmp_path: Path) -> None:
    options = LoRAOptions(rank=2, generative=True, target_modules="q_proj,lm_head")
    net = build_adapted(made("llama", tmp_path, True), 1, options, torch.float32)
    ids, marks = batch((20, 11))
    before = net(ids, marks)
    layer = next(net.get_submodule(name) for name in net.adapted if name.endswith("lm_head"))
    with torch.no_grad():
        layer.lora_B.fill_(0.1)  # type: ignore[operator]
    after = net(ids, marks)
    assert (after[0, : 20 // 3] - before[0, : 20 // 3]).abs().min() > 0
    assert not after[1, 11 // 3 :].any()


def test_layers_that_are_not_linear_are_named(tmp_path: Path) -> None:
    config = transformers.GPT2Config(vocab_size=60, n_embd=32, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=2)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    for targets in ("", "c_attn", "lm_head"):
        with pytest.raises(ModelError, match=r"GPT2LMHeadModel has no linear layer .* are made of Conv1D"):
            build_adapted(f"hf:{tmp_path}", 1, LoRAOptions(generative=True, target_modules=targets), torch.float32)

"""Hugging Face models with LoRA: a folded cohort, kept hidden states and every engine give the same numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import commonground as cg
from commonground.config import RunConfig
from commonground.data.formats import TokenRows
from commonground.data.inputs import select
from commonground.engine.backends.factory import make_engine
from commonground.engine.clients.folding import fold_call
from commonground.engine.prepare import prepare_setup
from commonground.errors import ModelError, RunError
from commonground.models import call
from commonground.models.adapted import AdaptedModel, _passes
from commonground.models.huggingface import build_adapted
from commonground.models.lora import SequenceDropout
from commonground.models.lora_options import LoRAOptions
from tests.language import tiny_model, token_data

pytest.importorskip("transformers")

# Adam divides by what it has seen of gradients, and rounding grows with that: other tests compare its engines.
SETTINGS: dict[str, Any] = {
    "rounds": 3,
    "batch_size": 3,
    "optimizer": "sgd",
    "lr": 0.5,
    "seed": 5,
    "dtype": "float64",
}
OPTIONS = {"rank": 3, "alpha": 6, "layers": "1,2"}


@pytest.fixture(scope="module", params=["bert", "roberta", "llama"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_model(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_model("bert", tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def causal(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_model("llama-lm", tmp_path_factory.mktemp("lm"))


def run(algorithm: str, model: str, engine: str, data: Any = None, **settings: Any) -> cg.Run:
    options = OPTIONS | settings.pop("model_options", {})
    return cg.train(
        algorithm, data or token_data(), model=model, model_options=options, engine=engine, **SETTINGS | settings
    )


def furthest(one: cg.Run, other: cg.Run) -> float:
    return max(float((one.shared[n] - other.shared[n]).abs().max()) for n in one.shared)


@pytest.mark.parametrize("algorithm", ["lora", "ffa-lora", "rolora", "flexlora", "flora"])
def test_every_method_gives_the_same_numbers_in_every_engine(algorithm: str, bert: str) -> None:
    serial, batched = run(algorithm, bert, "serial"), run(algorithm, bert, "batched")
    assert furthest(serial, batched) < 1e-11
    assert [c["test_loss"] for c in serial.clients] == pytest.approx([c["test_loss"] for c in batched.clients])
    assert any(float(v.abs().max()) > 0.01 for n, v in serial.shared.items() if n.endswith(("lora_B", "merged")))
    for engine in ("processes", "messages"):
        again = run(algorithm, bert, engine)
        assert again.summary["weights_sha256"] == serial.summary["weights_sha256"]
        assert again.summary["bytes_down"] == serial.summary["bytes_down"]


@pytest.mark.parametrize("head", ["personal", "shared", "frozen"])
def test_every_model_and_head(head: str, model: str) -> None:
    runs = [run("rolora", model, engine, options={"head": head}) for engine in ("serial", "batched")]
    assert furthest(*runs) < 1e-10
    names = set(runs[0].shared)
    assert any("lora_A" in n for n in names)
    assert any("classifier" in n or "score" in n for n in names) is (head == "shared")
    assert (runs[0].global_accuracy is None) is (head == "personal")


def test_language_models(causal: str) -> None:
    data = token_data(language=True)
    runs = [run("lora", causal, engine, data) for engine in ("serial", "batched", "processes")]
    assert furthest(runs[0], runs[1]) < 1e-11
    assert runs[0].summary["weights_sha256"] == runs[2].summary["weights_sha256"]
    losses = [row["train_loss"] for row in runs[0].history]
    assert losses[-1] < losses[0]


def test_other_methods_run_on_them_too(bert: str) -> None:
    # FedRep: shared factors, a personal head; its head epochs see features computed once.
    for algorithm in ("fedrep", "fedavg", "local", "fedprox", "scaffold", "ditto", "flute"):
        serial, batched = run(algorithm, bert, "serial"), run(algorithm, bert, "batched")
        if serial.shared:
            assert furthest(serial, batched) < 1e-10, algorithm
        assert [c["test_loss"] for c in serial.clients] == pytest.approx([c["test_loss"] for c in batched.clients])


@pytest.mark.parametrize("engine", ["serial", "batched"])
def test_kept_hidden_states_change_nothing(engine: str, model: str) -> None:
    kept, not_kept = (run("lora", model, engine, model_options={"keep_hidden": k}) for k in (True, False))
    assert furthest(kept, not_kept) < 1e-10


def test_dropout_is_keyed(bert: str) -> None:
    runs = [run("lora", bert, e, model_options={"dropout": 0.3}) for e in ("serial", "batched", "serial")]
    assert runs[0].summary["weights_sha256"] == runs[2].summary["weights_sha256"]
    assert furthest(runs[0], runs[1]) < 1e-11
    assert furthest(runs[0], run("lora", bert, "serial")) > 1e-4


def test_half_precision_base(bert: str) -> None:
    # Folding may round otherwise than the loop, but by less than bfloat16 itself does.
    full = run("lora", bert, "serial", lr=0.05)
    serial, batched = (
        run("lora", bert, e, lr=0.05, model_options={"base_dtype": "bfloat16"}) for e in ("serial", "batched")
    )
    assert furthest(serial, batched) < min(0.002, furthest(serial, full))
    assert all(v.dtype == torch.float64 for v in serial.shared.values())


def test_tokens_are_packed_and_the_last_layer_is_computed_in_part(model: str, causal: str) -> None:
    for name in (model, causal):
        language = name == causal
        data = token_data(language=language)
        values = {"algorithm": "lora", "data": "tokens", "model": name, "model_options": OPTIONS} | SETTINGS
        setup = prepare_setup(RunConfig.make(values), data)
        net = setup.model
        assert isinstance(net, AdaptedModel)
        assert net._packs == "partial"
        x = setup.inputs.rows("train", np.arange(9))[0]
        route = torch.tensor([2, 0, 1, 1, 0, 2, 2, 0, 1])
        own = {n: torch.stack([v + 0.3 * torch.randn_like(v) for _ in range(3)]) for n, v in setup.initial.items()}
        own = {n: v.requires_grad_(True) for n, v in own.items()}
        results = []
        for way in ("", "whole", "partial"):
            net._packs = way
            out = fold_call(net, own, x, route)
            weights = torch.linspace(-1, 1, out.numel()).view_as(out)
            gradients = torch.autograd.grad((out * weights).sum(), list(own.values()))
            results.append((out.detach(), *gradients))
        for other in results[1:]:
            torch.testing.assert_close(other, results[0], rtol=0, atol=1e-11)


def test_a_model_whose_tokens_cannot_be_packed_is_padded(tmp_path: Path) -> None:
    import transformers

    config = transformers.DistilBertConfig(vocab_size=44, dim=16, n_layers=2, n_heads=2, hidden_dim=24)
    transformers.DistilBertForSequenceClassification(config).save_pretrained(tmp_path)
    name = f"hf:{tmp_path}"
    runs = [run("rolora", name, e, model_options={"layers": "1"}) for e in ("serial", "batched")]
    assert furthest(*runs) < 1e-11


@pytest.mark.parametrize("own_pad", [None, 0, -1])
def test_a_decoders_classifier_pools_what_transformers_pools(own_pad: int | None, tmp_path: Path) -> None:
    import transformers

    size: dict[str, Any] = {"vocab_size": 44, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.LlamaConfig(**size, intermediate_size=24, pad_token_id=own_pad)
    transformers.LlamaForSequenceClassification(config).save_pretrained(tmp_path)
    plain = transformers.LlamaForSequenceClassification.from_pretrained(tmp_path, dtype=torch.float64).eval()
    net = build_adapted(f"hf:{tmp_path}", 2, LoRAOptions(rank=2), torch.float64)
    with torch.no_grad():
        plain.score.weight.copy_(net.get_parameter("base.score.weight"))
        rows = [[5, 9, 0], [7, 0, 3, 8], [4], [6, 11]]  # the first ends with token 0, which is no padding of its own
        x = torch.full((len(rows), 5, 2), -1)
        for i, row in enumerate(rows):
            x[i, 0] = torch.tensor([i, len(row)])
            x[i, 1 : 1 + len(row), 0] = torch.tensor(row)
        inputs = TokenRows((6, 2)).make({"tokens": x}, torch.float64)
        alone = torch.cat([plain(torch.tensor([row])).logits for row in rows])
        for way in (net._packs, ""):
            net._packs = way
            torch.testing.assert_close(call(net.eval(), inputs), alone, rtol=0, atol=1e-11)
            first = select(inputs, torch.tensor([0]))
            torch.testing.assert_close(call(net, first), alone[:1], rtol=0, atol=1e-11)
            del first["lengths"], first["numbers"]  # both may be left out
            torch.testing.assert_close(call(net, first), alone[:1], rtol=0, atol=1e-11)


def test_a_text_may_hold_the_whole_vocabulary(tmp_path: Path) -> None:
    """No token is left for padding then, and rows end with every one that there is."""
    import transformers

    size: dict[str, Any] = {"vocab_size": 5, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.LlamaConfig(**size, intermediate_size=24, pad_token_id=None)
    transformers.LlamaForSequenceClassification(config).save_pretrained(tmp_path)
    plain = transformers.LlamaForSequenceClassification.from_pretrained(tmp_path, dtype=torch.float64).eval()
    net = build_adapted(f"hf:{tmp_path}", 2, LoRAOptions(rank=2), torch.float64).eval()
    rows = [[0, 1, 2, 3, 4], [4, 4], [0, 3], [2], [1, 2, 1], [3, 0]]
    x = torch.full((len(rows), 6, 2), -1)
    for i, row in enumerate(rows):
        x[i, 0] = torch.tensor([i, len(row)])
        x[i, 1 : 1 + len(row)] = torch.tensor([[token, 0] for token in row])
    inputs = TokenRows((6, 2)).make({"tokens": x}, torch.float64)
    with torch.no_grad():
        plain.score.weight.copy_(net.get_parameter("base.score.weight"))
        alone = torch.cat([plain(torch.tensor([row])).logits for row in rows])
        for way in (net._packs, ""):
            net._packs = way
            torch.testing.assert_close(call(net, inputs), alone, rtol=0, atol=1e-11)
            for place, wanted in enumerate(alone):
                own = select(inputs, torch.tensor([place]))
                torch.testing.assert_close(call(net, own)[0], wanted, rtol=0, atol=1e-11)
    assert net.config.pad_token_id is None


def test_hidden_states_of_layers_that_return_tuples_are_kept(tmp_path: Path) -> None:
    import transformers

    size: dict[str, Any] = {"vocab_size": 44, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2}
    config = transformers.MPNetConfig(**size, intermediate_size=24, initializer_range=0.3)
    transformers.MPNetForSequenceClassification(config).save_pretrained(tmp_path)
    setup = {"layers": "1,2", "target_modules": "q,v"}
    kept, not_kept = (
        run("lora", f"hf:{tmp_path}", "serial", model_options=setup | {"keep_hidden": keep}) for keep in (True, False)
    )
    net = kept.trained.network
    assert isinstance(net, AdaptedModel)
    assert net._skips
    assert furthest(kept, not_kept) < 1e-10
    assert furthest(kept, run("lora", f"hf:{tmp_path}", "batched", model_options=setup)) < 1e-10


def test_a_model_whose_layers_cannot_be_left_out_is_computed_whole(bert: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run("lora", bert, "serial", model_options={"keep_hidden": False})
    monkeypatch.setattr(AdaptedModel, "_below", lambda self, tokens: torch.zeros(*tokens.shape[:2], 16))
    assert furthest(run("lora", bert, "serial"), whole) == 0


def test_outputs_that_change_with_padding_are_told(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    import transformers

    size: dict[str, Any] = {"vocab_size": 44, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.ConvBertConfig(**size, intermediate_size=24, embedding_size=16, initializer_range=0.3)
    transformers.ConvBertForSequenceClassification(config).save_pretrained(tmp_path)
    build_adapted(f"hf:{tmp_path}", 2, LoRAOptions(rank=2), torch.float64)
    told = [str(w.message) for w in recwarn if "change with the padding behind a text" in str(w.message)]
    assert len(told) == 1
    assert "ConvBertForSequenceClassification" in told[0]


def test_rows_meet_their_own_clients_factors(bert: str) -> None:
    setup = prepare_setup(
        RunConfig.make({"algorithm": "lora", "data": "tokens", "model": bert, "model_options": OPTIONS} | SETTINGS),
        token_data(),
    )
    net = setup.model
    assert isinstance(net, AdaptedModel)
    x = setup.inputs.rows("train", np.arange(9))[0]
    own = {n: torch.stack([v + 0.3 * torch.randn_like(v) for _ in range(3)]) for n, v in setup.initial.items()}
    route = torch.tensor([2, 0, 1, 1, 0, 2, 2, 0, 1])
    net.eval()
    with torch.no_grad():
        folded = fold_call(net, own, x, route)
        for row, client in enumerate(route.tolist()):
            one = select(x, torch.tensor([row]))
            alone = torch.func.functional_call(net, {n: v[client] for n, v in own.items()}, (), one)
            torch.testing.assert_close(folded[row : row + 1], alone, rtol=0, atol=1e-12)


def test_a_resumed_run_ends_alike_across_an_odd_round(bert: str, tmp_path: Path) -> None:
    whole = run("rolora", bert, "batched", rounds=5, participation=0.5, out=tmp_path / "whole")

    class Stop:
        def begin(self, *_: Any) -> None: ...
        def note(self, *_: Any) -> None: ...
        def end(self) -> None: ...
        def round(self, row: Any) -> None:
            if row["round"] == self.at:
                raise KeyboardInterrupt

        at = 3

    for at in (1, 2, 3):
        Stop.at = at
        out = tmp_path / f"stopped-{at}"
        with pytest.raises(KeyboardInterrupt):
            run("rolora", bert, "batched", rounds=5, participation=0.5, out=out, observer=Stop())
        again = run("rolora", bert, "batched", rounds=5, participation=0.5, out=out, resume=True)
        assert again.summary["weights_sha256"] == whole.summary["weights_sha256"]
        assert again.summary["bytes_down"] == whole.summary["bytes_down"]


def test_a_run_does_not_go_on_from_other_pretrained_weights(tmp_path: Path) -> None:
    name = tiny_model("bert", tmp_path / "model")
    run("lora", name, "serial", rounds=1, out=tmp_path / "run")
    from safetensors.torch import load_file, save_file

    file = tmp_path / "model" / "model.safetensors"
    tensors = load_file(file)
    tensors["bert.embeddings.word_embeddings.weight"] += 1
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(RunError, match="other pretrained weights"):
        run("lora", name, "serial", rounds=1, out=tmp_path / "run", resume=True)


@pytest.mark.parametrize(("head", "shared"), [("*lora_B,*classifier*", "lora_A"), ("*layer.2*", "layer.1")])
def test_any_part_of_an_adapted_model_can_be_personal(head: str, shared: str, bert: str) -> None:
    serial, batched = (run("fedper", bert, engine, head=head) for engine in ("serial", "batched"))
    assert serial.shared
    assert all(shared in name or (shared == "layer.1" and "classifier" in name) for name in serial.shared)
    assert furthest(serial, batched) < 1e-11
    assert [c["test_loss"] for c in serial.clients] == pytest.approx([c["test_loss"] for c in batched.clients])
    sent = sum(value.numel() * value.element_size() for value in serial.shared.values())
    assert serial.summary["bytes_up"] == 3 * 4 * sent


def test_patterns_do_not_go_with_methods_for_factors(bert: str) -> None:
    with pytest.raises(ModelError, match=r"no group 'lora_A'; .* leave them out or choose a method"):
        run("rolora", bert, "serial", head="*classifier*")


@pytest.mark.parametrize("method", ["fedrep", "fedper"])
def test_a_model_without_a_head_has_none_of_its_own(method: str, causal: str) -> None:
    """A language model's belongs to its base: what would be each client's is to be named."""
    with pytest.raises(ModelError, match=r"keeps the head with each client, and the model 'hf:.*' has none .*--head"):
        run(method, causal, "serial", token_data(language=True))
    named = run(method, causal, "serial", token_data(language=True), head="*layers.2*")
    assert named.shared
    assert all("layers.2" not in name for name in named.shared)


def test_masks_of_shorter_rows_begin_as_those_of_longer_ones() -> None:
    """So a batch's are drawn for its longest row alone, and no client's hang on who is computed beside it."""
    layer = SequenceDropout(0.3, (128, 7))
    short, long = (
        layer.draw(5, (positions, 7), torch.Generator().manual_seed(3), torch.float32) for positions in (9, 128)
    )
    assert short.shape == (5, 9, 7)
    assert torch.equal(short, long[:, :9])
    assert 0.6 < float((long > 0).float().mean()) < 0.8


def test_passes_are_bounded_by_what_attention_pads_them_to() -> None:
    """One long text among many short ones would have all of them padded to it, on a device, where passes are large."""
    lengths = [12] * 50 + [512]
    assert [p.stop - p.start for p in _passes(lengths, 4096, padded=False)] == [51]
    assert [p.stop - p.start for p in _passes(lengths, 4096, padded=False, widest=8192)] == [50, 1]
    assert [p.stop - p.start for p in _passes(lengths, 4096, padded=False, widest=51 * 512)] == [51]
    assert [p.stop - p.start for p in _passes([5] * 10, 20, padded=False, widest=1000)] == [4, 4, 2]


@pytest.mark.parametrize("engine", ["serial", "batched"])
def test_no_more_is_drawn_than_a_batch_has_tokens(engine: str, bert: str, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn, usual = list[int](), SequenceDropout.draw

    def watched(self: SequenceDropout, rows: int, shape: tuple[int, ...], *more: Any) -> torch.Tensor:
        drawn.append(shape[0])
        return usual(self, rows, shape, *more)

    monkeypatch.setattr(SequenceDropout, "draw", watched)
    dropout = {"dropout": 0.3, "max_length": 64}
    runs = [run("lora", bert, engine, rounds=1, model_options={**dropout, "max_length": most}) for most in (64, 20)]
    assert 4 <= min(drawn) <= max(drawn) <= 11  # the longest row has 11 tokens
    assert runs[0].summary["weights_sha256"] == runs[1].summary["weights_sha256"]


def test_a_large_folded_cohort_has_its_workers_as_threads(bert: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = RunConfig.make({"algorithm": "rolora", "data": "made", "model": bert, "workers": 2, **SETTINGS})
    setup, asked = prepare_setup(config, token_data()), list[int]()
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    said = "--workers 2 is not used: the engine 'batched' computes in one process; take --engine processes"
    assert (make_engine("batched", setup).remark, asked) == (said, [])  # so small a model is one core's work
    monkeypatch.setattr("commonground.engine.backends.factory.THREADED_WEIGHTS", 0)
    assert (make_engine("batched", setup).remark, asked) == ("", [2])

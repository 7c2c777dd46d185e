"""Adapters out again: what peft and transformers load gives our own logits, and comes back into a model."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import commonground as cg
from commonground.adapters.factors import update_of
from commonground.engine import Run, load_run
from commonground.errors import ConfigError, ModelError, RunError
from commonground.models.lora import LoRALinear
from tests.language import tiny_model, token_data

pytest.importorskip("transformers")
pytest.importorskip("peft")
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")

KINDS = ("bert", "roberta", "llama", "llama-lm")
METHODS: dict[str, dict[str, Any]] = {
    "rolora": {},
    "lora": {"head": "shared"},
    "ffa-lora": {"head": "frozen"},
    "flora": {},
}
OPTIONS = {"rank": 2, "alpha": 3.0, "layers": "1-2"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Finished runs by kind of model and method, made once."""
    folder = tmp_path_factory.mktemp("runs")
    made: dict[tuple[str, str], Run] = {}

    def run(kind: str, method: str) -> Run:
        if (kind, method) not in made:
            name = f"hf:{folder / kind}" if (folder / kind).exists() else tiny_model(kind, folder / kind)
            data = token_data(language=kind == "llama-lm")
            out = folder / f"{kind}-{method}"
            settings: dict[str, Any] = {"rounds": 2, "lr": 0.5, "engine": "serial", "options": METHODS[method]}
            cg.train(method, data, model=name, out=out, model_options=OPTIONS, **settings)
            made[kind, method] = load_run(out)
        return made[kind, method]

    return run


def _logits(model: Any, kind: str) -> list[torch.Tensor]:
    """Of a plain call, row by row, without padding."""
    data = token_data(language=kind == "llama-lm")
    found = []
    for row in torch.from_numpy(data.x_test[:5]).long():
        length = int(row[0, 1])
        ids, marks = row[1 : 1 + length, 0].unsqueeze(0), row[1 : 1 + length, 1].unsqueeze(0)
        more = {"token_type_ids": marks} if kind in ("bert", "roberta") else {}
        with torch.no_grad():
            found.append(model(input_ids=ids, attention_mask=torch.ones_like(ids), **more).logits)
    return found


def _check(model: Any, run: Run, kind: str, client: int | None, tolerance: float = 1e-5) -> None:
    ours: Any = run.model(client)
    for got, wanted in zip(_logits(model.eval(), kind), _logits(ours.base, kind), strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=tolerance)


def _auto(package: str, kind: str) -> Any:
    module = __import__(package)
    task = "CausalLM" if kind == "llama-lm" else "SequenceClassification"
    return getattr(module, f"Auto{'Peft' if package == 'peft' else ''}ModelFor{task}")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", METHODS)
def test_plain_peft_gives_our_logits(kind: str, method: str, runs: Any, tmp_path: Path) -> None:
    import peft

    run = runs(kind, method)
    (written,) = cg.export_adapter(run, tmp_path / "own", client=1)
    assert written.head == {"llama-lm": "none"}.get(kind, "frozen" if method == "ffa-lora" else "trained")
    _check(_auto("peft", kind).from_pretrained(str(tmp_path / "own")), run, kind, 1)
    base = _auto("transformers", kind).from_pretrained(run.trained.network.location)
    _check(peft.PeftModel.from_pretrained(base, str(tmp_path / "own")), run, kind, 1)
    (written,) = cg.export_adapter(run, tmp_path / "global")
    loaded = _auto("peft", kind).from_pretrained(str(tmp_path / "global"))
    if written.head == "untrained":
        card = (tmp_path / "global" / "README.md").read_text()
        assert "untrained" in card
        assert "in the order of the outputs" not in card  # which mean nothing
        return
    _check(loaded, run, kind, None)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["rolora", "flora"])
def test_merged_models_are_plain_ones(kind: str, method: str, runs: Any, tmp_path: Path) -> None:
    run = runs(kind, method)
    before = {name: value.clone() for name, value in run.trained.network.state_dict().items()}
    cg.export_adapter(run, tmp_path / "merged", client=2, merge=True)
    assert not (tmp_path / "merged" / "adapter_config.json").exists()
    merged = _auto("transformers", kind).from_pretrained(str(tmp_path / "merged"))
    _check(merged, run, kind, 2)
    if kind != "llama-lm":
        assert list(merged.config.id2label.values()) == run.trained.split["class_names"]
        assert merged.config.label2id == {name: n for n, name in enumerate(run.trained.split["class_names"])}
    assert run.trained.network.config.id2label[0] == "LABEL_0"
    for name, value in run.trained.network.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_the_folder_is_what_peft_itself_would_write(runs: Any, tmp_path: Path) -> None:
    run = runs("roberta", "rolora")
    cg.export_adapter(run, tmp_path / "ours", client=0)
    cg.export_adapter(run, tmp_path / "again", client=0)
    import peft

    model = peft.AutoPeftModelForSequenceClassification.from_pretrained(str(tmp_path / "ours"))
    model.save_pretrained(str(tmp_path / "theirs"))
    ours, theirs = (load_file(tmp_path / who / "adapter_model.safetensors") for who in ("ours", "theirs"))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())
    config = json.loads((tmp_path / "ours" / "adapter_config.json").read_text())
    wanted = {
        "r": 2,
        "lora_alpha": 3,
        "lora_dropout": 0.0,
        "target_modules": ["query", "value"],
        "layers_to_transform": [1, 2],
        "use_rslora": False,
        "task_type": "SEQ_CLS",
        "modules_to_save": ["classifier"],
        "base_model_name_or_path": run.trained.network.location,
    }
    assert {key: config[key] for key in wanted} == wanted
    for file in ("adapter_config.json", "README.md"):
        assert (tmp_path / "ours" / file).read_bytes() == (tmp_path / "again" / file).read_bytes()


@pytest.mark.parametrize(
    ("options", "targets", "layers"),
    [
        ({"target_modules": "query"}, ["query"], None),
        ({"target_modules": "self.query,self.value", "layers": "2"}, ["self.query", "self.value"], [2]),
        ({"target_modules": r"re:.*layer\.1\..*(key|output\.dense)"}, r".*layer\.1\..*(key|output\.dense)", None),
        ({"target_modules": r"re:.*(key|query)", "layers": "1"}, ["key", "query"], [1]),
        ({"target_modules": r"re:.*(1\..*query|2\..*key)"}, r".*(1\..*query|2\..*key)", None),
        (
            {"target_modules": r"re:.*(0\..*query|2\..*key)", "layers": "1,2"},
            ["bert.encoder.layer.2.attention.self.key"],
            None,
        ),
        ({"rslora": True, "rank": 3, "alpha": 2.5}, ["query", "value"], None),
    ],
)
def test_targets_of_every_kind(options: dict[str, Any], targets: Any, layers: Any, tmp_path: Path) -> None:
    name = tiny_model("bert", tmp_path / "base", labels=3)
    cg.train("lora", token_data(), model=name, out=tmp_path / "run", rounds=1, lr=0.5, model_options=options, workers=1)
    run = load_run(tmp_path / "run")
    cg.export_adapter(run, tmp_path / "own", client=0)
    config = json.loads((tmp_path / "own" / "adapter_config.json").read_text())
    assert (config["target_modules"], config["layers_to_transform"]) == (targets, layers)
    # The base has three labels, the run two: whoever loads the adapter has to say so, as the card does.
    (code,) = re.findall("```python\n(.*?)```", (tmp_path / "own" / "README.md").read_text(), flags=re.DOTALL)
    names: dict[str, Any] = {"folder": str(tmp_path / "own")}
    exec(code, names)
    _check(names["model"], run, "bert", 0)


def test_a_pattern_of_targets_that_is_none(tmp_path: Path) -> None:
    name = tiny_model("bert", tmp_path / "base")
    for pattern in ("re:[", "re:("):
        with pytest.raises(ConfigError, match=f"the target modules '{re.escape(pattern)}' are no regular expression: "):
            cg.build_model(name, (12, 2), 2, seed=0, options={"target_modules": pattern})


def test_weights_that_the_base_lacks_go_with_the_adapter(tmp_path: Path) -> None:
    import transformers

    config = transformers.BertConfig(
        vocab_size=44,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=64,
        initializer_range=0.3,
    )
    transformers.BertModel(config, add_pooling_layer=False).save_pretrained(tmp_path / "base")
    cg.train("rolora", token_data(), model=f"hf:{tmp_path / 'base'}", out=tmp_path / "run", rounds=2, lr=0.5, workers=1)
    run = load_run(tmp_path / "run")
    cg.export_adapter(run, tmp_path / "own", client=0)
    _check(_auto("peft", "bert").from_pretrained(str(tmp_path / "own")), run, "bert", 0)


def test_tokenizer_files_go_along_and_the_card_tells_the_run(runs: Any, tmp_path: Path) -> None:
    run = runs("bert", "rolora")
    base = Path(run.trained.network.location)
    (base / "tokenizer.json").write_text("{}")
    (base / "notes.txt").write_text("not for others")
    try:
        done = cg.export_adapter(run, tmp_path / "all", client="all")
    finally:
        (base / "tokenizer.json").unlink()
    assert [one.folder.name for one in done] == [f"client-{c}" for c in range(4)]
    assert [one.client for one in done] == [0, 1, 2, 3]
    files = {file.name for file in (tmp_path / "all" / "client-3").iterdir()}
    assert files == {"adapter_config.json", "adapter_model.safetensors", "README.md", "tokenizer.json"}
    card = (tmp_path / "all" / "client-3" / "README.md").read_text()
    for fact in (
        "\n# A LoRA adapter trained by federated learning: one client's own\n",
        "RoLoRA",
        "client 3's own, of 4",
        "personal",
        "| rounds | 2 |",
        "| seed | 0 |",
        run.trained.network.base_sha256,
    ):
        assert fact in card
    assert "tokens" not in card, "the name of the data"
    assert "| 2 classes, in the order of the outputs | low, high |" in card  # as merged weights and tables' models have
    assert str(base.parent) not in card
    heads = [load_file(one.folder / "adapter_model.safetensors") for one in done]
    key = "base_model.model.classifier.weight"
    assert not torch.equal(heads[0][key], heads[1][key])


def test_flora_of_too_large_a_rank_is_refused(tmp_path: Path) -> None:
    name = tiny_model("bert", tmp_path / "base")
    options = {"rank": 8}
    cg.train(
        "flora", token_data(), model=name, out=tmp_path / "run", rounds=3, lr=0.5, model_options=options, workers=1
    )
    with pytest.raises(ConfigError, match=r"has rank \d+, so that its factors would be larger .*; export .* --merge$"):
        cg.export_adapter(tmp_path / "run", tmp_path / "own", client=0)
    assert not (tmp_path / "own").exists()
    assert not list(tmp_path.glob(".*"))


def test_the_card_of_recovered_factors_tells_theirs_beside_those_of_the_training(tmp_path: Path) -> None:
    name = tiny_model("bert", tmp_path / "base")
    how: dict[str, Any] = {"model_options": {"rank": 2, "alpha": 6}, "rounds": 1, "lr": 0.1, "workers": 1}
    run = cg.train("flora", token_data(), model=name, participation=0.25, **how)
    (done,) = cg.export_adapter(run, tmp_path / "own", client=0)
    told = json.loads((done.folder / "adapter_config.json").read_text())
    card = (done.folder / "README.md").read_text()
    assert f"| rank and α | 2, 6 in training; {told['r']}, {told['lora_alpha']:g} of the factors here |" in card


# -- and back ---------------------------------------------------------------------------------------------------------


def _model(run: Run, **options: Any) -> Any:
    return cg.build_model(str(run.config.model), (12, 2), 2, seed=5, options={**OPTIONS, **options})


@pytest.mark.parametrize("kind", ["roberta", "llama-lm"])
def test_an_adapter_comes_back_as_it_was(kind: str, runs: Any, tmp_path: Path) -> None:
    run = runs(kind, "rolora")
    cg.export_adapter(run, tmp_path / "own", client=1)
    model = _model(run, generative=kind == "llama-lm")
    assert cg.load_adapter(tmp_path / "own", model) is model
    wanted = run.model(1).state_dict()
    for name, value in model.state_dict().items():
        assert torch.equal(value, wanted[name]), name


def test_a_run_starts_from_an_adapter(runs: Any, tmp_path: Path) -> None:
    run = runs("bert", "lora")
    cg.export_adapter(run, tmp_path / "start")
    options = OPTIONS | {"adapter": str(tmp_path / "start")}
    settings: dict[str, Any] = {"model": run.config.model, "model_options": options, "out": tmp_path / "run"}
    settings |= {"rounds": 1, "local_epochs": 0, "workers": 1, "options": {"head": "shared"}}
    cg.train("lora", token_data(), **settings)
    again = load_run(tmp_path / "run")
    for name, value in run.trained.values_of(None).items():
        torch.testing.assert_close(again.shared[name], value, rtol=0, atol=1e-7)


@pytest.mark.parametrize("ranks", ["", 1])
def test_flora_keeps_the_adapter_it_starts_from(ranks: str | int, runs: Any, tmp_path: Path) -> None:
    """Also where its rank is more than the clients have."""
    run = runs("bert", "lora")
    cg.export_adapter(run, tmp_path / "out")
    settings: dict[str, Any] = {"rounds": 1, "lr": 1e-9, "engine": "serial", "model": run.config.model}
    options = OPTIONS | {"adapter": str(tmp_path / "out")}
    on = cg.train("flora", token_data(), model_options=options, options={"ranks": ranks}, **settings).trained
    first: Any = run.trained.network
    for name in first.adapted:
        before = update_of(first, name, run.trained.values_of(None))
        assert int(torch.linalg.matrix_rank(before, rtol=1e-6)) == 2
        torch.testing.assert_close(update_of(first, name, on.values_of(0)), before, rtol=1e-5, atol=1e-6)


def test_flexlora_cuts_the_adapter_it_starts_from_as_well_as_can_be(runs: Any, tmp_path: Path) -> None:
    """The first round's cut to a client's rank is the best one, whatever factors the adapter was written in."""
    run = runs("bert", "lora")
    cg.export_adapter(run, tmp_path / "out")
    options = OPTIONS | {"adapter": str(tmp_path / "out")}
    settings: dict[str, Any] = {"rounds": 1, "local_epochs": 0, "engine": "serial", "model": run.config.model}
    on = cg.train("flexlora", token_data(), model_options=options, options={"ranks": 1}, **settings).trained
    first: Any = run.trained.network
    for name in first.adapted:
        u, s, v = torch.linalg.svd(update_of(first, name, run.trained.values_of(None)))
        assert s[1] > 1e-3 * s[0]  # a cut of any other kind would show
        wanted = s[0] * torch.outer(u[:, 0], v[0])
        torch.testing.assert_close(update_of(first, name, on.values_of(0)), wanted, rtol=1e-4, atol=1e-6)


def test_a_language_model_is_global_whatever_its_head_is_said_to_be(runs: Any) -> None:
    run = runs("llama-lm", "rolora")  # head=personal by default
    assert run.trained.has_global_model
    assert not run.trained.own(0)
    assert run.summary["head"] == "none"
    assert run.summary["global_accuracy"] is not None


def test_a_plain_peft_adapter_is_read(runs: Any, tmp_path: Path) -> None:
    import peft

    run = runs("bert", "rolora")
    base = _auto("transformers", "bert").from_pretrained(run.trained.network.location)
    config = peft.LoraConfig(
        task_type="SEQ_CLS", r=2, lora_alpha=3, target_modules=["query", "value"], layers_to_transform=[1, 2]
    )
    theirs = peft.get_peft_model(base, config)
    for name, value in theirs.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(value)
    theirs.save_pretrained(str(tmp_path / "theirs"))
    ours = cg.load_adapter(tmp_path / "theirs", _model(run))
    for got, wanted in zip(_logits(ours.base, "bert"), _logits(theirs.eval(), "bert"), strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-5)
    layer = ours.get_submodule("base.bert.encoder.layer.1.attention.self.query")
    assert isinstance(layer, LoRALinear)
    assert float(layer.lora_B.detach().abs().sum()) > 0


def test_an_adapter_that_does_not_fit_is_named(runs: Any, tmp_path: Path) -> None:
    run = runs("bert", "rolora")
    cg.export_adapter(run, tmp_path / "own", client=1)
    needed = r"was made with model\.rank=2 model\.alpha=3 model\.target_modules=query,value model\.layers=1,2$"
    for other in ({"rank": 4}, {"alpha": 8.0}, {"layers": "1"}, {"target_modules": "key"}, {"rslora": True}):
        with pytest.raises(ConfigError, match=needed):
            cg.load_adapter(tmp_path / "own", _model(run, **other))
    config = tmp_path / "own" / "adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"layers_to_transform": 0}))  # as peft allows it
    with pytest.raises(ConfigError, match=r"model\.layers=0$"):
        cg.load_adapter(tmp_path / "own", _model(run, rank=4))
    config.write_text(json.dumps(json.loads(config.read_text()) | {"layers_to_transform": None}))
    with pytest.raises(ConfigError, match=r"target_modules=query,value, in all layers: leave out model\.layers$"):
        cg.load_adapter(tmp_path / "own", _model(run, rank=4))
    other_base = cg.build_model(f"hf:{_perturbed(run, tmp_path / 'bert')}", (12, 2), 2, options=OPTIONS)
    with pytest.raises(ModelError, match=r"is of another base: '.*' had other pretrained weights than '.*' has$"):
        cg.load_adapter(tmp_path / "own", other_base)
    cg.load_adapter(tmp_path / "own", other_base, check_base=False)
    llama = cg.build_model(str(runs("llama", "rolora").config.model), (12, 2), 2, options=OPTIONS)
    with pytest.raises(ModelError, match="is of another base"):
        cg.load_adapter(tmp_path / "own", llama)
    with pytest.raises(ModelError, match=r"adapts 'bert\.encoder.*', which the model has not$"):
        cg.load_adapter(tmp_path / "own", llama, check_base=False)
    config = json.loads((tmp_path / "own" / "adapter_config.json").read_text())
    for key, value, sentence in (
        ("peft_type", "IA3", "of the kind IA3, not LORA"),
        ("use_dora", True, "use_dora = True, which is not supported"),
        ("alora_invocation_tokens", [9, 10], r"alora_invocation_tokens = \[9, 10\], which is not supported"),
        ("use_qalora", True, "use_qalora = True, which is not supported"),
        ("use_bdlora", {"nblocks": 2}, "use_bdlora = {'nblocks': 2}, which is not supported"),
        ("layer_replication", [[0, 2], [1, 3]], "layer_replication = .*, which is not supported"),
        ("arrow_config", {"top_k": 3}, "arrow_config = .*, which is not supported"),
        ("kasa_config", {"beta": 0.1}, "kasa_config = .*, which is not supported"),
        ("monteclora_config", {"samples": 8}, "monteclora_config = .*, which is not supported"),
        ("target_parameters", ["experts.weight"], "target_parameters = .*, which is not supported"),
        ("init_lora_weights", "pissa", "init_lora_weights = 'pissa', which is not supported"),
        ("init_lora_weights", "olora", "init_lora_weights = 'olora', which is not supported"),
        ("r", None, "is damaged: it has no r and lora_alpha"),
    ):
        (tmp_path / "own" / "adapter_config.json").write_text(json.dumps(config | {key: value}))
        with pytest.raises(ModelError, match=sentence):
            cg.load_adapter(tmp_path / "own", _model(run))
    with pytest.raises(ModelError, match=r"holds no adapter \(it has no adapter_config.json\)"):
        cg.load_adapter(tmp_path / "nowhere", _model(run))
    with pytest.raises(ModelError, match="not into a MLP"):
        cg.load_adapter(tmp_path / "own", cg.build_model("mlp", (4,), 2))


def _perturbed(run: Run, folder: Path) -> Path:
    model = _auto("transformers", "bert").from_pretrained(run.trained.network.location)
    with torch.no_grad():
        model.bert.embeddings.word_embeddings.weight[7, 3] += 0.5
    model.save_pretrained(folder)
    return folder


# -- refusals ---------------------------------------------------------------------------------------------------------


def test_what_cannot_be_exported_is_refused_before_anything_is_written(runs: Any, tmp_path: Path) -> None:
    run = runs("bert", "rolora")
    out = tmp_path / "out"
    with pytest.raises(ConfigError, match="has no client '9'; it has 4, from '0' to '3'"):
        cg.export_adapter(run, out, client=9)
    cg.train("fedrep", "digits", clients=4, rounds=1, workers=1, out=tmp_path / "digits")
    with pytest.raises(ConfigError, match="has the model mlp and no LoRA adapter to export"):
        cg.export_adapter(tmp_path / "digits", out)
    with pytest.raises(RunError, match="holds no run"):
        cg.export_adapter(tmp_path / "nothing", out)
    settings: dict[str, Any] = {"model": run.config.model, "model_options": OPTIONS, "workers": 1}
    cg.train("local", token_data(), out=tmp_path / "local", rounds=1, **settings)
    with pytest.raises(ConfigError, match="Local Only shares no adapter: the factors are every client's own"):
        cg.export_adapter(tmp_path / "local", out)
    assert not out.exists()
    out.mkdir()
    cg.export_adapter(run, out, client=1)  # an empty folder is as good as none
    with pytest.raises(RunError, match="is not empty; choose another --out"):
        cg.export_adapter(run, out, client=1)
    with pytest.raises(RunError, match="is a file; --out needs a folder"):
        cg.export_adapter(run, out / "README.md")
    assert not list(tmp_path.rglob("*.part"))


def test_without_peft_one_sentence(runs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ConfigError, match=r"^writing an adapter needs the extra: pip install 'commonground\[llm\]' \("):
        cg.export_adapter(runs("bert", "rolora"), tmp_path / "own", client=1)
    assert not list(tmp_path.iterdir())
    cg.export_adapter(runs("bert", "rolora"), tmp_path / "merged", client=1, merge=True)


def test_importing_the_package_loads_neither_transformers_nor_peft() -> None:
    code = "import commonground, sys; sys.exit(bool({'transformers', 'peft'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_layers_of_the_task_head_are_not_adapted(tmp_path: Path) -> None:
    """RoBERTa's head has a layer `dense`, as its transformer layers have."""
    location = tiny_model("roberta", tmp_path)
    with pytest.raises(ConfigError, match=r"the target modules match 'classifier\.dense' as well, a layer of the task"):
        cg.build_model(location, (12, 2), 2, seed=0, options={"rank": 2, "target_modules": "query,dense"})
    cg.build_model(location, (12, 2), 2, seed=0, options={"rank": 2, "target_modules": r"re:.*layer\..*dense"})


def test_places_counted_from_a_token_for_padding_that_is_not_named(tmp_path: Path) -> None:
    location = tiny_model("roberta", tmp_path)
    config = tmp_path / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text("utf-8")) | {"pad_token_id": None}), "utf-8")
    with pytest.raises(ModelError, match=r"counts places from its token for padding, and its config names none"):
        cg.build_model(location, (12, 2), 2, seed=0, options={"rank": 2})

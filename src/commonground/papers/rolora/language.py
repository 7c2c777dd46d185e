"""What RoLoRA's two experiments with language models share: settings, a tiny model made on the fly, federated runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from commonground.data import IID, FederatedDataset, deal, load_tokenizer
from commonground.data.source import Source
from commonground.data.sources.instructions import instruction_data
from commonground.data.sources.texts import tokenised
from commonground.engine import Run
from commonground.engine.state.files import write_atomically
from commonground.errors import ConfigError
from commonground.extras import pip_install
from commonground.keys import numpy_stream
from commonground.models import keyed_weights
from commonground.papers.rolora.protocol import After, Protocol, names_of
from commonground.papers.sweep import SweepArm

__all__ = ["InstructionTasks", "LanguageSettings", "arms", "kept", "tiny_llama"]

Row = Mapping[str, Any]

LAYERS = "26-31"  # Table 9
MODULES = "q_proj,k_proj,v_proj,o_proj"
LLAMA = "hf:meta-llama/Llama-2-7b-hf"


class LanguageSettings(Protocol):
    """What an experiment with a language model is run with, beside what its :class:`Protocol` says.

    Attributes:
        model: ``hf:NAME_OR_FOLDER``; empty at the small scale means a tiny Llama with random weights.
        train: file with the training instructions (.json or .jsonl); empty at the small scale means made-up ones.
        methods: any of lora, ffa-lora, flexlora, rolora.
        clients: number of clients.
        rank, alpha: r and α; the paper is silent on α.
        start: how A is drawn; ``gaussian`` is N(0, 1/d).
        layers, target_modules: where factors are put.
        rounds: T.
        steps: mini-batch steps of a client in a round ("local epochs" in the paper).
        batch_size: samples of a mini-batch.
        train_samples: of all clients together; 0 for all there are.
        watched: test objects whose answers' likelihood is followed during training.
        max_length: most tokens of a prompt and its answer.
        new_tokens: most tokens of a written answer.
        questions: of each test set; 0 for all.
        base_dtype: of the frozen weights.
    """

    model: str = ""
    train: str = ""
    methods: tuple[str, ...] = ("lora", "ffa-lora", "rolora")
    clients: int = Field(default=50, ge=1)
    rank: int = Field(default=8, ge=1)
    alpha: float = Field(default=16.0, gt=0)
    start: str = "gaussian"
    layers: str | int = LAYERS
    target_modules: str = MODULES
    rounds: int = Field(default=10, ge=1)
    steps: int = Field(default=30, ge=1)
    batch_size: int = Field(default=1, ge=1)
    train_samples: int = Field(default=0, ge=0)
    watched: int = Field(default=200, ge=1)
    max_length: int = Field(default=512, ge=8)
    new_tokens: int = Field(default=32, ge=1)
    questions: int = Field(default=0, ge=0)
    base_dtype: str = "bfloat16"

    def check(self) -> None:
        """Refuse unknown methods."""
        super().check()
        names_of(self.methods)
        if self.new_tokens >= self.max_length:
            raise ConfigError(f"new_tokens is {self.new_tokens}; it must be below max_length, {self.max_length}")


def given(path: str, what: str, example: str) -> Path:
    """A file or folder the user has to name.

    Raises:
        ConfigError: it is not named, or does not exist.
    """
    if not path:
        raise ConfigError(f"{what} is not given; name it with --set {example}, or take --scale small")
    place = Path(path).expanduser()
    if not place.exists():
        raise ConfigError(f"{what} '{place}' does not exist; name it with --set {example}")
    return place


def part(rows: Sequence[Row], wanted: int, seed: int, purpose: str) -> list[Row]:
    """So many of the objects, by key; all if ``wanted`` is 0 or more than there are."""
    if not wanted or wanted >= len(rows):
        return list(rows)
    return [rows[i] for i in np.sort(numpy_stream(seed, "part", purpose).permutation(len(rows))[:wanted])]


def tiny_llama(folder: Path, texts: Sequence[str], max_length: int) -> str:
    """Save a two-layer Llama with random weights and a tokenizer of the words of some texts: for trying the path out.

    Args:
        folder: where to; what is there already is used.
        texts: whose words it knows.
        max_length: most tokens of a text.

    Returns:
        Its name for ``model``.
    """
    if not (folder / "tokenizer.json").exists():
        try:
            import tokenizers
            import transformers
        except ImportError:
            raise ConfigError(f"language models need the extra: {pip_install('llm')}") from None
        words = sorted({word for text in texts for word in text.split()})
        vocabulary = {word: i for i, word in enumerate(["<pad>", "<unk>", "<s>", "</s>", *words])}
        raw = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
        raw.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
        logs: Any = transformers.logging
        logs.disable_progress_bar()
        with keyed_weights(0, "tiny llama"):
            config = transformers.LlamaConfig(
                vocab_size=len(vocabulary),
                hidden_size=32,
                intermediate_size=64,
                num_hidden_layers=2,
                num_attention_heads=2,
                num_key_value_heads=2,
                max_position_embeddings=max_length,
                pad_token_id=0,
                bos_token_id=2,
                eos_token_id=3,
                initializer_range=0.2,
            )
            transformers.LlamaForCausalLM(config).save_pretrained(folder)
        fast: Any = transformers.PreTrainedTokenizerFast
        fast(
            tokenizer_object=raw,
            pad_token="<pad>",
            unk_token="<unk>",
            bos_token="<s>",
            eos_token="</s>",
            model_max_length=max_length,
        ).save_pretrained(folder)
    return f"hf:{folder}"


class InstructionTasks:
    """Tokenised instructions, read once, dealt in equal parts for every seed.

    Args:
        settings: lengths and sizes.
        model: whose tokenizer to use.
        train, watched: objects to train on, and to follow.
        origin: where they come from, for messages.
    """

    def __init__(
        self, settings: LanguageSettings, model: str, train: Sequence[Row], watched: Sequence[Row], origin: Path
    ) -> None:
        self.settings, self.model = settings, model
        self._train, self._watched, self._origin = train, watched, origin
        try:
            self.tokenizer = load_tokenizer(model)
        except ConfigError as error:
            raise ConfigError(
                f"{error}; name a folder that holds the model with --set model=hf:FOLDER, or take --scale small"
            ) from None
        self._source: Callable[[int], Source] = cache(self._tokenise)
        self.dealt: Callable[[int], FederatedDataset] = cache(self._deal)

    def _tokenise(self, seed: int) -> Source:
        rows = part(self._train, self.settings.train_samples, seed, "instructions")
        numbers = list(range(1, len(rows) + 1))
        test = (self._watched, list(range(1, len(self._watched) + 1)), self._origin)
        data = instruction_data(self._origin.name, rows, numbers, self._origin, test=test)
        return tokenised(data, self.tokenizer, self.settings.max_length)

    def _deal(self, seed: int) -> FederatedDataset:
        source = self._source(seed if self.settings.train_samples else 0)
        return deal(source, IID(), self.settings.clients, seed)


def arms(condition: str, settings: LanguageSettings, data: InstructionTasks, rank: int) -> list[SweepArm]:
    """All methods with one rank."""
    run: Mapping[str, Any] = {
        "model": data.model,
        "model_options": {
            "rank": rank,
            "alpha": settings.alpha,
            "layers": str(settings.layers),
            "target_modules": settings.target_modules,
            "start": settings.start,
            "base_dtype": settings.base_dtype,
            "max_length": settings.max_length,
        },
        "options": {"head": "shared"},  # a language model has no task head, but one global model
        "rounds": settings.rounds,
        "local_steps": settings.steps,
        "batch_size": settings.batch_size,
    }
    return [SweepArm(condition, name, ours, data.dealt, run) for name, ours in names_of(settings.methods).items()]


def kept(judge: Callable[[Run], dict[str, float]], asked: Mapping[str, Any]) -> After:
    """Scores of a finished run, kept beside its folder so that a repeated command does not ask the model again.

    Args:
        judge: scores by name.
        asked: what they depend on beside the run.
    """

    def after(run: Run, data: FederatedDataset) -> dict[str, float]:
        assert run.folder is not None
        path = run.folder.with_name(f"{run.folder.name}-answers.json")
        key = {"weights_sha256": run.summary["weights_sha256"], **asked}
        if path.is_file():
            before = json.loads(path.read_text("utf-8"))
            if before["asked"] == json.loads(json.dumps(key)):
                scores: dict[str, float] = before["scores"]
                return scores
        scores = judge(run)
        write_atomically(path, json.dumps({"asked": key, "scores": scores}, indent=2) + "\n")
        return scores

    return after

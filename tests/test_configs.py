"""The configurations in the repository: what the papers print is in them, and they fit models of the same classes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from commonground.cli.options import run_values
from commonground.config import RunConfig
from commonground.engine.prepare import prepare_setup
from commonground.engine.training import run_training
from commonground.models.adapted import AdaptedModel
from tests.language import tiny_model
from tests.text_files import instructions_file, pairs_file, save_tokenizer

pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")

FOLDER = Path(__file__).parent.parent / "configs"
FILES = sorted(FOLDER.rglob("*.toml"))

# Table 4 (rounds with 3 clients, batch size) and the layers of Table 7.
GLUE = {
    "sst2": (500, 64, range(21, 24), range(18, 24), range(24)),
    "qnli": (500, 32, range(21, 24), range(15, 24), range(12, 24)),
    "mnli": (500, 32, range(21, 24), range(15, 24), range(12, 24)),
    "qqp": (500, 32, range(21, 24), range(15, 24), range(12, 24)),
    "rte": (200, 32, range(21, 24), range(16, 24), range(12, 24)),
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str]]:
    """A tiny model of each class with as many layers as the real one, and data for it."""
    folder = tmp_path_factory.mktemp("tiny")
    made = {}
    for kind, layers in (("roberta", 24), ("llama-lm", 32)):
        name = tiny_model(kind, folder / kind, layers=layers)
        save_tokenizer(folder / kind, kind == "llama-lm")
        made[kind] = name
    return {
        "roberta": (made["roberta"], str(pairs_file(folder / "pairs.tsv"))),
        "llama": (made["llama-lm"], str(instructions_file(folder / "answers.json"))),
    }


def _prepare(path: Path, tiny: dict[str, tuple[str, str]], flags: str = "", **changed: Any) -> Any:
    model, data = tiny["roberta" if "roberta" in path.name else "llama"]
    assignments = (*re.findall(r"--set (\S+)", flags), "model.max_length=32")
    words = shlex.split(re.sub(r"--set \S+", "", flags))
    given: dict[str, Any] = {k.removeprefix("--"): int(v) for k, v in zip(words[::2], words[1::2], strict=True)}
    values = run_values(given, assignments, path)
    settings = RunConfig.make(values)
    config = settings.model_copy(
        update={"model": model, "data": data, "clients": 3, "test_samples": None, "workers": 1, **changed}
    )
    return settings, prepare_setup(config)


def _layers(model: Any) -> tuple[set[int], set[str]]:
    assert isinstance(model, AdaptedModel)
    numbers = {int(match[1]) for name in model.adapted if (match := re.search(r"\.(\d+)\.", name))}
    return numbers, {name.rpartition(".")[2] for name in model.adapted}


def test_there_are_as_many_as_the_readme_says() -> None:
    assert len(FILES) == 8
    text = (FOLDER / "README.md").read_text()
    assert all(f"`{path.parent.name}/`" in text for path in FILES)


@pytest.mark.parametrize("task", GLUE)
def test_roberta_on_glue(task: str, tiny: dict[str, tuple[str, str]]) -> None:
    path = FOLDER / "rolora" / f"roberta-large-{task}.toml"
    rounds, batch, p1, p2, p3 = GLUE[task]
    settings, setup = _prepare(path, tiny)
    assert (settings.data, settings.algorithm, settings.clients) == (task, "rolora", 3)
    assert (settings.rounds, settings.batch_size, settings.local_steps) == (rounds, batch, 20)
    assert settings.model_options["rank"] == 4
    assert type(setup.model.base).__name__ == "RobertaForSequenceClassification"
    assert _layers(setup.model) == (set(p2), {"query", "value"})
    # The alternatives named in the comments.
    comments = path.read_text()
    clients = {int(n): int(t) for n, t in re.findall(r"--clients (\d+) --rounds (\d+)", comments)}
    assert clients == {20: round(rounds * 3 / 20), 50: round(rounds * 3 / 50)}
    for name, layers in (("P1", p1), ("P3", p3)):
        (flags,) = re.findall(rf"(--set .*?)\s+{name}\b", comments)
        _, other = _prepare(path, tiny, flags)
        kinds = {"value"} if task == "sst2" and name == "P1" else {"query", "value"}
        assert _layers(other.model) == (set(layers), kinds)


@pytest.mark.parametrize(
    ("name", "rounds", "first"), [("commonsense", 10, 26), ("code-alpaca", 100, 24), ("alpaca", 100, 24)]
)
def test_llama(name: str, rounds: int, first: int, tiny: dict[str, tuple[str, str]]) -> None:
    settings, setup = _prepare(FOLDER / "rolora" / f"llama-2-7b-{name}.toml", tiny)
    assert (settings.clients, settings.rounds, settings.local_steps, settings.batch_size) == (50, rounds, 30, 1)
    assert type(setup.model.base).__name__ == "LlamaForCausalLM"
    assert _layers(setup.model) == (set(range(first, 32)), {"q_proj", "k_proj", "v_proj", "o_proj"})


@pytest.mark.parametrize("path", [p for p in FILES if p.stem in ("roberta-large-rte", "llama-2-7b-commonsense")])
def test_they_train(path: Path, tiny: dict[str, tuple[str, str]]) -> None:
    _, setup = _prepare(path, tiny, rounds=2, local_steps=2, batch_size=2, eval_every=1)
    run = run_training(setup)
    assert [row["train_loss"] is not None for row in run.history] == [True, True]
    assert run.history[0]["bytes_up"] > 0


def test_all_of_them_are_read() -> None:
    for path in FILES:
        assert RunConfig.make(RunConfig.read(path)).model_options["alpha"] == 16


def test_a_file_that_windows_marks_as_utf_8_is_read(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_bytes(b'\xef\xbb\xbfalgorithm = "fedprox"\nrounds = 2\n')
    assert RunConfig.read(path) == {"algorithm": "fedprox", "rounds": 2}

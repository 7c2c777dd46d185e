"""Without an extra everything else works, and what needs it says in one sentence what to install."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

# Imports of these fail as if they were not installed. Pillow comes with matplotlib, which reports need: it goes last.
EXTRAS = {
    "llm": ["peft", "transformers", "tokenizers", "accelerate"],
    "serve": ["fastapi", "prometheus_client", "uvicorn"],
    "datasets": ["datasets"],
    "onnx": ["onnx", "onnxruntime", "onnxscript"],
    "tensorboard": ["tensorboardX"],
    "mlflow": ["mlflow"],
    "wandb": ["wandb"],
    "network": ["flwr", "cryptography", "idna"],
    "ray": ["ray"],
    "privacy": ["dp_accounting"],
}
BARE = [name for names in EXTRAS.values() for name in names]

PROGRAM = """
import contextlib, io, json, sys
from importlib.abc import MetaPathFinder

class Missing(MetaPathFinder):
    names = set(json.loads(sys.argv[1]))
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
import commonground as cg
from commonground.cli import main
from commonground.data.text import load_tokenizer

assert all(getattr(cg, name) is not None for name in cg.__all__)
said = {}

def command(what, *words):
    err = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(err):
        code = main([*words])
    said[what] = [code, err.getvalue()]

def call(what, function, *given, **named):
    try:
        function(*given, **named)
        said[what] = [0, ""]
    except cg.CommonGroundError as error:
        said[what] = [2, f"{error}\\n"]

digits = ["--data", "digits", "--clients", "3", "--rounds", "1", "--quiet", "--model", "linear"]
command("train", "train", "fedavg", *digits, "--out", "run")
command("serve", "serve", "run")
command("onnx", "export", "run", "--format", "onnx", "--out", "exported")
command("safetensors", "export", "run", "--format", "safetensors", "--out", "plain", "--quiet")
for tracker in ("tensorboard", "mlflow", "wandb"):
    command(tracker, "train", "fedavg", *digits, "--track", tracker, "--out", tracker)
command("doctor", "doctor", "--json")
sys.modules["flwr"] = None  # as Python marks what cannot be imported
command("network", "deploy", "demo")
command("privacy", "train", "fedavg", *digits, "--dp", "client", "--dp-clip", "1", "--dp-noise", "1", "--out", "dp")
call("model", cg.build_model, "hf:some/model", (4,), 2)
call("tokenizer", load_tokenizer, "hf:some/model")
call("hub", cg.load_data, "hf:some/data")
Missing.names.add("PIL")
for name in [name for name in sys.modules if name.partition(".")[0] == "PIL"]:
    del sys.modules[name]
call("pictures", cg.load_data, "pictures")
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    """Exit codes and sentences, where no extra is installed."""
    folder: Path = tmp_path_factory.mktemp("bare")
    for split in ("train", "test"):
        for kind in ("cat", "dog"):
            place = folder / "pictures" / split / kind
            place.mkdir(parents=True)
            (place / "one.png").write_bytes(b"")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(BARE)], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return {what: (code, sentence) for what, (code, sentence) in json.loads(done.stdout.splitlines()[-1]).items()}


@pytest.mark.parametrize("what", ["train", "safetensors", "doctor"])
def test_what_needs_no_extra_works(what: str, said: dict[str, tuple[int, str]]) -> None:
    assert said[what] == (0, "")


@pytest.mark.parametrize(
    ("what", "extra"),
    [
        ("serve", "serve"), ("onnx", "onnx"), ("tensorboard", "tensorboard"), ("mlflow", "mlflow"), ("wandb", "wandb"),
        ("model", "llm"), ("tokenizer", "llm"), ("hub", "datasets"), ("pictures", "images"),
        ("network", "network"), ("privacy", "privacy"),
    ],
)  # fmt: skip
def test_what_is_missing_is_named(what: str, extra: str, said: dict[str, tuple[int, str]]) -> None:
    code, sentence = said[what]
    assert code == 2
    clone = rf"\(in a clone: pip install -e '\.\[{extra}\]'\)"
    assert re.search(rf"needs? .*: pip install 'commonground\[{extra}\]' {clone}\n$", sentence)
    assert sentence.count("\n") == 1

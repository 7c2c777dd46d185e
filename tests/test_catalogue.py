"""What is read off the files is what their classes say once they are imported."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from commonground import catalogue, declared
from commonground.algorithms import registry, yardsticks
from commonground.catalogue import PRETRAINED, Entry
from commonground.cli import main
from commonground.data import available_sources
from commonground.declared import NotDeclaredError, evaluated
from commonground.explained import settings_from, settings_of
from commonground.models import available_models, model_options_class
from commonground.papers import experiments

METHODS = registry | yardsticks


def test_methods() -> None:
    methods = catalogue.methods()
    assert methods.keys() == METHODS.keys()
    for name, cls in METHODS.items():
        assert settings_from(methods[name].fields(), methods[name].docs) == settings_of(cls)
        assert methods[name].constant("source") == cls.source
        assert methods[name].docs[0].split() == str(cls.__doc__).split()
        assert methods[name].field_names() == tuple(cls.options())


def test_models() -> None:
    assert catalogue.model_texts() == available_models()
    for name in available_models():
        key = PRETRAINED if name.startswith(PRETRAINED) else name
        model, (cls, skipped) = catalogue.models()[key], model_options_class(name)
        assert catalogue.model_arguments(key) == skipped
        assert settings_from(model.arguments(skipped), model.docs) == settings_of(cls, skipped)
        assert model.docs[0].split() == str(cls.__doc__).split()


def test_data_sets() -> None:
    sources = [Entry(info.name, info.description, info.origin) for info in available_sources()]
    assert list(catalogue.data_entries()) == sources
    assert list(catalogue.data_names()) == [entry.name for entry in sources]


def test_experiments() -> None:
    entries = [Entry(name, one.title, one.source) for name, one in sorted(experiments.items())]
    assert list(catalogue.experiment_entries()) == entries
    assert list(catalogue.experiment_names()) == [entry.name for entry in entries]


def _value(text: str, file: Path) -> Any:
    return evaluated(ast.parse(text, mode="eval").body, file)


def test_names_are_followed_through_files_of_ours_and_no_further(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(declared, "ROOT", tmp_path / "commonground")
    (tmp_path / "commonground").mkdir()
    first, second = tmp_path / "commonground" / "first.py", tmp_path / "commonground" / "second.py"
    first.write_text("import torch\nfrom typing import Literal\nKIND = Literal['a', 'b']\nWIDE: int = 2 * 8\n")
    second.write_text(
        "from commonground.first import KIND, WIDE as W\nfrom torch import Tensor\nfrom commonground.none import X\n"
        "def f(): ...\n"
    )
    assert _value("(KIND, W + 1, int)", second) == (_value("KIND", first), 17, int)
    for unknown in ("Tensor", "X", "f()", "torch.nn", "W / 0"):
        with pytest.raises(NotDeclaredError):
            _value(unknown, second)


def test_what_cannot_be_read_is_imported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    lines = ["list fedrep", "list models mlp"]
    expected = []
    for line in lines:
        assert main(line.split()) == 0
        expected.append(capsys.readouterr().out)

    def refuse(*given: object, **known: object) -> Any:
        raise NotDeclaredError("no")

    monkeypatch.setattr(declared.Declared, "fields", refuse)
    monkeypatch.setattr(declared.Declared, "arguments", refuse)
    for line, shown in zip(lines, expected, strict=True):
        assert main(line.split()) == 0
        assert capsys.readouterr().out == shown

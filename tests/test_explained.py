"""What settings mean, read off docstrings and annotations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from commonground.algorithms import registry
from commonground.cli import main
from commonground.explained import Setting, paragraphs, settings_of
from commonground.models import available_models, model_options_class


@dataclass(frozen=True)
class Parent:
    """A parent.

    Args:
        rate: its own
            words, with ``code`` and :class:`~a.b.Name`.
        one, other: of both.

    This is no setting: it stands after them.
    """

    rate: Annotated[float, Field(gt=0, le=1)] = 0.5
    one: Annotated[int, Field(ge=1, lt=2_000_000)] | None = None
    other: bool = False


@dataclass(frozen=True)
class Child(Parent):
    """A child.

    With a second paragraph.

    Args:
        rate: in other words.
        kind: which.
        many: several.
    """

    kind: Literal["a", "b"] = "a"
    many: tuple[Annotated[float, Field(gt=0)], ...] = (0.5,)


class Plain:
    """No dataclass.

    Args:
        shape: no setting.
        width: in pixels.
    """

    def __init__(self, shape: int, width: int | Sequence[int] = 3, **more: Any) -> None:
        pass


def test_a_class_and_what_it_derives_from() -> None:
    assert settings_of(Child) == [
        Setting("rate", "in other words.", "0.5", "number > 0, ≤ 1"),
        Setting("one", "of both.", "auto", "whole number ≥ 1, < 2,000,000"),
        Setting("other", "of both.", "false", "true or false"),
        Setting("kind", "which.", "a", "a | b"),
        Setting("many", "several.", "(0.5,)", "list of: number > 0"),
    ]
    assert settings_of(Parent)[0].meaning == "its own words, with code and Name."
    assert paragraphs(Child.__doc__) == ["A child.", "With a second paragraph."]


def test_arguments_of_a_constructor() -> None:
    assert settings_of(Plain, skip=("shape",)) == [
        Setting("width", "in pixels.", "3", "whole number or list of: whole number")
    ]


@pytest.mark.parametrize("name", sorted(registry))
def test_every_setting_of_a_method_is_explained(name: str) -> None:
    """In words: a symbol of the paper alone says nothing to who has not got the paper."""
    for setting in settings_of(registry[name]):
        assert len(setting.meaning.split()) >= 2, setting
        assert setting.values, setting


@pytest.mark.parametrize("name", available_models())
def test_every_option_of_a_model_is_explained(name: str) -> None:
    for option in settings_of(*model_options_class(name)):
        assert len(option.meaning.split()) >= 2, option


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("fedrep", ["FedRep: a shared body", "Collins", "head_epochs", "epochs on the head", "whole number ≥ 0"]),
        ("algorithms fedbn", ["normalisation layers are personal", "all | batch", "commonground train fedbn"]),
        ("fedavg", ["no settings of its own"]),
        ("models mlp", ["widths of the hidden layers", "--set model.hidden="]),
        ("hf:NAME_OR_FOLDER", ["target_modules"]),
        ("data digits", ["handwritten digits"]),
        ("experiments fedrep-table1", ["commonground reproduce fedrep-table1"]),
        ("algorithms", ["fedproto", "Tan", "commonground list NAME"]),
    ],
)
def test_the_command(command: str, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", *command.split()]) == 0
    said = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for word in words:
        assert word in said


def test_a_kind_and_a_name_of_another_kind(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "models", "fedrep"]) == 2
    assert "there is no 'fedrep' among the models" in capsys.readouterr().err
    assert main(["list", "fedrep", "mlp"]) == 2
    assert "'fedrep' is listed by itself, without 'mlp' behind it" in capsys.readouterr().err

"""Which methods a server optimizer is for."""

from __future__ import annotations

from typing import Any

import pytest

from commonground.algorithms import registry
from commonground.errors import ConfigError
from tests.helpers import made_data, train_whole

REFUSED = {"rolora", "flora", "l2gd", "flexlora", "fedmtl", "feddyn", "fedproto"}


def test_methods_say_what_their_change_is() -> None:
    assert {name for name, cls in registry.items() if not cls.pseudo_gradient} == REFUSED


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
@pytest.mark.parametrize("algorithm", sorted(REFUSED))
def test_refused_where_a_change_is_no_gradient(algorithm: str, optimizer: Any) -> None:
    said = f"--server-optimizer {optimizer} steps along a round's change .* no gradient in {registry[algorithm].title};"
    with pytest.raises(ConfigError, match=said):
        train_whole(algorithm, made_data(), model="mlp", server_optimizer=optimizer)


def test_still_an_option_of_others() -> None:
    for algorithm in ("lora", "fedsgd"):
        assert train_whole(algorithm, made_data(), model="mlp", server_optimizer="momentum").run.summary["rounds"] == 3

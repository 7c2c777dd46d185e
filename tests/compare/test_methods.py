"""How methods are written."""

from __future__ import annotations

import pytest

from commonground import compare
from commonground.algorithms.fedrep import FedRep
from commonground.compare.methods import Method
from commonground.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "name", "settings", "title", "folder"),
    [
        ("fedavg", "fedavg", {}, "FedAvg", "fedavg"),
        ("fedavg+ft", "fedavg", {"finetune_epochs": 10}, "FedAvg+FT", "fedavg+ft"),
        ("fedavg:finetune_epochs=10", "fedavg", {"finetune_epochs": 10}, "FedAvg+FT", "fedavg+ft"),
        ("fedavg:lr=0.03", "fedavg", {"lr": 0.03}, "FedAvg (lr=0.03)", "fedavg-lr=0.03"),
        ("fedavg+ft:lr=0.03", "fedavg", {"finetune_epochs": 10, "lr": 0.03}, "FedAvg+FT (lr=0.03)",
         "fedavg+ft-lr=0.03"),
        ("fedrep:head-epochs=5,lr=0.1", "fedrep", {"head_epochs": 5, "lr": 0.1}, "FedRep (head_epochs=5, lr=0.1)",
         "fedrep-head_epochs=5-lr=0.1"),
        ("fedavg:lr_schedule=halve:0.5,0.75,momentum=0", "fedavg", {"lr_schedule": "halve:0.5,0.75", "momentum": 0},
         "FedAvg (lr_schedule=halve:0.5, 0.75, momentum=0)", "fedavg-lr_schedule=halve-0.5-0.75-momentum=0"),
    ],
)  # fmt: skip
def test_the_syntax(text, name, settings, title, folder):
    method = Method.parse(text)
    assert (method.name, method.settings, method.title, method.folder) == (name, settings, title, folder)
    assert Method.parse(method.label) == method


def test_an_algorithm_itself():
    method = Method.parse(FedRep(head_epochs=3))
    assert method.label == "fedrep:head_epochs=3"
    assert method.make() == FedRep(head_epochs=3)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("fedavg:", "not of the form"),
        ("fedavg,lr=0.1", "not of the form"),
        ("", "not of the form"),
        ("fedavg:lr", "not of the form"),
        ("fedavg+ft:lr", "not of the form"),
        (FedRep, "such as FedRep\\(\\), not <class"),
        ("fedavg:lr=0.1,lr=0.2", "sets 'lr' twice"),
        ("fedavgg", "unknown algorithm 'fedavgg'"),
        ("fedavg:head_epochs=3", "no setting 'head_epochs'"),
        ("fedavg:participation=0.1", "must be equal for all methods"),
        ("fedavg:seed=1", "must be equal for all methods"),
    ],
)
def test_mistakes_are_named(text, says):
    with pytest.raises(ConfigError, match=says):
        Method.parse(text).make()


def test_common_settings_go_to_the_methods_that_have_them():
    common = {"lr": 0.1, "finetune_epochs": 5, "options": {"head_epochs": 7}}
    fedavg, fedrep = (Method.parse(name).config(common) for name in ("fedavg", "fedrep:lr=0.2"))
    assert (fedavg.options, fedavg.finetune_epochs, fedavg.lr) == ({}, 5, 0.1)
    momentum = {"momentum": 0.9, "weighting": "samples"}
    scaffold, adam, given = (
        Method.parse(name).config(momentum) for name in ("scaffold", "fedavg:optimizer=adam", "fedavg:optimizer=sgd")
    )
    assert (scaffold.momentum, adam.momentum, given.momentum) == (0.5, 0.5, 0.9)
    tuned = Method.parse("scaffold+ft").config(momentum)  # its steps have none, its fine-tuning has
    assert tuned.momentum == Method.parse("scaffold").config(momentum | {"finetune_epochs": 3}).momentum == 0.9
    assert Method.parse("fedavg").config(momentum | {"optimizer": "adam"}).momentum == 0.5
    assert not Method.parse("scaffold").uses({"momentum": 0.9}, {})
    assert Method.parse("scaffold+ft").uses({"momentum": 0.9}, {}) == {"momentum": 0.9}
    assert Method.parse("scaffold").uses({"momentum": 0.9}, {"finetune_epochs": 2}) == {"momentum": 0.9}
    assert Method.parse("fedavg:optimizer=adam").uses({"momentum": 0.9, "lr": 0.1}, {}) == {"lr": 0.1}
    assert Method.parse("fedavg").uses({"momentum": 0.9, "optimizer": "adam"}, {}) == {"optimizer": "adam"}
    assert Method.parse("local").config(momentum).weighting == "uniform"
    assert adam.weighting == "samples"
    assert (fedrep.options, fedrep.finetune_epochs, fedrep.lr) == ({"head_epochs": 7}, 0, 0.2)


def test_a_comparisons_fine_tuning_is_of_methods_that_leave_clients_with_a_global_model():
    """Ditto's clients have a model of their own, and PerFedAvg's train theirs before a test."""
    common = {"finetune_epochs": 3, "finetune": "all"}
    tuned = {
        name: (config.finetune_epochs, config.finetune)
        for name in ("fedavg", "fedprox", "ditto", "apfl", "l2gd", "pfedme", "perfedavg", "fedrep", "local")
        for config in [Method.parse(name).config(common)]
    }
    own = dict.fromkeys(("ditto", "apfl", "l2gd", "pfedme", "perfedavg", "fedrep", "local"), (0, "head"))
    assert tuned == own | dict.fromkeys(("fedavg", "fedprox"), (3, "all"))
    assert Method.parse("ditto+ft").config(common).finetune_epochs == 10  # named with it
    assert Method.parse("ditto:finetune_epochs=2").config(common).finetune == "all"


def test_fine_tuning_that_says_nothing_to_any_method_is_refused():
    for names in (["ditto"], ["ditto", "perfedavg", "fedrep"]):
        with pytest.raises(ConfigError, match="epochs 3 is for methods that leave clients with a global model"):
            compare(names, "digits", rounds=1, finetune_epochs=3, local_only=False)


def test_without_a_server_optimizer_its_numbers_are_left_out_as_well():
    common = {"server_optimizer": "adam", "server_lr": 0.1, "server_beta2": 0.9}
    fedavg, local = (Method.parse(name).config(common) for name in ("fedavg", "local"))
    assert (fedavg.server_optimizer, fedavg.server_lr, fedavg.server_beta2) == ("adam", 0.1, 0.9)
    assert local == Method.parse("local").config({})

"""Build what every engine starts from, once method, model, loss and data are seen to fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from commonground.algorithms import Algorithm, Tensors
from commonground.config import RunConfig
from commonground.data import FederatedDataset
from commonground.data.class_counts import class_totals
from commonground.devices import resolve_device
from commonground.engine.client_tensors import check_sent
from commonground.engine.clients.batches import check_lengths
from commonground.engine.option_checks import check_described, check_options
from commonground.engine.private.settings import check_statistics
from commonground.engine.setup import Setup
from commonground.engine.trial import Trial, try_model
from commonground.errors import ConfigError, ModelError
from commonground.models import Groups, call, tensors_of
from commonground.models.behaviour import Behaviour
from commonground.precision import check_precision
from commonground.registration import is_ours
from commonground.tasks import OwnLoss, OwnMetric, class_weights
from commonground.user_code import failing_as

__all__ = ["build_setup"]


def build_setup(
    config: RunConfig,
    data: FederatedDataset,
    model: nn.Module,
    groups: Groups,
    algorithm: Algorithm,
    start: Tensors | None = None,
    loss: OwnLoss | None = None,
    own_metrics: Mapping[str, OwnMetric] | None = None,
) -> Setup:
    """Check that method, model and data fit, and take the model's present weights as the start.

    Raises:
        ConfigError, ModelError: what does not fit.
    """
    algorithm.check(config)
    check_options(config, algorithm)
    check_statistics(config, algorithm, groups)
    check_lengths(config, int(data.train_sizes.max()))
    check_precision(config.precision, config.dtype, resolve_device(config.device))
    if algorithm.needs_classes and not data.task.softmax:
        raise ConfigError(
            f"{algorithm.title} is made for classes, and the task of {data.name!r} is {data.task.name}; choose a "
            "method for any task, such as fedrep or ditto"
        )
    if config.augment != "none" and len(data.sample_shape) != 3:
        raise ConfigError(f"augment={config.augment} needs images, and samples of {data.name} are none")
    if config.batch_norm == "local" and not groups.local_statistics:
        raise ConfigError(
            f"--batch-norm local keeps statistics of BatchNorm layers with the clients, and the model "
            f"'{config.model}' has none that change"
        )
    if data.described:
        check_described(config)
    groups.check_cover(algorithm.shared, algorithm.personal, ": every tensor of a model is shared or personal")
    check_sent(groups, algorithm, config.rounds)
    if "head" in algorithm.personal and not groups.whole(algorithm.personal):
        raise ModelError(
            f"{algorithm.title} keeps the head with each client, and the model '{config.model}' has none of its "
            "own; say which of its tensors are meant (--head PATTERN), or take a method with one model for all, "
            "such as fedavg"
        )
    initial = {name: t.detach().cpu().clone() for name, t in tensors_of(model).items()}
    model = model.to(resolve_device(config.device))
    weights = None
    if config.class_weights is not None:
        totals = class_totals(data.class_counts_in_parts())
        weights = class_weights(config.class_weights, data.task, totals, data.class_names)
    setup = Setup(config, data, model, groups, algorithm, initial, start, loss, weights, own_metrics or {})
    setup = replace(setup, behaviour=_try_model(setup))
    _try_loss(setup)
    setup.prepare_model()
    return setup


def _try_model(setup: Setup) -> Behaviour:
    """What calls of the model do besides giving outputs, which must fit the data."""
    one = set(setup.probe) == {"x"}
    several = setup.data.format.kind == "named" and len(setup.probe) > 1
    if several and is_ours(type(setup.model)):
        raise ModelError(
            f"this model takes samples of one array, and these have the inputs {', '.join(setup.probe)}: give a "
            "module of your own whose forward has parameters of these names (model=, --model file.py:Class)"
        )
    what = f"samples of shape {setup.inputs.shape}" if one else f"the inputs {', '.join(setup.probe)} by name"
    trial = Trial(setup.probe, setup.company, what, setup.data.task, setup.data.classes)
    behaviour = try_model(setup.model, trial)
    if behaviour.joins_tested and bool((setup.data.test_sizes == 1).any()):
        client = setup.data.shown_name(int((setup.data.test_sizes == 1).argmax()))
        trial.check_lone(setup.model, client)
    return behaviour


def _try_loss(setup: Setup) -> None:
    """See whether a loss of the user's can be trained with (:meth:`~commonground.tasks.Objective.check`)."""
    n = len(setup.data.y_train)
    if not setup.objective.of_user or n < 3 or setup.folds or setup.data.described:  # clients try it on rows of theirs
        return
    x, y = setup.inputs.rows("train", np.array([0, n - 1, n // 2]))
    with torch.no_grad(), setup.keyed("probe"), failing_as("the loss failed"):
        out = setup.wide(call(setup.model, setup.inputs.arrange(x)))
        if len(out) != len(y):
            return
        setup.objective.check(out, y)

"""Settings of a run that do not go with its method, or not with each other; each is refused by a sentence."""

from __future__ import annotations

from commonground.aggregation import parse_aggregate
from commonground.algorithms import Algorithm
from commonground.config import RunConfig
from commonground.errors import ConfigError

__all__ = [
    "check_described",
    "check_in_vain",
    "check_options",
    "check_own_steps",
    "check_updates",
    "is_chosen",
    "not_taken",
    "unused",
]

# Options of `fit`'s steps, beside the optimizer, that a method with steps of its own passes over.
_OF_STEPS = ("head_lr", "body_lr", "clip_norm", "no_decay_bias")


def _check_aggregate(config: RunConfig, algorithm: Algorithm) -> None:
    """Refuse a robust aggregate where the method has no mean to put it in the place of, or clients are weighed."""
    aggregate = parse_aggregate(config.aggregate)
    if config.aggregate == "mean":
        return
    if algorithm.own_aggregate:
        raise ConfigError(
            f"--aggregate {config.aggregate} takes the mean's place, and {algorithm.title} has none: "
            f"{algorithm.own_aggregate}"
        )
    if config.weighting != "uniform" and not aggregate.weighs:
        raise ConfigError(
            f"--aggregate {config.aggregate} cannot weigh updates by {config.weighting}: what a client says of itself "
            "would decide how much it counts; leave out --weighting"
        )


def check_updates(config: RunConfig, clients: int) -> None:
    """Refuse a robust aggregate for which too few updates come in a round.

    Args:
        config: of the run.
        clients: of the data at hand.

    Raises:
        ConfigError: says how many there must be.
    """
    aggregate = parse_aggregate(config.aggregate)
    come = config.participants(config.federation(clients))
    if come < aggregate.least():
        more = "more clients" if come == config.federation(clients) else "a larger --participation"
        raise ConfigError(
            f"--aggregate {config.aggregate} needs at least {aggregate.least()} updates in a round, and "
            f"{come} client{'s take' if come != 1 else ' takes'} part; take {more}, or another aggregate or number"
        )


# Numbers of an optimizer, with the ones that have them; their defaults are no choice of anybody's.
_OF_SERVER = {
    "server_lr": ("momentum", "adam"),
    "server_momentum": ("momentum", "adam"),
    "server_beta2": ("adam",),
    "server_epsilon": ("adam",),
}


# What fine-tuning takes of a run's settings, whatever the method: it trains heads by `fit`.
_OF_FINE_TUNING = ("batch_size", "momentum", "weight_decay")


def unused(algorithm: Algorithm | type[Algorithm], finetune_epochs: int = 0) -> dict[str, str]:
    """Settings that say nothing to a run of a method, each with why, as the end of a sentence.

    Raises:
        ConfigError: the algorithm, a user's perhaps, names something else.
    """
    for entry in algorithm.unused:
        if not (isinstance(entry, tuple) and len(entry) == 2 and entry[0] in RunConfig.model_fields):
            raise ConfigError(
                f"`unused` of {algorithm.title} holds {entry!r}, which is no pair of a run's setting and why it says "
                "nothing"
            )
    found = {name: why for name, why in algorithm.unused if not (finetune_epochs and name in _OF_FINE_TUNING)}
    if "server_optimizer" in found:  # nor do its numbers
        found |= dict.fromkeys(_OF_SERVER, found["server_optimizer"])
    return found


def not_taken(algorithm: Algorithm | type[Algorithm], finetune_epochs: int = 0) -> set[str]:
    """Settings that a run of a method refuses, where they are given to several methods: those that say nothing to it,
    and options of steps that are not its own.
    """
    return {*unused(algorithm, finetune_epochs), *(_OF_STEPS if algorithm.needs_sgd else ())}


def check_in_vain(config: RunConfig, algorithm: Algorithm) -> None:
    """Refuse settings that a user gives in vain. What is the usual value, or none at all, is nobody's choice.

    Raises:
        ConfigError: names the setting and why nothing comes of it.
    """
    for name, why in unused(algorithm, config.finetune_epochs).items():
        value = getattr(config, name)
        if is_chosen(name, value):
            raise ConfigError(
                f"--{name.replace('_', '-')} {value} says nothing to {algorithm.title}: {why}; leave it out"
            )
    fields = RunConfig.model_fields
    for name, having in _OF_SERVER.items():
        value, flag = getattr(config, name), f"--{name.replace('_', '-')}"
        if value != fields[name].default and config.server_optimizer not in having:
            raise ConfigError(
                f"{flag} {value:g} is a setting of --server-optimizer {' and '.join(having)}, which is "
                f"{config.server_optimizer} here; add --server-optimizer {having[0]}, or leave out {flag}"
            )
    if config.optimizer in ("adam", "adamw") and is_chosen("momentum", config.momentum):
        raise ConfigError(
            f"--momentum {config.momentum:g} is a setting of sgd, and {algorithm.title} is trained by "
            f"{config.optimizer}; take --betas, or leave out --momentum"
        )


def is_chosen(name: str, value: object) -> bool:
    """Whether a setting's value is somebody's choice, that is neither the usual one nor none or nothing."""
    return value not in (RunConfig.model_fields[name].default, None) and value != 0


def check_options(config: RunConfig, algorithm: Algorithm) -> None:
    """Refuse options of local training that a method's own step or loss leaves no room for.

    Args:
        config: of the run. What depends on its optimizer is refused once that is known.
        algorithm: its method.

    Raises:
        ConfigError: names the option, the method and why.
    """
    if algorithm.needs_sgd and config.optimizer not in (None, "sgd"):
        raise ConfigError(
            f"{algorithm.title} takes steps of SGD alone: {algorithm.needs_sgd}; leave out --optimizer "
            f"{config.optimizer} (in a comparison write {config.algorithm}:optimizer=sgd)"
        )
    if config.server_optimizer != "none" and not algorithm.pseudo_gradient:
        raise ConfigError(
            f"--server-optimizer {config.server_optimizer} steps along a round's change of the shared tensors, "
            f"which is no gradient in {algorithm.title}; leave it away, or take another method"
        )
    _check_aggregate(config, algorithm)
    for name in _OF_STEPS if algorithm.needs_sgd else ():
        if getattr(config, name):
            raise ConfigError(
                f"{algorithm.title} takes plain steps: {algorithm.needs_sgd}; leave out --{name.replace('_', '-')}"
            )
    for name in ("class_weights", "loss") if algorithm.own_loss else ():
        if getattr(config, name) is not None:
            raise ConfigError(
                f"{algorithm.title} has a loss of its own: {algorithm.own_loss}; leave out --{name.replace('_', '-')}"
            )
    if config.warmup >= config.rounds and config.warmup:
        raise ConfigError(f"--warmup {config.warmup} leaves none of the {config.rounds} rounds at the full rate")
    if config.early_stopping is not None and not config.validation_fraction:
        raise ConfigError(
            f"--early-stopping {config.early_stopping} needs rows to judge by; add --validation-fraction, such as 0.2"
        )
    if config.early_stopping is not None and config.rounds > 1:
        sent = [algorithm.rounds_sent(rounds, config.rounds) for rounds in (config.rounds - 1, config.rounds)]
        if not sent[0] and sent[1]:
            raise ConfigError(
                f"--early-stopping keeps an earlier round's models, and clients of {algorithm.title} send theirs after "
                "the last one alone; leave it out"
            )
    for name in ("betas", "eps"):
        if getattr(config, name) is not None and config.optimizer not in (None, "adam", "adamw"):
            raise ConfigError(
                f"--{name} is a setting of adam and adamw, and {algorithm.title} is trained by {config.optimizer}; "
                f"add --optimizer adamw, or leave out --{name}"
            )
    if config.ray_address is not None and config.engine != "ray":
        raise ConfigError(f"--ray-address {config.ray_address} says where the engine 'ray' computes; add --engine ray")
    if config.no_decay_bias and not config.weight_decay:
        raise ConfigError("--no-decay-bias says what --weight-decay spares, and there is no weight decay")


def check_own_steps(config: RunConfig, algorithm: Algorithm) -> None:
    """Refuse options of `fit`'s steps in a method that takes a step of its own (:meth:`Client.step`), which passes over
    them. Of one that says so beforehand (``needs_sgd``) :func:`check_options` has refused them.

    Raises:
        ConfigError: names the option and the method.
    """
    chosen = [name for name in _OF_STEPS if getattr(config, name)]
    if config.optimizer not in (None, "sgd"):
        chosen.append("optimizer")
    if chosen:
        raise ConfigError(
            f"{algorithm.title} takes a step of its own (client.step), which passes over "
            f"--{chosen[0].replace('_', '-')}; leave it out, or train by client.fit"
        )


def check_described(config: RunConfig) -> None:
    """Refuse settings for which somebody would have to see all clients' samples.

    Raises:
        ConfigError: names the setting.
    """
    for flag, given in (
        ("--metrics full", config.metrics == "full"),
        ("--class-weights balanced", config.class_weights == "balanced"),
        ("--feature-noise", bool(config.feature_noise)),
    ):
        if given:
            raise ConfigError(f"{flag} is not possible where the clients' samples stay with them")

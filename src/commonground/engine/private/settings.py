"""The settings of ``--dp``: which methods and other settings go with them, and what is filled in."""

from __future__ import annotations

from typing import Any

from commonground.algorithms import Algorithm
from commonground.config import RunConfig
from commonground.data import FederatedDataset
from commonground.engine.sampling import most_rounds
from commonground.errors import ConfigError
from commonground.models import Groups
from commonground.privacy import Budget, ClientPrivacy, ExamplePrivacy, noise_for, usual_delta

__all__ = [
    "budget_of",
    "check_privacy",
    "check_private_data",
    "check_statistics",
    "examples_of",
    "privacy_of",
    "resolve_privacy",
]

_SETTINGS = ("dp_clip", "dp_noise", "dp_epsilon", "dp_delta", "dp_where", "dp_adaptive_clip", "dp_secret_noise")
_FIRST_CLIP = 0.1  # of adaptive clipping (Andrew et al. 2021)


def check_privacy(config: RunConfig, algorithm: Algorithm) -> None:
    """Refuse methods that cannot be made private, settings under which the ε told would not be true, and to hide
    clients or examples without a clip norm or noise. All of that is known before there are data.

    Raises:
        ConfigError: says what and why.
    """
    if config.dp is None:
        given = next((name for name in _SETTINGS if getattr(config, name) not in (None, False)), None)
        if given is not None:
            raise ConfigError(
                f"--{given.replace('_', '-')} is a setting of differential privacy; add --dp client, or example"
            )
        return
    if config.dp == "example":
        check_examples(config, algorithm)
        return
    _check_method(config, algorithm)
    if config.class_weights == "balanced":
        raise ConfigError(
            "--class-weights balanced counts the labels of all clients, so that the data of one change what the others "
            "send, which --dp client does not hide; give the weights themselves (--class-weights 1,5)"
        )
    if config.feature_noise:
        raise ConfigError(
            "--feature-noise mixes samples of some clients into those of others, so that the data of one change what "
            "the others send, which --dp client does not hide; leave it out"
        )
    if config.few_rows not in (None, "keep"):
        raise ConfigError(
            f"--few-rows {config.few_rows} makes clients of those that have enough rows, so that the data of one "
            "change how many there are, which --dp client takes as known to all; leave it out"
        )
    if config.weighting != "uniform":
        raise ConfigError(
            f"--dp client bounds what each client can change, and --weighting {config.weighting} would let some count "
            "more than others; leave out --weighting"
        )
    if config.aggregate != "mean" and config.dp_where != "client":
        raise ConfigError(
            f"--dp client adds the noise of a mean of changes, and --aggregate {config.aggregate} is none; leave out "
            "--aggregate, or let each client add its own noise (--dp-where client)"
        )
    if config.dp_clip is None and config.dp_adaptive_clip is None:
        raise ConfigError(
            "--dp client needs --dp-clip, the largest L2 norm of a client's change, such as 1, or --dp-adaptive-clip "
            "0.5, which finds it"
        )
    _check_noise(config)


def check_private_data(config: RunConfig, algorithm: Algorithm, data: FederatedDataset) -> None:
    """As :func:`check_privacy`, of what data have that were given as an object and no setting says.

    Raises:
        ConfigError: says what and why.
    """
    if config.dp is not None:
        noise = 0.0 if data.noise is None else data.noise.strength
        check_privacy(
            config.model_copy(update={"feature_noise": noise, "few_rows": data.few_rows.get("how")}), algorithm
        )


def _check_noise(config: RunConfig) -> None:
    if config.dp_noise is None and config.dp_epsilon is None:
        raise ConfigError(
            f"--dp {config.dp} needs --dp-noise, a multiple of --dp-clip, or --dp-epsilon, which finds it"
        )


def _check_method(config: RunConfig, algorithm: Algorithm) -> None:
    why = algorithm.not_private or _undeclared(algorithm)
    if why:
        raise ConfigError(f"--dp client cannot make {algorithm.title} private: {why}")
    if algorithm.server_sees and config.dp_where == "client":
        raise ConfigError(
            f"--dp-where client does not hide all that leaves the clients of {algorithm.title}: "
            f"{algorithm.server_sees}; leave it out where the server is trusted, or take another method, such as fedrep"
        )


def check_statistics(config: RunConfig, algorithm: Algorithm, groups: Groups) -> None:
    """Refuse to add noise to what must stay positive: running statistics that travel, of a model's ``groups``.

    Raises:
        ConfigError: names a layer.
    """
    if config.dp != "client":
        return
    sent = {group for round in range(1, config.rounds + 1) for group in algorithm.sends(round)}
    travelling = set(groups.names(sorted(sent))) & set(groups.statistics)
    if travelling:
        raise ConfigError(
            f"--dp client would add noise to the running statistics of a normalising layer ('{min(travelling)}'), and "
            "make variances negative; "
            "let each client keep its own (--batch-norm local), or take a model that normalises within samples"
        )


def _undeclared(algorithm: Algorithm) -> str:
    """Why a method whose server does more than average cannot be judged; empty if it says so itself."""
    classes = type(algorithm).__mro__
    said = next(place for place, cls in enumerate(classes) if "not_private" in vars(cls))
    for name in ("server_update", "replies", "message_to"):
        if name in {key for cls in classes[:said] for key in vars(cls)}:
            return f"its own {name} does not say whether it takes more of the changes than their sum (not_private)"
    return ""


def check_examples(config: RunConfig, algorithm: Algorithm) -> None:
    """Refuse settings under which examples would not be hidden. Verbs that tell of examples are refused when a method
    calls them (:class:`~commonground.engine.private.examples.Counting` does so before training), models where they are
    tried.

    Raises:
        ConfigError: says what and why.
    """
    if algorithm.pools:
        raise ConfigError(f"--dp example cannot make {algorithm.title} private: {algorithm.not_private}")
    if config.dp_where is not None or config.dp_adaptive_clip is not None:
        flag = "--dp-where" if config.dp_where is not None else "--dp-adaptive-clip"
        raise ConfigError(
            f"{flag} is a setting of --dp client; with --dp example every client adds noise in each of its steps, and "
            "--dp-clip stays; leave it out"
        )
    if config.feature_noise:
        raise ConfigError(
            f"--feature-noise {config.feature_noise:g} lets one example enter all samples of another client, which "
            "--dp example does not hide; leave it out"
        )
    if config.class_weights == "balanced":
        raise ConfigError(
            "--class-weights balanced counts the examples of all clients without noise, which --dp example does not "
            "hide; give the weights themselves (--class-weights 1,5)"
        )
    if config.dp_clip is None:
        raise ConfigError("--dp example needs --dp-clip, the largest L2 norm of an example's gradient, such as 1")
    _check_noise(config)


def resolve_privacy(config: RunConfig, clients: int, algorithm: Algorithm, rows: int) -> dict[str, Any]:
    """What was left to us: δ, the first C, and the noise that a wanted ε needs; fields of the configuration. The noise
    of single examples is found later (:func:`~commonground.engine.private.examples.with_noise_found`).

    Args:
        config: of the run, checked (:func:`check_privacy`).
        clients: of the data at hand. A single client of a larger federation takes the noise it is told, if it is.
        algorithm: the run's method.
        rows: training examples of all clients.

    Raises:
        ConfigError: the noise is not that of the ε, δ is too large, or the accountant is not installed.
    """
    if config.dp is None:
        return {}
    if config.dp == "example":
        return _resolve_examples(config, rows)
    federation = config.federation(clients)
    if federation < 2:
        raise ConfigError("--dp client hides one client among others, and there is one alone")
    delta = config.dp_delta or usual_delta(federation)
    if delta >= 1 / federation:
        raise ConfigError(
            f"--dp-delta {delta:g} must be less than 1/{federation}, or giving one client away at random would do"
        )
    noise = config.dp_noise
    if noise is None or clients == federation:
        noise = _noise(config, delta, federation, algorithm)
    clip = _FIRST_CLIP if config.dp_clip is None else config.dp_clip
    return {"dp_clip": clip, "dp_noise": noise, "dp_delta": delta, "dp_where": config.dp_where or "server"}


def _resolve_examples(config: RunConfig, rows: int) -> dict[str, Any]:
    delta = config.dp_delta or usual_delta(rows)
    if delta >= 1 / rows:
        raise ConfigError(
            f"--dp-delta {delta:g} must be less than 1/{rows}, or giving one example away at random would do"
        )
    return {"dp_delta": delta}


def _noise(config: RunConfig, delta: float, clients: int, algorithm: Algorithm) -> float:
    """Z as it is given, or as the wanted ε needs it."""
    if config.dp_epsilon is None:
        assert config.dp_noise is not None, "settings are checked before they are resolved"
        # So that a missing accountant is told now, and not at the end.
        budget_of(config, config.dp_noise, clients, 1).epsilon(delta)
        return config.dp_noise
    rounds = algorithm.rounds_sent(config.rounds, config.rounds)
    needed = noise_for(config.dp_epsilon, delta, budget_of(config, 1.0, clients, rounds))
    if config.dp_noise is None:
        return needed
    if abs(config.dp_noise - needed) > 1e-3 * needed:
        raise ConfigError(
            f"--dp-noise {config.dp_noise:g} is not the noise of --dp-epsilon {config.dp_epsilon:g} in "
            f"{config.rounds:,} rounds, which is {needed:g}; give one of the two"
        )
    return config.dp_noise


def budget_of(
    config: RunConfig, noise: float, clients: int, rounds: int, repeated: tuple[int, ...] = (), *, once: bool = True
) -> Budget:
    """What so many rounds release to those from whom a run's noise is to hide the clients.

    Local noise hides them from the server, who knows when each of them took part.

    Args:
        config, noise, clients: of the run.
        rounds: of which one outcome was released, or in which clients answered.
        repeated: of the rounds beside them, how many outcomes were released.
        once: whether clients keep what they have answered, and answer a round again with that; elsewhere a round that
            is repeated is computed again.
    """
    if config.dp_where == "client":
        more = 0 if once else sum(repeated) - len(repeated)
        return Budget(noise, most_rounds(config, clients, rounds + len(repeated)) + more, clients, clients)
    return Budget(noise, rounds, clients, config.participants(clients), repeated)


def privacy_of(config: RunConfig) -> ClientPrivacy | None:
    """How a run's changes are made private, its settings filled in; None if they are not."""
    if config.dp != "client":
        return None
    assert config.dp_clip is not None, "privacy is resolved before a run starts"
    assert config.dp_noise is not None, "privacy is resolved before a run starts"
    return ClientPrivacy(config.dp_clip, config.dp_noise, config.dp_where or "server", config.dp_adaptive_clip)


def examples_of(config: RunConfig) -> ExamplePrivacy | None:
    """How steps are made private, the noise filled in; None if they are not, or as long as it is not known."""
    if config.dp != "example" or config.dp_noise is None:
        return None
    assert config.dp_clip is not None, "privacy is resolved before a run starts"
    return ExamplePrivacy(config.dp_clip, config.dp_noise)

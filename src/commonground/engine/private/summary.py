"""What a run tells of its privacy, in ``summary.json``."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from commonground.algorithms import Tensors
from commonground.data.arrays import AS_STORED
from commonground.engine.client_rows import ClientRows
from commonground.engine.private.examples import epsilons, passes_of
from commonground.engine.private.settings import budget_of
from commonground.engine.setup import Setup
from commonground.privacy import CLIP, Budget
from commonground.privacy.accounting import GAUSSIAN
from commonground.tasks import Regression

__all__ = ["own_privacy", "privacy_summary", "with_epsilons"]

NOT_COVERED = (
    "training losses, numbers of samples and the figures of tests, which clients report without noise, and what is "
    "chosen by them"
)
BROUGHT = (
    "what a schema or data.json tells that the clients brought: of whose rows it was made is not known here, and no "
    "noise is in it"
)

DIGESTS = (
    "the SHA-256 of all data (data_fingerprint) and, in split.json, each client's number of rows of each class; in "
    "clients.csv, in how many rounds each client took part"
)
BEGUN = "the weights it begins with (--init-from), which another run has learnt"
TEST_ROWS = "which rows are test rows, where they are drawn evenly from the classes"


def privacy_summary(
    setup: Setup,
    rounds: int,
    shared: Tensors,
    released: Mapping[int, int] | None = None,
    came: Collection[int] = (),
) -> dict[str, Any]:
    """The field ``privacy`` of a run's summary; nothing where it has no ``--dp``.

    Args:
        setup: of the run.
        rounds: done, also those whose models were not kept.
        shared: the server's tensors.
        released: by round, how many outcomes have left the server, as far as that is known: of one that was repeated
            with other answers, several; of one that was lost and not repeated, one or more.
        came: how many took part in each round, where fewer may have come than were asked.
    """
    privacy, config, clients = setup.privacy, setup.config, setup.data.clients
    if config.dp_delta is None or config.dp is None:
        return {}
    delta, participants = config.dp_delta, config.participants(clients)
    if setup.examples is not None:
        return {"privacy": _of_examples(setup, range(1, rounds + 1), delta) | {"not_covered": not_covered(setup)}}
    if privacy is None:
        nothing = {
            "level": config.dp,
            "epsilon": 0.0,
            "delta": delta,
            "hidden_from": "everyone: nothing leaves the clients",
        }
        return {"privacy": nothing | {"rounds": 0, "not_covered": not_covered(setup)}}
    several = {round: k for round, k in (released or {}).items() if k > 1 or round > rounds}
    sent = max(0, setup.algorithm.rounds_sent(rounds, config.rounds) - sum(round <= rounds for round in several))
    # Over a network noise is always secret, and who has a secret keeps what it answered.
    once = setup.data.described or (config.engine == "messages" and config.dp_secret_noise)
    budget = budget_of(config, privacy.noise, clients, sent, tuple(several.values()), once=once)
    again = sum(several.values()) - sum(round <= rounds for round in several)
    epsilon, accountant = budget.epsilon(delta)
    # Of a round that was repeated nobody knows how many had come at first.
    fewest = 1 if again else min(came, default=participants)
    told: dict[str, Any] = {"level": config.dp, "where": privacy.where, "epsilon": epsilon, "delta": delta}
    told["neighbours"] = "all data of one client replaced"
    if privacy.where == "client":
        told["hidden_from"] = "the server and everyone else"
        # Two means of one round's answers, of other clients, would not hide one client in the noise of all of them.
        if config.aggregate == "mean" and not again:
            # The sum of few answers has the noise of few.
            central = Budget(privacy.noise * fewest**0.5, sent, clients, participants)
            told["epsilon_of_models"] = central.epsilon(delta)[0]
    else:
        told["hidden_from"] = "everyone but the server"
        if (zero := replace(budget, noise=privacy.zero_out_noise(fewest)).zero_out(delta)) is not None:
            told["epsilon_zero_out"] = zero
    told |= {"clip": privacy.clip, "noise": privacy.noise}
    if privacy.quantile is not None:
        told |= {"adaptive_clip": privacy.quantile, "last_clip": float(shared[CLIP])}
        told["noise_on_changes"] = privacy.change_noise(1 if privacy.where == "client" else fewest)
    sampling = "all clients" if participants == clients else "without replacement, a fixed number"
    told |= {"sampling": sampling, "clients": clients, "participants": participants, "rounds": budget.releases}
    told |= {"released_again": again} if again else {}
    told |= {"accountant": accountant, "noise_from": "a secret" if config.dp_secret_noise else "seed"}
    return {"privacy": told | {"not_covered": not_covered(setup)}}


def own_privacy(setup: Setup, answered: Sequence[int], took_part: int) -> dict[str, Any]:
    """As :func:`privacy_summary`, for the folder of a single client of a larger federation, which knows its own passes
    and not what the others hide it by.

    Args:
        setup: the client's.
        answered: the rounds in which it gave answers with noise of its own, whether the server counted them or not.
        took_part: in how many rounds it took part; those count where the server adds the noise.
    """
    config = setup.config
    if config.dp is None or config.dp_delta is None:
        return {}
    if setup.examples is not None:
        return {"privacy": _of_examples(setup, answered, config.dp_delta) | {"not_covered": not_covered(setup)}}
    rounds = len(answered) if setup.clients_add_noise else took_part
    told: dict[str, Any] = {"level": config.dp, "where": config.dp_where, "delta": config.dp_delta, "rounds": rounds}
    told |= {"clip": config.dp_clip, "noise": config.dp_noise, "epsilon_in": "the server's summary.json"}
    return {"privacy": told | {"not_covered": not_covered(setup)}}


def not_covered(setup: Setup) -> str:
    """What tells of the clients' data beside what is hidden."""
    pooled, said, schema = _pooled(setup), NOT_COVERED, setup.data.schema
    if not setup.data.described:
        said += f"; {DIGESTS}"
    if setup.init_from is not None:
        said += f"; {BEGUN}"
    by_class = schema is not None and schema.client_column is None and not schema.beside and setup.data.task.softmax
    if setup.config.dp == "example" and by_class:
        said += f"; {TEST_ROWS}"
    if setup.data.described and schema is None and setup.data.preprocess != AS_STORED:
        said += f"; {BROUGHT}"
    if not pooled:
        return said
    whose = "of all clients' rows together"
    if setup.data.described:
        whose = "made of what each client tells the server of its own rows"
    return f"{said}; {', '.join(pooled)}, which are {whose} and reach every client's model"


def _pooled(setup: Setup) -> list[str]:
    """What is learnt of all clients' rows together before the first round, without noise."""
    schema, task, found = setup.data.schema, setup.data.task, []
    if schema is not None and schema.scaling == "pooled":
        found.append("means and deviations of the table's numbers (--scaling pooled)")
    if schema is not None and schema.of_kind("category"):
        found.append("categories of the table")
    if schema is not None and schema.features:
        found.append("which columns are inputs, as what they are read, and whether any of their cells is empty")
    # By bounds a missing number is in their middle; else even a column without empty cells has a median.
    features = () if schema is None or schema.scaling.startswith("bounds:") else schema.features
    if any(c.kind != "category" for c in features):
        found.append(f"{'means' if setup.data.described else 'medians'}, which stand for missing cells")
    if isinstance(task, Regression) and task.mean:
        found.append("mean and deviation of what is predicted")
    if task.softmax and (schema is not None or "label_column" in setup.data.about):
        found.append("classes of the table's label")
    elif task.softmax and (setup.data.about or setup.data.counted_classes):
        found.append("classes")
    return found


def _of_examples(setup: Setup, rounds: Sequence[int], delta: float) -> dict[str, Any]:
    """What a run of ``--dp example`` tells: the ε of the client that gives away most."""
    privacy, passes, clients = setup.examples, passes_of(setup, rounds), setup.data.clients
    assert privacy is not None, "asked for only where there is noise in steps"
    return {
        "level": "example",
        "epsilon": max(epsilons(passes, privacy.noise, delta)),
        "delta": delta,
        "neighbours": "one training example of one client replaced",
        "hidden_from": "the server and everyone else",
        "clip": privacy.clip,
        "noise": privacy.noise,
        "sampling": "none: an epoch uses every example once",
        "passes": int(passes.max()),
        "clients": clients,
        "participants": setup.config.participants(clients),
        "rounds": len(rounds),
        "accountant": GAUSSIAN,
        "noise_from": "a secret" if setup.config.dp_secret_noise else "seed",
    }


def with_epsilons(setup: Setup, rounds: Sequence[int], clients: ClientRows) -> ClientRows:
    """Rows of ``clients.csv`` with each client's own ε where single examples are hidden; else as they are.

    Args:
        setup: of the run.
        rounds: that count (1-based).
        clients: their rows.
    """
    if setup.examples is None or setup.config.dp_delta is None:
        return clients
    found = epsilons(passes_of(setup, rounds), setup.examples.noise, setup.config.dp_delta)
    return clients.with_column("epsilon", found)

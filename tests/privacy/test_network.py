"""Over a network: noise is secret whatever the run's settings say, and its secret outlasts what repeats a round."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, cast

import pytest

from commonground import train
from commonground.engine.backends.message_kinds import Digest
from commonground.engine.backends.received import check_question
from commonground.engine.training import prepared
from commonground.errors import UpdateError
from commonground.network.post import Letter
from tests.network.test_network_engine import SETTINGS, data_of, over
from tests.network.town import Town

LOCAL: dict[str, Any] = {"dp": "client", "dp_where": "client", "dp_adaptive_clip": 0.5, "dp_epsilon": 8.0}
CENTRAL: dict[str, Any] = {"dp": "client", "dp_clip": 0.5, "dp_epsilon": 8.0}


def keys_of(town: Town) -> dict[Path, bytes]:
    """The clients' secrets, as they are found while the run goes on."""
    keys: dict[Path, bytes] = {}

    def look(node: int, asked: Letter, answer: Letter) -> Letter:
        keys.update({path: path.read_bytes() for folder in town.folders for path in folder.rglob("noise.key")})
        return answer

    town.spoil = look
    return keys


@pytest.mark.parametrize("kind", [LOCAL, CENTRAL], ids=["local", "central"])
def test_clients_elsewhere_are_private(kind: dict[str, Any], tmp_path: Path) -> None:
    town = Town(data_of(), tmp_path / "sites")
    keys = keys_of(town)
    run = over(town, tmp_path / "run", algorithm="fedrep", **SETTINGS, **kind)
    told = run.summary["privacy"]
    assert 7.9 < told["epsilon"] <= 8
    assert told["clients"] == 4
    assert told["noise_from"] == "a secret"
    assert len(keys) == len(set(keys.values())) == 4  # each client's own, until the run is over
    assert not list((tmp_path / "sites").rglob("noise.key"))
    again = over(Town(data_of(), tmp_path / "others"), tmp_path / "again", algorithm="fedrep", **SETTINGS, **kind)
    assert again.summary["weights_sha256"] != run.summary["weights_sha256"]


@pytest.mark.parametrize("kind", [LOCAL, CENTRAL, {"dp": "example", "dp_clip": 0.5, "dp_epsilon": 8.0}])
def test_nobody_is_told_a_digest_of_what_a_client_fits_without_noise(kind: dict[str, Any], tmp_path: Path) -> None:
    """A guess of the client's data, trained by the known seed, would have the same one."""
    run = over(Town(data_of(), tmp_path / "sites"), tmp_path / "run", algorithm="fedrep", **SETTINGS, **kind)
    shared_alone = hashlib.sha256(f"shared {run.trained.weights_digest}\n".encode()).hexdigest()
    assert run.summary["weights_sha256"] == shared_alone
    here = train("fedrep", data_of(), **SETTINGS, **kind)
    shared_alone = hashlib.sha256(f"shared {here.trained.weights_digest}\n".encode()).hexdigest()
    assert here.summary["weights_sha256"] == shared_alone
    setups = [prepared("fedrep", data_of(), **SETTINGS, **one) for one in (kind, {})]
    with pytest.raises(UpdateError, match="asks for a digest of the client's own tensors, which a run with --dp tells"):
        check_question(setups[0], Digest(round=1, last=1), cast(Any, None))
    check_question(setups[1], Digest(round=1, last=1), cast(Any, None))

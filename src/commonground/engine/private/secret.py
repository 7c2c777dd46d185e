"""The secret behind a run's secret noise, kept as long as a round may be repeated."""

from __future__ import annotations

import os
from pathlib import Path

from commonground.access import reason
from commonground.engine.state.files import sync_folder
from commonground.engine.state.folder import ASKED_ROUNDS
from commonground.errors import RunError
from commonground.privacy import SecretNoise
from commonground.privacy.noise import SECRET_BYTES

__all__ = ["ASKED", "forget_lost_run", "kept_secret", "remove_secret"]

ASKED = "asked.json"

_FILE = "noise.key"


def kept_secret(folder: Path) -> SecretNoise:
    """The secret noise of this folder: the one that is kept there, or a new one that is kept from now on.

    Only the folder's owner may read the file; whoever has it can subtract the noise.

    Raises:
        RunError: the file cannot be written, or is not what was written.
    """
    path = folder / _FILE
    try:
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            _write(path, os.urandom(SECRET_BYTES))
        secret = path.read_bytes()
    except OSError as error:
        raise RunError(f"the secret of the noise, '{path}', cannot be kept: {reason(error, path)}") from None
    if len(secret) != SECRET_BYTES:
        raise RunError(f"the secret of the noise, '{path}', is damaged: it has {len(secret)} bytes, not {SECRET_BYTES}")
    return SecretNoise(secret)


def remove_secret(folder: Path) -> None:
    """Forget the secret, and those of clients that are kept in the run's folder, once no round will be repeated."""
    for path in (folder / _FILE, *folder.glob(f"clients/*/{_FILE}"), *folder.glob(f"finetuning/clients/*/{_FILE}")):
        path.unlink(missing_ok=True)


def forget_lost_run(folder: Path) -> None:
    """Drop the secrets and the answers of a run that was lost in its first round, before anything left it: another one
    begins in its folder.
    """
    for client in folder.glob("clients/client-*"):
        for path in (client / ASKED, *client.glob("answer-*.safetensors")):
            path.unlink(missing_ok=True)
    (folder / ASKED_ROUNDS).unlink(missing_ok=True)
    remove_secret(folder)


def _write(path: Path, secret: bytes) -> None:
    part = path.with_name(f".{path.name}.part")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(descriptor, secret)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    part.replace(path)
    sync_folder(path.parent)

"""The Ray that engines of this process work with: a local one that ends with the last of them, or a cluster.

Nothing here is imported before a run wants Ray, which the extra ``commonground[ray]`` installs.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

from commonground.errors import ConfigError
from commonground.extras import pip_install

__all__ = ["Session", "import_ray"]

POLL = 0.1  # seconds between two looks
PROBE_SECONDS = 3.0  # in which an address must take a connection
STORE_BYTES = 1 << 30  # of a local Ray's object store: what does not fit goes to its folder

# Ray sends usage figures to its makers unless told not to; its metrics have no reader here; a note on accelerators that
# it would print is about those of other actors.
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DISABLE_METRICS_COLLECTION": "1",
}
# Lines of other processes that Ray would print here, by a pattern that it reads when it is imported: all of them.
_SILENT = {"RAY_DEDUP_LOGS_SKIP_REGEX": "."}
# What a client of HTTP/2, which Ray speaks, says first, with no settings; and the kind of what a server says first.
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_SETTINGS = bytes([4])
# What keeps Ray on the loopback interface, on every system.
_LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"


def import_ray() -> ModuleType:
    """Ray itself.

    Raises:
        ConfigError: it is not installed.
    """
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    try:
        with warnings.catch_warnings(), _environment(_SILENT):
            warnings.simplefilter("ignore")
            import ray
    except ImportError:
        raise ConfigError(f"the engine 'ray' needs Ray, which is not installed: {pip_install('ray')}") from None
    return ray


class Session:
    """A connection to Ray, shared by the engines of this process.

    A program that called ``ray.init`` itself keeps its Ray, and it is not ended here. Otherwise the last engine that
    leaves ends what the first one began: a local Ray with all its processes and files, or the connection to a cluster.

    Attributes:
        holder: the engine that has workers at the moment; another one takes their places.
    """

    current: Session | None = None

    def __init__(self, address: str | None, cpus: int) -> None:
        self.ray: Any = import_ray()
        self.address = address
        self.holder: Any = None
        self._users = 0
        self._folder: str | None = None
        self._ends = not self.ray.is_initialized()
        if self._ends:
            with _as_before():
                self._begin(address, cpus)

    @classmethod
    def join(cls, address: str | None, cpus: int) -> Session:
        """The session of this process, begun if there is none.

        Args:
            address: ``HOST:PORT`` of a cluster, ``auto`` for the one of this machine; None for a local Ray.
            cpus: of a local Ray.

        Raises:
            ConfigError: Ray is not installed, or nothing answers there.
        """
        if cls.current is None:
            cls.current = cls(address, cpus)
        cls.current._users += 1
        return cls.current

    def leave(self) -> None:
        """One engine less; the last one ends what the first began."""
        self._users -= 1
        if self._users:
            return
        Session.current = None
        if self._ends:
            self._end()

    @property
    def name(self) -> str:
        """What messages call it."""
        return "the local Ray" if self.address is None else f"the Ray cluster at {self.address}"

    def cpus(self) -> int:
        """All CPUs there are."""
        return int(self.ray.cluster_resources().get("CPU", 0))

    def free_cpus(self, wanted: int, seconds: float, check_stop: Callable[[], None] = lambda: None) -> int:
        """CPUs that nobody has reserved: as soon as there are as many as wanted, else after so many seconds."""
        end = time.monotonic() + seconds
        while True:
            free = int(self.ray.available_resources().get("CPU", 0))
            if free >= wanted or time.monotonic() > end:
                return free
            check_stop()
            time.sleep(POLL)

    def _begin(self, address: str | None, cpus: int) -> None:
        common: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.CRITICAL}
        if address is None:
            self._folder = tempfile.mkdtemp(prefix="cg-ray-", dir=_short_folder())
            try:
                with _loopback():
                    self.ray.init(
                        address="local", num_cpus=cpus, num_gpus=0, include_dashboard=False,
                        object_store_memory=STORE_BYTES, _node_ip_address="127.0.0.1", _temp_dir=self._folder, **common,
                    )  # fmt: skip
            except BaseException:
                self._end()
                raise
            return
        host = _probe(address)
        try:
            # A cluster on the loopback interface knows its nodes by that address, and so has this process to.
            with _loopback() if host.startswith("127.") or host == "localhost" else contextlib.nullcontext():
                self.ray.init(address=address, **common)
        except Exception as error:  # where there is no cluster, or one of another version, it is of many kinds
            if address == "auto" and isinstance(error, ConnectionError):
                raise ConfigError(
                    "no Ray runs on this machine that --ray-address auto could join; `ray start --head` starts one"
                ) from None
            said = " ".join(str(error).split())[:200].rstrip(".")
            raise ConfigError(f"no Ray cluster can be joined at --ray-address {address}: {said}") from None

    def _end(self) -> None:
        with _as_before():
            self.ray.shutdown()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def _short_folder() -> str | None:
    """Where Ray's files go: names of sockets end at 107 bytes, and those below its folder take over 60 of them."""
    return None if len(tempfile.gettempdir()) <= 30 else "/tmp"


def _probe(address: str) -> str:
    """Refuse at once an address where nothing or something else answers: Ray itself would try for ever; the host."""
    if address == "auto":
        return ""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=PROBE_SECONDS) as connection:
            connection.sendall(_HELLO)
            answer = connection.recv(4)
    except OSError as error:
        raise ConfigError(
            f"nothing answers at --ray-address {address} ({error.strerror or error}); `ray start --head` prints the "
            "address of a cluster"
        ) from None
    if answer[3:] != _SETTINGS:
        raise ConfigError(
            f"what answers at --ray-address {address} is no Ray cluster; `ray start --head` prints the address of one"
        )
    return host


@contextlib.contextmanager
def _loopback() -> Iterator[None]:
    """While open, a Ray that starts listens on the loopback interface alone.

    Ray has a switch for it, which it reads when it is imported, and processes that it starts read it as well.
    """
    from ray._private import ray_constants

    switch, before = "ENABLE_RAY_CLUSTER", ray_constants.ENABLE_RAY_CLUSTER
    setattr(ray_constants, switch, False)
    try:
        with _environment({_LOOPBACK: "0"}):
            yield
    finally:
        setattr(ray_constants, switch, before)


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """While open, these variables are set."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _as_before() -> Iterator[None]:
    """Give back what Ray sets in the whole process: signal handlers, the hook for exceptions; and hold its warnings."""
    main = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)} if main else {}
    hook = sys.excepthook
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        sys.excepthook = hook
        for number, handler in handlers.items():
            signal.signal(number, handler)

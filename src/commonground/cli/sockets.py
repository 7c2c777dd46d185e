"""Where a server of a command listens."""

from __future__ import annotations

from socket import AF_INET, AF_INET6, create_server, has_dualstack_ipv6, socket

from commonground.errors import ConfigError

__all__ = ["listening"]


def listening(host: str, port: int) -> socket:
    """A socket that listens where ``--host`` and ``--port`` say.

    Raises:
        ConfigError: nothing can, as where somebody else does.
    """
    try:
        family = AF_INET6 if ":" in host else AF_INET
        everywhere = host == "::" and has_dualstack_ipv6()  # of IPv4 as well
        return create_server((host, port), family=family, dualstack_ipv6=everywhere)
    except OSError as error:
        why = str(error.strerror).partition(" (while ")[0]  # Python adds the address
        raise ConfigError(f"nothing can listen on --host {host} --port {port}: {why}") from None

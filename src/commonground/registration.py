"""Names of what enters a register by being defined: a user's own never takes the place of what the package has."""

from __future__ import annotations

from commonground.errors import ConfigError

__all__ = ["check_name"]


def check_name(what: str, new: type, there: type | None) -> None:
    """Refuse a user's class under a name that the package's own has; their own they may define again.

    Args:
        what: it is, for people.
        new: the class.
        there: the one that has the name so far, if any.

    Raises:
        ConfigError: the name is taken.
    """
    if there is not None and _is_ours(there) and not _is_ours(new):
        raise ConfigError(
            f"the {what} {new.__name__} has the name '{getattr(new, 'name', '')}', which is that of commonground's "
            f"{there.__name__}; give it one of its own"
        )


def _is_ours(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == "commonground"

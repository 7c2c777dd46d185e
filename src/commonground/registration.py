"""Names of what enters a register by being defined: a user's own never takes the place of what the package has."""

from __future__ import annotations

from commonground.errors import ConfigError

__all__ = ["check_name", "is_ours"]


def check_name(what: str, new: type, there: type | None) -> None:
    """Refuse a user's class under a name that the package's own has, or that cannot be written in a command; their own
    they may define again.

    Args:
        what: it is, for people.
        new: the class.
        there: the one that has the name so far, if any.

    Raises:
        ConfigError: the name is taken, or no name.
    """
    name = getattr(new, "name", None)
    if not isinstance(name, str) or not name.strip() or any(c in name for c in ",:=\n"):
        raise ConfigError(
            f"the {what} {new.__name__} has the name {name!r}; a name is text without commas, colons, equals signs "
            "and line breaks"
        )
    if there is not None and is_ours(there) and not is_ours(new):
        raise ConfigError(
            f"the {what} {new.__name__} has the name '{name}', which is that of commonground's "
            f"{there.__name__}; give it one of its own"
        )


def is_ours(cls: type) -> bool:
    """Whether a class is the package's own."""
    return cls.__module__.partition(".")[0] == "commonground"

"""A run's models as a service: every client asks its own, new ones are added from posted examples."""

from commonground.engine.state.tokens import Tokens
from commonground.serve.app import make_app
from commonground.serve.models import RunModels

__all__ = ["RunModels", "Tokens", "make_app"]

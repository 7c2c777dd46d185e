"""A run's models as a service: every client asks its own, new ones are added from posted examples."""

from commonground.serve.app import make_app
from commonground.serve.models import RunModels
from commonground.serve.tokens import Tokens

__all__ = ["RunModels", "Tokens", "make_app"]

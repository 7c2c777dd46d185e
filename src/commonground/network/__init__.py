"""The same algorithms between real machines: clients on their own hosts, a server that sees no sample.

What is carried is Flower's (the extra ``network``); only :mod:`.grid`, :mod:`.node` and :mod:`.superlink` know of it.
"""

from __future__ import annotations

from commonground.network.answering import Answering
from commonground.network.engine import NetworkEngine
from commonground.network.federation import train_over
from commonground.network.gathering import gather
from commonground.network.limits import Limits
from commonground.network.members import Members

__all__ = ["Answering", "Limits", "Members", "NetworkEngine", "gather", "train_over"]

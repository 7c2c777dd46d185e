"""Rounds of other federated-learning simulators beside ours: one machine, the same work, timed in turns.

A file per peer drives the peer's own classes (``fedrep_authors.py``, ``pfllib.py``, …); none of their code is here, and
whoever measures names the checkout or has the package installed. ``ours.py`` is this library by the same protocol.
``python -m benchmarks.peers --help``.
"""

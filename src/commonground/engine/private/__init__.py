"""Differential privacy in a run: its settings, the client's and the server's side, and what is told of it."""

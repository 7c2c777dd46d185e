"""The engines: ways to carry out the rounds of many clients, all with the same numbers."""

"""What holds for all tests."""

from __future__ import annotations

import signal

# A shell lets what runs in its background ignore Ctrl-C, and so would every process that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

"""For every test: signals as in a terminal."""

from __future__ import annotations

import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell without job control starts its background jobs with SIGINT ignored, and children inherit that: no test
    # could press Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)

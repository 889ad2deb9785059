"""The clock that measures deadlines."""

import time


def now() -> float:
    """Seconds on a clock that never jumps, and that under Linux goes on while the machine is
    suspended."""
    boottime = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boottime is None else time.clock_gettime(boottime)

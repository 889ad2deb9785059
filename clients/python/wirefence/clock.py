"""The clock that deadlines are measured on."""

import time

if hasattr(time, "CLOCK_BOOTTIME"):

    def now() -> float:
        """Seconds on a clock that never jumps, and that goes on while the machine is
        suspended."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

else:

    def now() -> float:
        """Seconds on a clock that never jumps."""
        return time.monotonic()

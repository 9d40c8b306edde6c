"""Python imports this first, in every process that has this folder on its PYTHONPATH, and is told a wrong time.

QO_CLOCK_OFFSET is wrong for one process and those it starts, as by a preloaded library. QO_CLOCK_STEP names a file: by
so many seconds the machine's own clock is set, for all, while they run.
"""

import os
import time
from pathlib import Path

real, offset, step = time.time, float(os.environ["QO_CLOCK_OFFSET"]), Path(os.environ["QO_CLOCK_STEP"])


def machine_clock() -> float:
    return real() + float(step.read_text())


time.time = lambda: machine_clock() + offset

from qo import clock  # noqa: E402 - it looks at the clock when it is imported

clock.kernel_clock = machine_clock

"""`qo` in a process that is told a wrong time: `python -m tests.torture.shifted -600 worker ...`."""

import sys
import time

if __name__ == "__main__":
    real, offset = time.time, float(sys.argv.pop(1))
    time.time = lambda: real() + offset  # before qo is imported, as a preloaded library would do
    from qo.cli import main

    main()

"""Exit codes by which a worker process tells its supervisor how it ended."""

FINISHED = 99  # drained, or stopped as told: 0 could be a handler's `os._exit(0)`
DISMISSED = 98  # asked to drain: nobody is to take its place
BROKEN = 97  # a handler closed the process's descriptors
CANCELLED = 96  # a handler cancelled the worker's own work
OUTDATED = 95  # a newer qo has upgraded the store: this build is refused from now on, in every process
INTERRUPTED = 130  # a second signal
HOPELESS = 2  # a target or option is wrong: starting it again would not help
EXIT_STUCK = 6  # the worker's loop does not turn any more
EXIT_STORAGE = 5  # the store cannot be used

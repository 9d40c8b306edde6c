"""Exit codes of worker processes, from which the supervisor learns how they ended."""

FINISHED = 99  # drained or stopped; not 0, because a handler could call `os._exit(0)`
DRAINED = 98  # drained on request: the supervisor starts no replacement
BROKEN = 97  # a handler closed the process's file descriptors
CANCELLED = 96  # a handler cancelled the worker's own work
OUTDATED = 95  # a newer version of qo has upgraded the store, which refuses this version from now on
INTERRUPTED = 130  # a second signal
INVALID = 2  # a target or option is wrong, so a restart would not help
EXIT_STUCK = 6  # the worker's event loop is blocked
EXIT_STORAGE = 5  # the store cannot be used

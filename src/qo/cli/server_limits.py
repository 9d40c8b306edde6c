"""What `qo serve` was told about the costs of its clients, within what the system allows."""

import logging
from typing import Any

from msgspec.structs import replace

from qo.web.http.settings import MEBIBYTE, ServerLimits

log = logging.getLogger("qo.web")
_SPARE_DESCRIPTORS = 128  # for the store, the log and everything else that is not a connection of a caller


def limits_of(given: dict[str, Any]) -> ServerLimits:
    return ServerLimits(
        max_connections=given["max_connections"],
        max_header_size=given["max_header_size"],
        header_timeout=given["header_timeout"],
        idle_timeout=given["idle_timeout"],
        request_timeout=given["request_timeout"],
        max_upload_memory=given["max_upload_memory"] * MEBIBYTE,
        max_unsent_memory=given["max_unsent_memory"] * MEBIBYTE,
    )


def within_descriptors(limits: ServerLimits) -> ServerLimits:
    """Without a descriptor to spare nobody could connect, and the store could not open its files."""
    try:
        import resource  # noqa: PLC0415 - not on Windows
    except ImportError:
        return limits
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = limits.max_connections + _SPARE_DESCRIPTORS
    if soft < needed and soft != resource.RLIM_INFINITY:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        if soft < needed:
            fitting = max(1, soft - _SPARE_DESCRIPTORS)
            log.warning("%d connections at most: this process may open %d files (ulimit -n)", fitting, soft)
            return replace(limits, max_connections=fitting)
    return limits

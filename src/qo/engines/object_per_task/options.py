"""Options of the layout."""

from enum import StrEnum

from msgspec import Struct


class IndexMode(StrEnum):
    INDEX_ONLY = "index-only"  # claims use only the index
    HYBRID = "hybrid"  # also reads some tasks from time to time, to find those that the index lacks
    LOG_SCAN = "log-scan"  # claims read the tasks themselves: slow, for a damaged index


class TasksOptions(Struct, frozen=True, kw_only=True):
    index_mode: IndexMode = IndexMode.HYBRID
    ready_page_size: int = 1000  # entries read at a time; a store lists up to a thousand per request
    log_scan_page_size: int = 50  # tasks read by one scan
    scan_interval: float = 3600.0  # seconds between scans
    promotion_interval: float = 10.0  # seconds between reads of promoted tasks in a deep queue
    shards: tuple[str, ...] = ()  # claims take only ids that start with one of these digits; empty: all

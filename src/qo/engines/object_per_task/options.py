"""How the layout reads its indexes: numbers only."""

from enum import StrEnum

from msgspec import Struct


class IndexMode(StrEnum):
    INDEX_ONLY = "index-only"  # claims trust the index
    HYBRID = "hybrid"  # the same, and once in a while an idle engine looks for tasks the index does not know
    LOG_SCAN = "log-scan"  # claims read the tasks themselves: slow, for when the index is not to be trusted


class TasksOptions(Struct, frozen=True, kw_only=True):
    index_mode: IndexMode = IndexMode.HYBRID
    ready_page_size: int = 1000  # entries read at a time; a store answers up to a thousand in one request
    log_scan_page_size: int = 50  # tasks read by one look behind the index
    scan_interval: float = 3600.0  # seconds between two such looks
    promotion_interval: float = 10.0  # seconds between two looks for promoted tasks in a deep queue
    shards: tuple[str, ...] = ()  # claims take only ids that begin with one of these digits; empty: all

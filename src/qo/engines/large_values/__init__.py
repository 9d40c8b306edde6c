"""Large payloads and results of any bucket layout, stored next to the tasks."""

from qo.engines.large_values.blobs import MIN_ORPHAN_AGE
from qo.engines.large_values.engine import DEFAULT_PAYLOAD_LIMIT, LargeValuesEngine

__all__ = ["DEFAULT_PAYLOAD_LIMIT", "MIN_ORPHAN_AGE", "LargeValuesEngine"]

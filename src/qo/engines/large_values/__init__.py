"""Large payloads and results of any bucket layout, stored beside the tasks."""

from qo.engines.large_values.engine import DEFAULT_PAYLOAD_LIMIT, LargeValuesEngine
from qo.engines.large_values.orphans import MIN_ORPHAN_AGE

__all__ = ["DEFAULT_PAYLOAD_LIMIT", "MIN_ORPHAN_AGE", "LargeValuesEngine"]

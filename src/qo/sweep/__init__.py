"""What keeps a store in order while it runs: expired leases, and finished tasks that are old enough to leave."""

from qo.sweep.lease_expiry import LeaseExpiry, lease_length
from qo.sweep.retention import Retention

__all__ = ["LeaseExpiry", "Retention", "lease_length"]

"""Maintenance of a store: expired leases, and retention of finished tasks."""

from qo.sweep.lease_expiry import LeaseExpiry, lease_length
from qo.sweep.retention import Retention

__all__ = ["LeaseExpiry", "Retention", "lease_length"]

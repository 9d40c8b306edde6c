"""The audit trail: who did what to the queue, kept in the store."""

from qo.audit.archive import PREFIX, AuditPage, compact_audit, read_audit
from qo.audit.records import ActionOutcome, ActorKind, AuditRecord, new_record
from qo.audit.trail import AuditTrail, cli_user

__all__ = [
    "PREFIX",
    "ActionOutcome",
    "ActorKind",
    "AuditPage",
    "AuditRecord",
    "AuditTrail",
    "cli_user",
    "compact_audit",
    "new_record",
    "read_audit",
]

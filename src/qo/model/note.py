"""Notes: small named documents with compare-and-set. Worker registrations, switches, limits, leadership."""

from typing import Final, NamedTuple

NEW: Final = "new"  # as `expected`: there must be nothing under this name yet
ANY: Final = "any"  # as `expected`: whatever is there is replaced

# Notes below this name grant rights or record what was done: tokens, the audit trail. A store with rights of its own (a
# bucket's policies, GRANTs, ACLs) keeps them where only an administrator's credentials reach.
ADMIN_NOTES: Final = "admin/"
AUDIT_NOTES: Final = "audit/"  # new records of the audit trail: added by everyone who acts, read by administrators

# A note whose stored form is damaged is handed out as DAMAGED and the stored bytes: it can be kept and written over,
# and nobody takes it for a document, because no JSON text begins with this byte.
DAMAGED: Final = b"\xff"


class Note(NamedTuple):
    name: str
    data: bytes
    version: str

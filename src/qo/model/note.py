"""Notes: small named documents with compare-and-set writes, such as worker registrations and controls."""

from typing import Final, NamedTuple

NEW: Final = "new"  # as `expected`: the note must not exist
ANY: Final = "any"  # as `expected`: replace any version

# Notes with this prefix grant rights or record actions: tokens and the audit trail. Where the store has access control
# (bucket policies, GRANTs, ACLs), only an administrator's credentials can read and write them.
ADMIN_NOTES: Final = "admin/"
AUDIT_NOTES: Final = "audit/"  # new records of the audit trail: every role may add them, administrators read them

# A note whose stored form is damaged is returned as DAMAGED followed by the stored bytes, so that it can be kept and
# replaced. No JSON text starts with this byte, so it is not mistaken for a document.
DAMAGED: Final = b"\xff"


class Note(NamedTuple):
    name: str
    data: bytes
    version: str

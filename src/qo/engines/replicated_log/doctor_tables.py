"""What `qo doctor` verifies in the tables of a replica: the counts, the segments, and equality with another replica."""

import hashlib

import apsw

from qo.engines.replicated_log.cold_store import ColdStore, DamagedSegment
from qo.engines.replicated_log.replica import Replica
from qo.engines.replicated_log.replica_file import ReplicaFile
from qo.engines.replicated_log.schema_steps import replicated_tables
from qo.errors import NewerFormat
from qo.model import plural
from qo.reports import Finding
from qo.sqlite_tables.patchsets import RECORDED, PatchsetRefused
from qo.sqlite_tables.rows import DamageFound
from qo.sqlite_tables.segment_drafts import segment_problem
from qo.sqlite_tables.segments import ColdSegment
from qo.sqlite_tables.statements import SQL


def compare_counts(name: str, replica: Replica) -> Finding:
    wrong = replica.choose(lambda db: db.execute(SQL["wrong_counts_of_log"]).get)
    if wrong:
        problem = f"{plural(wrong, 'wrong count')} of tasks; stop all workers and restore an older version of the queue"
        return Finding(name, False, problem)
    return Finding(name, True, "the counts agree with the tasks")


async def examine_segment(store: ColdStore, replica: Replica, segment: ColdSegment) -> str:
    """The problem with a segment, or an empty text."""
    try:
        body = await store.read(segment)
        return replica.choose(lambda db: segment_problem(db, segment, body))
    except (DamagedSegment, PatchsetRefused, NewerFormat) as error:
        return str(error)
    except DamageFound as error:
        return f"tasks in it are damaged: {error}"


def digest_of(replica: Replica) -> str:
    """A digest of the replicated rows, which is equal for equal tables."""
    file = ReplicaFile.create(replica.size)
    try:
        replica.copy_to(file.path)
        db = apsw.Connection(str(file.path))
        try:
            return _digest_rows(db)
        finally:
            db.close()
    finally:
        file.remove()


def _digest_rows(db: apsw.Connection) -> str:
    digest = hashlib.sha256()
    existing = replicated_tables(db)  # an older build has written others
    for table in (name for name in RECORDED if name in existing):
        columns = db.execute("SELECT name FROM pragma_table_info(?) WHERE pk ORDER BY pk", (table,))
        key = ", ".join(name for (name,) in columns)
        for row in db.execute(f"SELECT * FROM {table} ORDER BY {key}"):  # noqa: S608 - our own names
            digest.update(repr(row).encode())
    return digest.hexdigest()

"""The layout `log`: SQLite replicas that follow a create-only log of patchsets in a bucket.

| subject | modules |
|---|---|
| the port, and finding or creating a log | engine, log_options, log_meta (the object that names it, and its upgrade) |
| one shard | log_shard (the port), shard_access (its parts), shard_calls (needs of cold segments), record_batches |
| several shards | sharded_log, shard_claims, claim_shares, shard_owners |
| the replica | replica, replica_file, replica_tables, schema_steps, live_replica (loads it), runner (threads) |
| commits | commits (a batch becomes the next record), writer_turns, tail_proof (is the end known?) |
| records of others | catch_up, loader (from an image), shared_runs |
| objects | keys (names), frame, record_store, merged_records, images, checkpoint |
| maintenance | log_maintenance, compaction, garbage, log_damage, doctor, doctor_tables |
| producers | inbox_choice, submissions (the stream of a producer) |
| the inbox | shard_inbox (when), submission_inbox (what waits), submission_batch (in a transaction) |
| cold segments | cold_segments (moves), cold_reads, cold_store |

docs/log-format.md describes the objects. Decisions 41, 42, 43 and 51 say why.
"""

from qo.engines.replicated_log.engine import ReplicatedLogEngine
from qo.engines.replicated_log.log_options import LogOptions, SubmitMode

__all__ = ["LogOptions", "ReplicatedLogEngine", "SubmitMode"]

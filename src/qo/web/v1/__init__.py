"""`/api/v1`, as `specs/priority-queue.md` has it."""

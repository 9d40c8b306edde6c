"""`/api/tasks`, as `specs/task-queue-spec.md` §5.1 has it."""

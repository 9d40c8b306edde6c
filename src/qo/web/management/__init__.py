"""`/api/tasks`: the management dialect, as docs/http.md describes it."""

"""`/api/v1`: tasks with three priority levels, described in docs/http.md."""

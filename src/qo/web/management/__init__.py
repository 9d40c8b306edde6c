"""`/api/tasks`: the management API, described in docs/http.md."""

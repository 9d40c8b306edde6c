"""`/api/v1`: tasks with three levels of priority, as docs/http.md describes it."""

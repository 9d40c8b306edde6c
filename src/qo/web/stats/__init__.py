"""Statistics and samples of the store, shared by all requests."""

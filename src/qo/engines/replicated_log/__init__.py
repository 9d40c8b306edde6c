"""The layout `log`: SQLite replicas that follow a create-only log of patchsets in a bucket."""

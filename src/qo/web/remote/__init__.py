"""The APIs for workers: the engine port over msgpack, and the worker protocol over JSON."""

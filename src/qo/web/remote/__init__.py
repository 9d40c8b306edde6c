"""What workers ask of a server: the engine port over msgpack, and the worker protocol over JSON."""

"""Layout `sqlite`."""

"""Tasks in SQLite's tables: what is written and read on a connection, wherever the database lies.

A room of its own because two engines keep tasks this way: one in a file, one in an object of a bucket.
"""

"""Tasks in SQLite tables: reading and writing on one connection.

Two engines use this package: one keeps the database in a file, the other in an object of a bucket.
"""

"""Runs handlers: slots in rank order, an executor for each kind, and one attempt with its outcome.

It knows no store: a worker claims the tasks that run here, and settles their outcomes.
"""

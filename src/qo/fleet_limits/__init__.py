"""Limits of the whole fleet: how many tasks run at once, and how many start within a time.

`rules` says which limits a task is under, `limit_state` decides about slots and starts (pure), `limit_gate` applies
them with one note for each limit, `fair_turns` shares a worker between groups, and `limit_status` describes them.
"""

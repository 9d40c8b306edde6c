"""Limits across all workers: how many tasks run at a time, and how many start within a period.

`rules` determines which limits apply to a task, `limit_state` decides about slots and starts (pure), `limit_gate`
applies them with one note for each limit, `fair_turns` shares a worker between groups, and `limit_status` describes
them.
"""

"""Schedules: tasks that are submitted at fire times. Pure computation of fire times and decisions, and their notes."""

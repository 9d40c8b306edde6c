"""Figures about the queue that requests are answered from."""

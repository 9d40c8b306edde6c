"""The decorator of the tasks framework that is installed."""

try:
    from django.tasks import task
except ImportError:
    from django_tasks import task

__all__ = ["task"]

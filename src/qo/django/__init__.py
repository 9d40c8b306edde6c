"""A backend for the tasks of Django 6, or of django-tasks with earlier versions (docs/django.md)."""

from typing import TYPE_CHECKING

from qo.lazy_names import lazy_names

if TYPE_CHECKING:
    from qo.django.backend import QoBackend
else:  # Django imports this package to read its app, before models can be imported
    __getattr__ = lazy_names(__name__, {"qo.django.backend": "QoBackend"})

__all__ = ["QoBackend"]

"""The Django app that adds `manage.py qo_worker`. Its label is not `django`, which would look like Django's own."""

from django.apps import AppConfig


class QoConfig(AppConfig):  # type: ignore[misc]
    name = "qo.django"
    label = "qo"
    verbose_name = "qo"

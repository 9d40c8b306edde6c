"""A Django project whose tasks are kept in a qo store."""

import os

SECRET_KEY = "not a secret"
USE_TZ = True
INSTALLED_APPS = ["qo.django.apps.QoConfig", "tests.django_project.shop"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
TASKS = {
    "default": {
        "BACKEND": "qo.django.QoBackend",
        "QUEUES": ["default", "mail"],
        "OPTIONS": {"url": os.environ.get("SHOP_URL", "sqlite:////nowhere/qo.db"), "max_retries": 1},
    }
}

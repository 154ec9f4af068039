"""Composition root: settings to a Celery application."""

"""Composition root: settings to a Litestar application."""

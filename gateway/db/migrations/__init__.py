"""Alembic's folder: how the tables came to be, step by step; part of the wheel."""

"""The one error of the settings, and the words that its messages share."""

from collections.abc import Iterable
from difflib import get_close_matches


class SettingsError(Exception):
    """A setting is missing, unknown or wrong, or names what is not there; the message has its path and what to do."""


def meant(name: str, known: Iterable[str]) -> str:
    """`; did you mean gguf?`, where a known name is near; else nothing."""
    near = get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else ""

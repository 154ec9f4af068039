"""Scores prompts on the request path: how likely the small and the large model are to answer acceptably."""

from pathlib import Path
from typing import Self

import msgspec

from classifier import artefact
from classifier.features import read
from classifier.model import Model
from classifier.prompt import Prompt


class Difficulty(msgspec.Struct, frozen=True):
    """Calibrated chances, 0 to 1. `gain` is `large - small` and may be negative. `version` names the artefact."""

    small: float
    large: float
    gain: float
    version: str


class Scorer:
    """A loaded artefact. It has no state that changes, so one serves every request."""

    def __init__(self, model: Model, version: str) -> None:
        self._model = model
        self.version = version

    @classmethod
    def load(cls, path: Path | None = None) -> Self:
        """The artefact at `path`, else the one that ships. Raises ArtefactUnreadable with the reason."""
        loaded = artefact.load(path)
        return cls(loaded.model, loaded.manifest.version)

    def difficulty(self, prompt: Prompt) -> Difficulty:
        """Deterministic; the time is bounded because a prompt's text is."""
        small, large = self._model.probabilities(read(prompt.text))
        return Difficulty(small=small, large=large, gain=large - small, version=self.version)

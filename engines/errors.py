"""What can go wrong between a recipe and a running engine."""


class EngineError(Exception):
    """Every error of this package."""


class RecipeError(EngineError):
    """A recipe names an engine, a field or a value that does not exist; the message holds its path."""


class SourceError(EngineError):
    """Weights cannot be had: unknown name, no such file, failed download, wrong checksum."""


class GgufError(EngineError):
    """A file is not a GGUF file that this program can work on."""


class ArtefactDamaged(EngineError):
    """An artefact's file is not what its manifest says."""


class BuildFailed(EngineError):
    """A command of a build failed. `tail` holds the last lines it wrote."""

    def __init__(self, message: str, tail: tuple[str, ...] = ()) -> None:
        super().__init__("\n".join((message, *tail)))
        self.tail = tail


class BuildCancelled(EngineError):
    """The caller wanted the build no more; nothing of it is left but its log."""

"""What can go wrong with the classifier's files."""


class ClassifierError(Exception):
    """Base of the classifier's errors; the message says which file and why."""


class ArtefactUnreadable(ClassifierError):
    """The artefact is missing, cut short, changed, of another kind or of a newer format."""


class DataUnreadable(ClassifierError):
    """A file of labelled prompts or of pairs is not what it should be."""


class TooLittleData(ClassifierError):
    """There is no labelled row that may train."""

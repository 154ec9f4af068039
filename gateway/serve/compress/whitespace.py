"""White space that carries nothing: at the ends of lines, and more than two blank lines in a row."""

LINE_END = " \t\r"
LOOSE = (" \n", "\t\n", "\r\n", "\n\n\n\n")
MOST_LINES = 20_000  # a text with more is left alone: about 3 ms of work


def tidied(text: str) -> str:
    """The text without it. The same text comes back where there is none, or too many lines."""
    if not any(mark in text for mark in LOOSE) or text.count("\n") > MOST_LINES:
        return text
    text = "\n".join([line.rstrip(LINE_END) for line in text.split("\n")])
    for run in (64, 4):  # a long run shrinks by halves and more, so a few rounds do
        while "\n" * run in text:
            text = text.replace("\n" * run, "\n\n\n")
    return text

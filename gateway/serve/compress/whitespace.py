"""White space that carries nothing: at the ends of lines, and more than two blank lines in a row."""

LINE_END = " \t\r"


def tidied(text: str) -> str:
    """The text without it; the same text comes back where there is none."""
    if not _loose(text):
        return text
    text = "\n".join([line.rstrip(LINE_END) for line in text.split("\n")])
    for run in (64, 4):  # a long run shrinks by halves and more, so a few rounds do
        while "\n" * run in text:
            text = text.replace("\n" * run, "\n\n\n")
    return text


def _loose(text: str) -> bool:
    """One character is found much faster than two, so the rare ones are looked for first."""
    return " \n" in text or "\n\n\n\n" in text or ("\t" in text and "\t\n" in text) or ("\r" in text and "\r\n" in text)

"""Blocks of text that the conversation holds already: a short reference to the first stands in for the next."""

SHORTEST = 200  # characters of a block worth a reference
HEAD = 60  # characters of its first line that the reference quotes


class Repeats:
    """The blocks one conversation has shown so far, in order. A block is what stands between two blank lines.

    A reference quotes how its block begins, so two long blocks that begin alike are never referred to.
    """

    __slots__ = ("_heads", "_seen")

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._heads: dict[str, str | None] = {}  # how a block begins -> the block; None: more than one does

    def without(self, text: str) -> str:
        """The text, each block that came before replaced; the others are remembered."""
        if len(text) < SHORTEST:
            return text
        return "\n\n".join([block if len(block) < SHORTEST else self._block(block) for block in text.split("\n\n")])

    def _block(self, block: str) -> str:
        core = block.strip("\n")
        if len(core) < SHORTEST:
            return block
        head = core[:HEAD].partition("\n")[0]
        if core not in self._seen:
            self._seen.add(core)
            self._heads[head] = None if head in self._heads else core
            return block
        if self._heads[head] is None:
            return block
        return block.replace(core, f"[same as above: {head}...]")

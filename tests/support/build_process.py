"""A build with make-believe commands, as a process that can be killed: `python -m tests.support.build_process DATA SCRIPT`.

SCRIPT is run by sh in the staging folder; `$OUT` is the file it must make.
"""

import sys
from pathlib import Path

from engines.build import build
from engines.llamacpp.recipe import LlamaCppRecipe
from engines.recipe import BuildPlan, Command
from engines.registry import AnyRecipe

RECIPE = LlamaCppRecipe(source="pretend.gguf")


def planner(*scripts: str, **fields: object):
    """Plans a build of shell scripts. Their text is a constant of the tests."""

    def plan(recipe: AnyRecipe, staging: Path, sources: Path) -> BuildPlan:
        head = f"cd '{staging}'; OUT='{staging / 'model.gguf'}'\n"
        commands = tuple(Command(f"step{index}", ("/bin/sh", "-c", head + text)) for index, text in enumerate(scripts))
        return BuildPlan(recipe.digest, commands, "model.gguf", **fields)

    return plan


if __name__ == "__main__":
    data = Path(sys.argv[1])
    build(
        RECIPE,
        data,
        on_progress=lambda share, text: print(f"{share:.2f} {text}", flush=True),
        cancelled=lambda: False,
        log=data / "build.log",
        planner=planner(sys.argv[2]),
    )

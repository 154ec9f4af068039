"""What a llama.cpp build is made from: weights, a number format, experts."""

from typing import Annotated, Literal

import msgspec

from engines.recipe import Recipe

Quantization = Literal["as is", "q4_0", "q4_1", "q8_0", "f16"]


class LlamaCppRecipe(Recipe, frozen=True, kw_only=True, tag="llamacpp"):
    """`source` is the name of known weights (engines.llamacpp.sources) or the path of a GGUF file."""

    quantization: Quantization = "as is"
    experts: Annotated[int, msgspec.Meta(ge=2, le=256)] | None = None  # None: dense, as the source
    experts_used: Annotated[int, msgspec.Meta(ge=1, le=256)] | None = None  # for each token; None: 2
    seed: int = 0  # of the router, where experts are made

    def __post_init__(self) -> None:
        if self.experts_used is not None and self.experts is None:
            raise ValueError("experts_used needs experts")
        if self.experts is not None and self.used > self.experts:
            raise ValueError(f"experts_used {self.used} is more than experts {self.experts}")

    @property
    def used(self) -> int:
        """Experts that work on a token. Without experts, 0."""
        return 0 if self.experts is None else (self.experts_used or 2)

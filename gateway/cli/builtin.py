"""The tree of settings that `turnout up` starts from: two chat pools of real models, one for embeddings, one alias."""

from typing import Any, Final

SOURCE: Final = "smollm2-135m-instruct"
CONTEXT: Final = 16384  # tokens, 4096 for each of four slots: 380 MB of KV cache at 23 kB a token
# Seconds of a slot: a gain that is told apart from noise sends a request to the large pool, unless it has to wait long.
QUALITY_WORTH: Final = 300


def builtin() -> dict[str, Any]:
    """Rates are those of one replica with one thread on a current CPU core, which is what either pool's slot costs.

    What describes a model here falls away where the user gives a pool another one (gateway.settings.load).
    """
    small = {"engine": "llamacpp", "source": SOURCE, "quantization": "q4_0"}
    return {
        "pools": {
            "small": {
                "recipe": small,
                "tier": "small",
                "context": CONTEXT,
                "threads": 1,
                "prefill_rate": 290,
                "decode_rate": 110,
                "cold_start": 2,
            },
            "large": {
                "recipe": {"engine": "llamacpp", "source": SOURCE, "experts": 8, "experts_used": 2},
                "tier": "large",
                "context": CONTEXT,
                "threads": 1,
                "prefill_rate": 77,
                "decode_rate": 42,
                "cold_start": 3,
            },
            "embed": {
                "recipe": small,
                "kind": "embed",
                "tier": "small",
                "context": CONTEXT // 2,
                "threads": 1,
                "prefill_rate": 290,
                "minimum": 0,
                "idle_seconds": 300,
                "cold_start": 2,
            },
        },
        "aliases": {"auto": {"pools": ["small", "large"], "quality_worth": QUALITY_WORTH}},
    }

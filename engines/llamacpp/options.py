"""The command line of our llama.cpp server, in llama-server's words."""

import argparse
from collections.abc import Mapping
from typing import Final

CACHE_TYPES: Final = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
NGRAM: Final = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache")
VARIABLE: Final = "TURNOUT_ENGINE_KEY"
POOLING: Final = ("mean", "cls", "last")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m engines.llamacpp.server", description="llama.cpp's HTTP server, from the xllamacpp wheel."
    )
    _model(parser)
    _serving(parser)
    _context(parser)
    _speculation(parser)
    return parser.parse_args(arguments)


def key_from(environ: Mapping[str, str]) -> list[str]:
    """The key that whoever starts the server gives it where no other user can read it."""
    key = environ.get(VARIABLE)
    return [key] if key else []


def _model(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("model")
    group.add_argument("-m", "--model", required=True, help="a GGUF file")
    group.add_argument("-a", "--alias", help="the name that /v1/models shows")
    group.add_argument("--embedding", "--embeddings", dest="embeddings", action="store_true", help="embed, not chat")
    group.add_argument("--pooling", choices=POOLING, default="mean", help="how --embeddings makes one vector of many")
    group.add_argument("--no-warmup", action="store_true")


def _serving(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("serving")
    group.add_argument("--host", default="127.0.0.1")
    group.add_argument("--port", type=int, default=8080, help="0: the system chooses, see the line it prints")
    group.add_argument("--api-key", action="append", default=[], help=f"default: what {VARIABLE} holds, if anything")
    group.add_argument("--metrics", action="store_true", help="/metrics answers")
    group.add_argument("-np", "--parallel", type=int, default=4, help="slots")
    group.add_argument("-t", "--threads", type=int, default=1)
    group.add_argument("--threads-http", type=int, default=-1)
    group.add_argument("--drain", type=float, default=0.0, help="seconds that running requests get at the end")
    group.add_argument("--watch-stdin", action="store_true", help="leave when standard input ends")
    group.add_argument("-v", "--verbosity", type=int, default=2, help="1 errors, 2 warnings, 3 more")


def _context(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("context and caches")
    group.add_argument("-c", "--ctx-size", type=int, default=8192, help="tokens in all, shared out over the slots")
    group.add_argument("-kvu", "--kv-unified", action="store_true", help="one KV pool that every slot may use whole")
    group.add_argument("-b", "--batch-size", type=int, default=2048)
    group.add_argument("-ub", "--ubatch-size", type=int, default=512)
    group.add_argument("-ctk", "--cache-type-k", choices=CACHE_TYPES, default="f16")
    group.add_argument(
        "-ctv", "--cache-type-v", choices=CACHE_TYPES, default="f16", help="below f16: needs -fa on|auto"
    )
    group.add_argument("-fa", "--flash-attn", choices=("on", "off", "auto"), default="auto")
    # llama-server's own default is 8192: several replicas would promise more memory than a machine has
    group.add_argument("-cram", "--cache-ram", type=int, default=64, help="MiB of host prompt cache")
    group.add_argument("--cache-reuse", type=int, default=0, help="smallest piece reused by KV shifting")
    group.add_argument("--context-shift", action="store_true", help="forget the oldest tokens where a slot is full")
    group.add_argument("--rope-scaling", choices=("none", "linear", "yarn"))
    group.add_argument("--rope-freq-scale", type=float, help="1/N stretches the context by N")
    group.add_argument("--yarn-orig-ctx", type=int)
    group.add_argument("--slot-save-path", help="folder for /slots/N?action=save|restore")


def _speculation(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("speculation (greedy texts then differ from request to request)")
    group.add_argument("--spec-type", choices=NGRAM, help="guesses from the text so far")
    group.add_argument("-md", "--model-draft", help="guesses from a smaller model")
    group.add_argument("--draft-max", type=int, default=8)

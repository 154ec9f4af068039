"""llama.cpp's own HTTP server, from the xllamacpp wheel: `python -m engines.llamacpp.server -m FILE --port 0`.

The options carry llama-server's names, so one plan can drive either program. Once the model is loaded and the port is
open it prints one line, `listening on http://HOST:PORT`; the log goes to standard error.

SIGTERM and SIGINT wait up to --drain seconds for running requests and leave with code 0; a second signal leaves at
once. With --watch-stdin the end of standard input means the same: a parent that is killed leaves no server behind.
"""

import argparse
import importlib
import json
import os
import select
import signal
import sys
import threading
import time
import urllib.request
from types import FrameType
from typing import Any, Final, NoReturn

from engines.errors import EngineError
from engines.llamacpp.options import key_from, parse

_POLL: Final = 0.05  # seconds between looks at busy slots


def load_engine() -> Any:
    """The xllamacpp module. Raises EngineError that names the extra to install."""
    try:
        return importlib.import_module("xllamacpp")
    except ImportError as error:
        raise EngineError(f"The llama.cpp engine is missing ({error}): .venv/bin/pip install -e '.[local]'") from error


def parameters(xl: Any, given: argparse.Namespace) -> Any:
    """The engine's CommonParams for our options."""
    made = xl.CommonParams()
    made.model.path = given.model
    if given.alias:
        made.model_alias = {given.alias}
    made.hostnames, made.port, made.api_keys = [given.host], given.port, given.api_key
    made.n_parallel, made.n_ctx, made.kv_unified = given.parallel, given.ctx_size, given.kv_unified
    made.cpuparams.n_threads = made.cpuparams_batch.n_threads = given.threads
    made.n_threads_http = given.threads_http
    made.n_batch, made.n_ubatch = given.batch_size, given.ubatch_size
    made.cache_type_k = getattr(xl.ggml_type, f"GGML_TYPE_{given.cache_type_k.upper()}")
    made.cache_type_v = getattr(xl.ggml_type, f"GGML_TYPE_{given.cache_type_v.upper()}")
    attention = {"on": "ENABLED", "off": "DISABLED", "auto": "AUTO"}[given.flash_attn]
    made.flash_attn_type = getattr(xl.llama_flash_attn_type, f"LLAMA_FLASH_ATTN_TYPE_{attention}")
    made.cache_ram_mib, made.n_cache_reuse = given.cache_ram, given.cache_reuse
    made.ctx_shift = given.context_shift
    made.fit_params = False  # no trial loads that shrink the context to the free memory
    made.endpoint_metrics, made.endpoint_slots, made.ui = given.metrics, True, False
    made.warmup, made.verbosity = not given.no_warmup, given.verbosity
    if given.slot_save_path:
        made.slot_save_path = given.slot_save_path.rstrip("/") + "/"
    _stretch(xl, made, given)
    _embed(xl, made, given)
    _speculate(xl, made, given)
    return made


def _stretch(xl: Any, made: Any, given: argparse.Namespace) -> None:
    """A context longer than the model was trained for."""
    if given.rope_scaling:
        kind = f"LLAMA_ROPE_SCALING_TYPE_{given.rope_scaling.upper()}"
        made.rope_scaling_type = getattr(xl.llama_rope_scaling_type, kind)
    made.rope_freq_scale = given.rope_freq_scale or made.rope_freq_scale
    made.yarn_orig_ctx = given.yarn_orig_ctx or made.yarn_orig_ctx


def _embed(xl: Any, made: Any, given: argparse.Namespace) -> None:
    if given.embeddings:
        made.embedding = True
        made.embd_normalize = 2  # Euclidean length 1, as OpenAI's are
        made.pooling_type = getattr(xl.llama_pooling_type, f"LLAMA_POOLING_TYPE_{given.pooling.upper()}")


def _speculate(xl: Any, made: Any, given: argparse.Namespace) -> None:
    kinds: list[Any] = []
    if given.model_draft:
        made.speculative.draft.mparams.path = given.model_draft
        made.speculative.draft.n_max = given.draft_max
        kinds.append(xl.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE)
    if given.spec_type:
        name = given.spec_type.upper().replace("-", "_")
        kinds.append(getattr(xl.common_speculative_type, f"COMMON_SPECULATIVE_TYPE_{name}"))
    if kinds:
        made.speculative.types = kinds


class Departure:
    """Ends the process when a signal or the end of standard input says so, whatever the main thread is doing.

    It leaves through os._exit on purpose: while a request is running, destroying the server object hangs for ever
    and the interpreter's own way out crashes. A thread decides, because the main thread may be loading a model.
    """

    def __init__(self, *, drain: float, watch_stdin: bool, key: str | None) -> None:
        self.url: str | None = None  # set once the server listens
        self._drain = drain
        self._key = key
        self._stdin = [0] if watch_stdin else []
        self._signals, self._wake = os.pipe()

    def begin(self) -> None:
        os.set_blocking(self._wake, False)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _noted)
        threading.Thread(target=self._watch, name="departure", daemon=True).start()

    def _watch(self) -> NoReturn:
        self._wait_for_reason()
        end = time.monotonic() + self._drain
        while time.monotonic() < end and self._busy():
            if select.select([self._signals], [], [], _POLL)[0]:
                break  # asked twice
        os._exit(0)

    def _wait_for_reason(self) -> None:
        while True:
            ready, _, _ = select.select([self._signals, *self._stdin], [], [])
            data = os.read(ready[0], 4096)
            if ready[0] == self._signals or not data:
                return

    def _busy(self) -> bool:
        if self.url is None:
            return False
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        request = urllib.request.Request(f"{self.url}/slots", headers=headers)  # noqa: S310 - our own http address
        try:
            with urllib.request.urlopen(request, timeout=2) as reply:  # noqa: S310
                return any(slot["is_processing"] for slot in json.load(reply))
        except (OSError, ValueError):
            return False


def _noted(number: int, frame: FrameType | None) -> None:
    """A handler must be there for the wake-up pipe to be written to; that does the work."""


def main(arguments: list[str] | None = None) -> int:
    given = parse(arguments)
    given.api_key = given.api_key or key_from(os.environ)
    departure = Departure(drain=given.drain, watch_stdin=given.watch_stdin, key=next(iter(given.api_key), None))
    departure.begin()
    try:
        xl = load_engine()
        server = xl.Server(parameters(xl, given))  # returns when the model is ready
    except (EngineError, RuntimeError) as error:
        # The engine has one text for every reason: the log lines above hold the true one.
        print(f"error: {given.model} on {given.host}:{given.port}: {error}", file=sys.stderr, flush=True)
        return 1
    departure.url = server.listening_address
    print("listening on", departure.url, flush=True)
    while True:
        signal.pause()  # keeps `server` alive; the way out is Departure's


if __name__ == "__main__":
    sys.exit(main())

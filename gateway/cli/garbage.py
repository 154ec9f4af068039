"""The garbage collector as a server wants it: what is there from the start is never walked again, the rest rarely."""

import gc
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

# Objects more than were freed until the youngest are looked through (a millisecond at most), and how many of those
# rounds go by until older ones are. A request leaves next to nothing that only the collector can free.
THRESHOLDS: Final = (10_000, 20, 50)


@contextmanager
def seldom_collected() -> Generator[None]:
    """To be entered when everything is set up. On leaving, all is as before."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()

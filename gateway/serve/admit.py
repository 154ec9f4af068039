"""The limits of a key: requests at once, requests a minute, tokens a minute.

Tokens are reserved before a request runs (an estimate) and settled when it ends (what it took). What counts against
the limit at any time is what is reserved now plus what was settled in the last minute. Requests and tokens have
windows of their own.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from typing import Protocol

from gateway.serve.catalog import Caller
from gateway.serve.errors import RateLimited

MINUTE = 60.0  # seconds
GRAIN = 0.1  # seconds: amounts this near to each other share an entry, so a window has 600 at the most
SOON = 1.0  # seconds to wait where it depends on requests that are still running


class Admitted:
    """A request that is within its key's limits. `settle` once, with the tokens that it took."""

    __slots__ = ("reserved", "taken")

    def __init__(self, reserved: int) -> None:
        self.reserved = reserved
        self.taken = 0  # what is charged if nobody settles: the request came to nothing

    def settle(self, tokens: int) -> None:
        """The tokens that the request really took, prompt and answer. The last call counts."""
        self.taken = max(0, tokens)


class Admits(Protocol):
    """Where limits are kept: in this process (below), or shared by several."""

    def admit(self, caller: Caller, tokens: int) -> AbstractContextManager[Admitted]:
        """Hold a place for one request of about `tokens` tokens. Raises RateLimited with a true `retry_after`."""
        ...


class Window:
    """What was used in the last minute. Entries expire when the whole of their grain is older than that."""

    __slots__ = ("_entries", "total")

    def __init__(self) -> None:
        self._entries: deque[list[float]] = deque()  # [when the grain began, amount]
        self.total = 0.0

    def add(self, amount: float, now: float) -> None:
        if amount <= 0:
            return
        self.total += amount
        began = now - now % GRAIN
        if self._entries and self._entries[-1][0] >= began:
            self._entries[-1][1] += amount
        else:
            self._entries.append([began, amount])

    def expire(self, now: float) -> None:
        while self._entries and self._expiry(self._entries[0]) <= now:
            self.total -= self._entries.popleft()[1]

    def wait(self, excess: float, now: float) -> float:
        """Seconds until at least `excess` of the total has expired."""
        expired = 0.0
        for entry in self._entries:
            expired += entry[1]
            if expired >= excess:
                return self._expiry(entry) - now
        return MINUTE

    @staticmethod
    def _expiry(entry: list[float]) -> float:
        return entry[0] + GRAIN + MINUTE


class _Account:
    """One key's use."""

    __slots__ = ("requests", "reserved", "running", "tokens", "touched")

    def __init__(self) -> None:
        self.running = 0
        self.reserved = 0  # tokens of the running ones
        self.requests = Window()
        self.tokens = Window()
        self.touched = 0.0

    def idle(self, now: float) -> bool:
        return self.running == 0 and now - self.touched > MINUTE + GRAIN


class Admission:
    """Limits within one process. A key that has none costs nothing; one that falls silent is forgotten."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._accounts: OrderedDict[str, _Account] = OrderedDict()  # least recently used first

    @property
    def accounts(self) -> int:
        """Keys that are being counted now."""
        return len(self._accounts)

    @contextmanager
    def admit(self, caller: Caller, tokens: int) -> Generator[Admitted]:
        """One request of `caller`, from entry to exit. `tokens`: estimated, of prompt and answer together.

        Raises RateLimited before anything is counted. Its `retry_after` is when the window will have room; where
        that depends on requests still running it is the earliest that makes sense, and None where the request
        alone is larger than the limit.
        """
        admitted = Admitted(max(0, tokens))
        if caller.concurrency is None and caller.requests_per_minute is None and caller.tokens_per_minute is None:
            yield admitted
            return
        now = self._clock()
        account = self._account(caller.id, now)
        _check(caller, account, admitted.reserved, now)
        account.requests.add(1, now)
        account.running += 1
        account.reserved += admitted.reserved
        try:
            yield admitted
        finally:
            account.running -= 1
            account.reserved -= admitted.reserved
            account.touched = self._clock()
            account.tokens.add(admitted.taken, account.touched)

    def _account(self, key: str, now: float) -> _Account:
        """The key's account, up to date and at the end of the line."""
        self._drop_idle(now)
        account = self._accounts.get(key)
        if account is None:
            account = self._accounts[key] = _Account()
        else:
            self._accounts.move_to_end(key)
        account.touched = now
        account.requests.expire(now)
        account.tokens.expire(now)
        return account

    def _drop_idle(self, now: float) -> None:
        """Look at two at a time: more than one request can add."""
        for key in tuple(islice(self._accounts, 2)):
            account = self._accounts[key]
            if account.idle(now):
                del self._accounts[key]
            elif account.running:
                self._accounts.move_to_end(key)


def _check(caller: Caller, account: _Account, tokens: int, now: float) -> None:
    if caller.concurrency is not None and account.running >= caller.concurrency:
        raise RateLimited(f"This key may have {caller.concurrency} requests at once, and has them.", retry_after=SOON)
    if caller.requests_per_minute is not None:
        excess = account.requests.total + 1 - caller.requests_per_minute
        if excess > 0:
            raise RateLimited(
                f"This key may make {caller.requests_per_minute} requests a minute, and has made them.",
                retry_after=account.requests.wait(excess, now),
            )
    if caller.tokens_per_minute is not None:
        _check_tokens(caller.tokens_per_minute, account, tokens, now)


def _check_tokens(limit: int, account: _Account, tokens: int, now: float) -> None:
    if tokens > limit:
        raise RateLimited(
            f"This request alone may take {tokens} tokens; this key may use {limit} a minute. Send less, "
            "or ask for fewer tokens in the answer."
        )
    if account.reserved + account.tokens.total + tokens <= limit:
        return
    excess = account.tokens.total + tokens - limit  # as if the running ones took nothing
    raise RateLimited(
        f"This key may use {limit} tokens a minute: {account.tokens.total:.0f} are used, {account.reserved} reserved "
        f"by running requests, and this one may take {tokens}.",
        retry_after=account.tokens.wait(excess, now) if excess > 0 else SOON,
    )

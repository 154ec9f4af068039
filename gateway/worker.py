"""Composition root: settings to a Celery application, to a sender for others, and to a running worker."""

import asyncio
import logging
import os
import signal
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from time import time
from typing import Any, Final, cast

import msgspec
from celery import Celery, signals
from celery.platforms import SecurityWarning
from kombu.exceptions import KombuError
from kombu.exceptions import OperationalError as Unreachable

from gateway.control.builds import Builder, QueueUnreachable, Work, recover
from gateway.control.engine_build import engine_build
from gateway.control.owner import this_process
from gateway.db.engine import open_database
from gateway.settings import Settings
from gateway.settings.extras import check_broker

TASK: Final = "turnout.build"
PATIENCE: Final = 2.0  # seconds between tries to reach the broker at the start
LATER: Final = 15.0  # seconds until another look at a build that another host holds


class Folders(msgspec.Struct, frozen=True):
    """A broker made of folders: messages wait in one, are moved to another when taken."""

    root: Path

    @property
    def messages(self) -> Path:
        return self.root / "messages"

    @property
    def taken(self) -> Path:
        return self.root / "taken"

    @property
    def control(self) -> Path:
        return self.root / "control"

    def make(self) -> None:
        for folder in (self.messages, self.taken, self.control):
            folder.mkdir(parents=True, exist_ok=True)

    def forget(self) -> None:
        """Messages that were taken are of no further use: the rows say what was not done."""
        for message in self.taken.iterdir():
            message.unlink(missing_ok=True)

    def options(self, outgoing: Path | None = None) -> dict[str, object]:
        return {
            "data_folder_in": str(self.messages),
            "data_folder_out": str(outgoing or self.messages),
            "processed_folder": str(self.taken),
            "store_processed": True,
            "control_folder": str(self.control),
            "polling_interval": 0.1,
        }


def create_celery(settings: Settings, work: Work | None = None, stopping: Callable[[], bool] = lambda: False) -> Celery:
    """The application, with its one task. `work` makes the artefact; None: the engines do. Raises SettingsError."""
    app = _application(settings)
    making = work or engine_build(settings.folder)
    post = _post(app, _folders(settings))

    def build(digest: str) -> None:
        match asyncio.run(_build(settings, making, digest, stopping)):
            case "later":
                post(digest, LATER)
            case "put back":
                post(digest, None)
            case _:
                pass

    app.task(build, name=TASK, shared=False)
    return cast("Celery", app)


def sender(settings: Settings) -> Callable[[str], None]:
    """What puts a build into the queue, by its digest. It blocks, may be called from any thread, and keeps nothing
    open; it raises QueueUnreachable. Raises SettingsError.
    """
    post = _post(_application(settings), _folders(settings))
    return lambda digest: post(digest, None)


def run_worker(settings: Settings, work: Work | None = None) -> int:
    """Take builds until SIGTERM or SIGINT; the exit status. Tables must be there. Raises SettingsError, DatabaseError.

    A running build is stopped then and goes back into the queue.
    """
    leaving = threading.Event()
    folders = _folders(settings)
    if folders is not None:
        folders.make()
        folders.forget()

    def leave(**_: object) -> None:
        leaving.set()

    def keep_logging(**_: object) -> None:
        """Celery sets logging up unless somebody else says that it is done."""

    def ready(**_: object) -> None:
        # Celery would start itself anew when its terminal goes away.
        signal.signal(signal.SIGHUP, _hang_up)
        logging.getLogger("turnout.worker").info("ready: builds are taken from %s", settings.broker.queue)

    _on(signals.worker_ready, ready)
    _on(signals.worker_shutting_down, leave)
    _on(signals.setup_logging, keep_logging)
    # It warns of root because of pickle, which we do not accept.
    warnings.filterwarnings("ignore", category=SecurityWarning)
    app: Any = create_celery(settings, work, leaving.is_set)
    asyncio.run(_recover(settings))
    worker = app.Worker(
        pool="solo", hostname=f"turnout-{os.getpid()}@%h", without_gossip=True, without_mingle=True, quiet=True
    )
    worker.start()
    return 0 if leaving.is_set() else int(worker.exitcode or 0)


def _on(event: Any, receiver: Callable[..., None]) -> None:
    event.connect(receiver, weak=False)


def _hang_up(_number: int, _frame: object) -> None:
    os.kill(os.getpid(), signal.SIGTERM)


async def _build(settings: Settings, work: Work, digest: str, stopping: Callable[[], bool]) -> str:
    async with open_database(settings.database_url) as db:
        logs = settings.folder / "logs" / "builds"
        return await Builder(db, work, this_process(), logs, time, stopping).perform(digest)


async def _recover(settings: Settings) -> None:
    """Look after what earlier workers left; waits for the broker, as Celery will."""
    async with open_database(settings.database_url) as db:
        while True:
            try:
                await recover(db, sender(settings), now=time())
            except QueueUnreachable as error:
                logging.getLogger("turnout.worker").warning("%s", error)
                await asyncio.sleep(PATIENCE)
            else:
                return


def _application(settings: Settings) -> Any:
    """A Celery, of which the type checkers know next to nothing."""
    return Celery("turnout", broker=_broker(settings), set_as_current=False, changes=_options(settings))


def _post(app: Any, folders: Folders | None) -> Callable[[str, float | None], None]:
    """What sends a digest, to be built now or in so many seconds."""

    def post(digest: str, wait: float | None) -> None:
        try:
            if folders is None:
                _send(app, digest, wait)
            else:
                _send_whole(app, folders, digest, wait)
        except (Unreachable, KombuError, OSError) as error:
            raise QueueUnreachable(f"The build queue cannot be reached: {error}") from error

    return post


def _send(app: Any, digest: str, wait: float | None, **options: object) -> None:
    retries = {"max_retries": 2, "interval_start": 0.2, "interval_step": 0.2}
    with app.connection_for_write(**options) as connection:
        app.send_task(TASK, [digest], countdown=wait, connection=connection, retry=True, retry_policy=retries)


def _send_whole(app: Any, folders: Folders, digest: str, wait: float | None) -> None:
    """A worker looks at the folder while the message is being written, so it is written elsewhere and moved in."""
    folders.make()
    with TemporaryDirectory(dir=folders.root, prefix="outgoing-") as outgoing:
        _send(app, digest, wait, transport_options=folders.options(Path(outgoing)))
        for message in Path(outgoing).iterdir():
            message.rename(folders.messages / message.name)


def _folders(settings: Settings) -> Folders | None:
    """None: the broker is a server. `filesystem://` alone is a folder in the data folder."""
    scheme, _, rest = settings.broker_url.partition("://")
    if scheme != "filesystem":
        return None
    return Folders(Path(rest).expanduser().resolve() if rest else settings.folder / "queue")


def _broker(settings: Settings) -> str:
    url = settings.broker_url
    scheme = url.partition("://")[0]
    check_broker(settings)
    return "filesystem://localhost" if scheme == "filesystem" else url


def _options(settings: Settings) -> dict[str, object]:
    folders = _folders(settings)
    return {
        "broker_transport_options": folders.options() if folders else {},
        "broker_connection_retry_on_startup": True,
        "broker_connection_timeout": 4.0,
        # The only thread is busy while it builds and could not answer.
        "broker_heartbeat": 0,
        "task_default_queue": settings.broker.queue,
        "task_acks_late": True,
        "task_ignore_result": True,
        "task_serializer": "json",
        "accept_content": ["json"],
        "worker_prefetch_multiplier": 1,
        "worker_concurrency": 1,
        "worker_hijack_root_logger": False,
        "worker_redirect_stdouts": False,
        "worker_enable_remote_control": False,
        "worker_send_task_events": False,
        "worker_cancel_long_running_tasks_on_connection_loss": False,
    }

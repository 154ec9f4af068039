"""Celery as we set it up, in this process: the broker of folders, the message, the task."""

import json

import pytest

from gateway.control.builds import QueueUnreachable
from gateway.db.migrate import migrate
from gateway.settings import SettingsError, load
from gateway.worker import LATER, Folders, create_celery, sender


def settings(folder, **broker):
    environ = {f"TURNOUT__BROKER__{name.upper()}": value for name, value in broker.items()}
    return load(None, environ={"TURNOUT__DATA": str(folder), **environ})


def messages(folder):
    return [json.loads(file.read_text()) for file in sorted(folder.iterdir())]


def test_a_message_is_there_whole_in_the_data_folder(tmp_path):
    send = sender(settings(tmp_path))
    send("abc")
    send("def")
    folders = Folders(tmp_path / "queue")
    bodies = messages(folders.messages)
    assert [one["headers"]["task"] for one in bodies] == ["turnout.build"] * 2
    assert sorted(one["headers"]["argsrepr"] for one in bodies) == ["['abc']", "['def']"]
    assert {one["content-type"] for one in bodies} == {"application/json"}
    assert {entry.name for entry in folders.root.iterdir()} == {"messages", "taken", "control"}


def test_the_queue_has_the_name_that_was_given(tmp_path):
    sender(settings(tmp_path, queue="blue"))("abc")
    (file,) = Folders(tmp_path / "queue").messages.iterdir()
    assert file.name.endswith(".blue.msg")


def test_a_folder_of_ones_own(tmp_path):
    sender(settings(tmp_path / "data", url=f"filesystem://{tmp_path / 'elsewhere'}"))("abc")
    assert len(messages(tmp_path / "elsewhere" / "messages")) == 1
    assert not (tmp_path / "data").exists()


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "queue").write_text("in the way")
    with pytest.raises(QueueUnreachable, match="queue"):
        sender(settings(tmp_path))("abc")


def test_taken_messages_are_forgotten(tmp_path):
    folders = Folders(tmp_path)
    folders.make()
    (folders.taken / "old.msg").write_text("{}")
    (folders.messages / "new.msg").write_text("{}")
    folders.forget()
    assert (len(list(folders.taken.iterdir())), len(list(folders.messages.iterdir()))) == (0, 1)


def test_redis_without_its_extra_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr("gateway.settings.extras.find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"pip install -e '\.\[redis\]'"):
        sender(settings(tmp_path, url="redis://127.0.0.1:1/0"))


def test_how_celery_is_set_up(tmp_path):
    conf = create_celery(settings(tmp_path, url="amqp://host//")).conf
    assert conf.broker_url == "amqp://host//"
    assert conf.broker_transport_options == {}
    assert (conf.task_acks_late, conf.worker_prefetch_multiplier, conf.result_backend) == (True, 1, None)
    assert (conf.accept_content, conf.task_serializer) == (["json"], "json")
    assert not conf.worker_hijack_root_logger
    assert conf.broker_connection_retry_on_startup


def build_task(app):
    app.finalize()
    return app.tasks["turnout.build"]


@pytest.mark.parametrize(("ended", "sent"), [("ended", []), ("not mine", []), ("put back", [None]), ("later", [LATER])])
def test_what_the_task_does_with_what_it_could_not_build(tmp_path, monkeypatch, ended, sent):
    class Builder:
        def __init__(self, *_):
            pass

        async def perform(self, digest):
            assert digest == "abc"
            return ended

    monkeypatch.setattr("gateway.worker.Builder", Builder)
    app = create_celery(settings(tmp_path), work=lambda *_, **__: None)
    build_task(app).apply(args=["abc"], throw=True)
    folders = Folders(tmp_path / "queue")
    found = messages(folders.messages) if folders.messages.exists() else []
    assert [one["headers"]["argsrepr"] for one in found] == ["['abc']"] * len(sent)
    assert [one["headers"]["eta"] is not None for one in found] == [wait is not None for wait in sent]


def test_an_unknown_digest_is_no_error(tmp_path):
    import asyncio

    tree = settings(tmp_path)
    asyncio.run(migrate(tree.database_url))
    build_task(create_celery(tree)).apply(args=["abc"], throw=True)
    assert not (tmp_path / "queue").exists()

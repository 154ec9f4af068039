import sys

import msgspec
import pytest

from engines.sim.cache import Cleared, Removed, Stored
from engines.sim.kv_events import KvEvents, MissingDependency, ZmqPublisher

STORED = Stored((11, 12), 10, (1, 2, 3, 4))


def test_a_batch_is_an_array_of_maps():
    sent = []
    events = KvEvents(2, 8, sent.append)
    for one in (STORED, Removed((11,)), Cleared()):
        events.note(one)
    events.flush(1.5)
    events.flush(2.5)  # nothing new, nothing sent
    assert len(sent) == 1
    stamp, batch, rank = msgspec.msgpack.decode(sent[0])
    assert (stamp, rank) == (1.5, 0)
    assert [one["type"] for one in batch] == ["BlockStored", "BlockRemoved", "AllBlocksCleared"]
    assert batch[0] == {
        "type": "BlockStored",
        "block_hashes": [11, 12],
        "parent_block_hash": 10,
        "token_ids": [1, 2, 3, 4],
        "block_size": 2,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
    }
    assert batch[1]["block_hashes"] == [11]


def test_trtllm_hands_each_event_out_once():
    events = KvEvents(2, 8)
    events.note(STORED)
    events.note(Removed((12,)))
    events.note(Cleared())  # TensorRT-LLM has no word for it
    created, stored, removed = events.poll()
    assert created["data"] == {"type": "created", "num_blocks_per_cache_level": [8, 0]}
    assert stored["data"]["parent_hash"] == 10
    assert [block["block_hash"] for block in stored["data"]["blocks"]] == [11, 12]
    assert [token["token_id"] for token in stored["data"]["blocks"][1]["tokens"]] == [3, 4]
    assert removed["data"] == {"type": "removed", "block_hashes": [12]}
    assert [one["event_id"] for one in (created, stored, removed)] == [0, 1, 2]
    assert events.poll() == []


def test_without_pyzmq_the_option_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "zmq", None)
    with pytest.raises(MissingDependency, match="pip install pyzmq"):
        ZmqPublisher("tcp://127.0.0.1:0", "")


def test_frames_are_topic_sequence_payload():
    import zmq

    with ZmqPublisher("tcp://127.0.0.1:0", "kv") as publish, zmq.Context() as context, context.socket(zmq.SUB) as ear:
        ear.setsockopt(zmq.SUBSCRIBE, b"kv")
        ear.connect(publish.endpoint)
        first = None
        for _ in range(200):  # a subscription takes a moment to arrive
            publish(b"x")
            if ear.poll(10):
                first = ear.recv_multipart()
                break
        assert first is not None
        publish(b"y")
        frames = ear.recv_multipart()
    topic, sequence, payload = frames
    assert topic == b"kv"
    assert len(sequence) == 8
    assert int.from_bytes(sequence, "big") > int.from_bytes(first[1], "big")
    assert payload in {b"x", b"y"}

"""The collector's settings last as long as the server, and no longer."""

import gc
import weakref

import pytest

from gateway.cli.garbage import THRESHOLDS, seldom_collected


class Node:
    """Something that can hold itself."""

    def __init__(self) -> None:
        self.me = self


def test_what_is_there_is_set_aside_and_given_back():
    before = gc.get_threshold()
    with seldom_collected():
        assert gc.get_threshold() == THRESHOLDS
        assert gc.get_freeze_count() > 0
    assert (gc.get_threshold(), gc.get_freeze_count()) == (before, 0)


def test_it_is_given_back_after_a_failure_too():
    before = gc.get_threshold()
    with pytest.raises(KeyError), seldom_collected():
        raise KeyError
    assert (gc.get_threshold(), gc.get_freeze_count()) == (before, 0)


def test_cycles_are_still_collected():
    with seldom_collected():
        node = Node()
        gone = weakref.ref(node)
        del node
        gc.collect()
        assert gone() is None

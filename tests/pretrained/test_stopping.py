"""Ctrl-C and SIGTERM."""

import signal
import threading
from contextlib import nullcontext

import pytest

from posenc.pretrained.stopping import stoppable, terminable

BOTH = (signal.SIGINT, signal.SIGTERM)


def handlers():
    return [signal.getsignal(each) for each in BOTH]


def test_sigterm_raises_what_ctrl_c_raises_and_the_handler_comes_back():
    before = handlers()
    with pytest.raises(KeyboardInterrupt), terminable():
        signal.raise_signal(signal.SIGTERM)
    assert handlers() == before


@pytest.mark.parametrize("outer", [False, True], ids=["from Python", "in a command"])
@pytest.mark.parametrize("second", BOTH)
@pytest.mark.parametrize("first", BOTH)
def test_the_first_is_noted_and_the_second_raises(first, second, outer):
    def twice():
        with terminable() if outer else nullcontext(), stoppable() as stopped:
            signal.raise_signal(first)
            assert stopped == [first]
            signal.raise_signal(second)

    before = handlers()
    with pytest.raises(KeyboardInterrupt):
        twice()
    assert handlers() == before


@pytest.mark.parametrize("manager", [stoppable, terminable])
def test_the_callers_handlers_stay(manager):
    seen, before = [], handlers()
    try:
        for each in BOTH:
            signal.signal(each, lambda number, frame: seen.append(number))
        theirs = handlers()
        with manager():
            assert handlers() == theirs
            for each in BOTH:
                signal.raise_signal(each)
        assert seen == [*BOTH]
    finally:
        for each, handler in zip(BOTH, before, strict=True):
            signal.signal(each, handler)


@pytest.mark.parametrize("manager", [stoppable, terminable])
def test_in_another_thread_nothing_changes(manager):
    changed, before = [], handlers()

    def run():
        with manager():
            changed.append(handlers() != before)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert changed == [False]

"""Hand-overs between host threads: what one thread knows to have finished, another knows after it.

A race check keeps a clock for each host thread. Where a thread starts another, joins it, gives it
something through a queue, or makes it wait for an event or a lock, the clocks have to meet, or what
is right would be reported. While at least one `Listener` listens, this module watches for that:

==========================  =====================================================================
``threading.Thread``        the start; the end, at a `join` that succeeded
``queue``                   from the `put` of an item to the `get` of that item, in `Queue`,
                            `LifoQueue`, `PriorityQueue` and `SimpleQueue` (those made meanwhile)
``threading.Event``         from the `set` to a `wait` or `is_set` that returns true
``threading.Condition``     each end of its block, and each `wait`, to whoever enters next
``threading.Semaphore``     from each `release` to each later `acquire`
``threading.Barrier``       from all parties to all parties
``threading.Lock, RLock``   from each release to the next acquisition (those made meanwhile)
``concurrent.futures``      from the submission to the call; from its end to `result`, `exception`
                            and callbacks
autograd                    from the call of `backward` to the engine's threads that work for it,
                            and from those to its return
==========================  =====================================================================

All other ways of telling another thread (a plain variable that is polled, a lock made before the
listener, another language) are not seen.
"""

from __future__ import annotations

import _thread
import concurrent.futures.thread
import ctypes
import functools
import heapq
import itertools
import queue
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol

__all__ = ["Listener", "note_backward", "start", "stop"]


class Listener(Protocol):
    """A source of traces. Its methods are called by the thread that they are about."""

    def thread(self) -> int:
        """Return the source's number of the calling thread."""

    def released(self, token: int, thread: int) -> None:
        """Note that what ``thread`` knows can be taken over under ``token``."""

    def acquired(self, token: int) -> None:
        """Note that the calling thread has taken over what was released under ``token`` last."""


class _Local(threading.local):
    """What a thread is in the midst of."""

    # Inside a primitive that is watched as a whole: the locks in it are its own business.
    inside = False
    # Of autograd: the pass that the thread works for, and the token that it hands back under.
    task = -1
    work: _Work | None = None


class _Work:
    """What one thread of autograd's engine does for one backward pass."""

    __slots__ = ("listeners", "open", "thread", "token")

    def __init__(self) -> None:
        self.token = _tokens.new()
        self.thread = [(listener, listener.thread()) for listener in _listeners]
        self.open = True

    def end(self) -> None:
        # By whichever comes first: the thread, when it turns to other work, or who called backward.
        if self.open:
            self.open = False
            for listener, thread in self.thread:
                if listener in _listeners:
                    listener.released(self.token, thread)


class _Tokens:
    """Numbers for what is handed over, used again when nobody can take it over any more."""

    def __init__(self) -> None:
        self._free: list[int] = []
        self._next = itertools.count(1)

    def new(self) -> int:
        try:
            return heapq.heappop(self._free)
        except IndexError:
            return next(self._next)

    def end(self, token: int) -> None:
        heapq.heappush(self._free, token)


_tokens: Final = _Tokens()
_listeners: tuple[Listener, ...] = ()
_local: Final = _Local()
# Made before any patch: locks of our own are nobody's hand-over.
_guard: Final = _thread.allocate_lock()


def _release(token: int) -> None:
    for listener in _listeners:
        listener.released(token, listener.thread())


def _acquire(token: int) -> None:
    for listener in _listeners:
        listener.acquired(token)


def _release_new() -> int:
    token = _tokens.new()
    _release(token)
    return token


@contextmanager
def _as_a_whole() -> Iterator[None]:
    before, _local.inside = _local.inside, True
    try:
        yield
    finally:
        _local.inside = before


# What belongs to an object that is shared between threads, kept beside it.
_ATTRIBUTE: Final = "_accel_streams_handover"


def _owned(holder: Any) -> int:
    """Return the token that goes with an object for as long as it lives."""
    token: int | None = holder.__dict__.get(_ATTRIBUTE)
    if token is None:
        token = holder.__dict__[_ATTRIBUTE] = _tokens.new()
        weakref.finalize(holder, _tokens.end, token).atexit = False
    return token


def _release_owned(holder: Any) -> None:
    _release(_owned(holder))


def _acquire_owned(holder: Any) -> None:
    token = holder.__dict__.get(_ATTRIBUTE)
    if token is not None:
        _acquire(token)


def _alone() -> bool:
    # What the only thread knows goes to others by their start, or by backward.
    return threading.active_count() == 1 and threading.current_thread() is threading.main_thread()


# --- threads


def _thread_start(original: Callable[..., Any]) -> Callable[..., Any]:
    def start(self: threading.Thread) -> None:
        token = self.__dict__["_accel_streams_started"] = _release_new()
        try:
            original(self)
        except BaseException:
            _tokens.end(token)
            raise

    return start


def _thread_bootstrap(original: Callable[..., Any]) -> Callable[..., Any]:
    def _bootstrap_inner(self: threading.Thread) -> None:
        token = self.__dict__.pop("_accel_streams_started", None)
        if token is not None:
            _acquire(token)
            _tokens.end(token)
        try:
            original(self)
        finally:
            _release_owned(self)

    return _bootstrap_inner


def _thread_join(original: Callable[..., Any]) -> Callable[..., Any]:
    def join(self: threading.Thread, timeout: float | None = None) -> None:
        original(self, timeout)
        self.is_alive()  # the patched one

    return join


def _thread_is_alive(original: Callable[..., Any]) -> Callable[..., Any]:
    def is_alive(self: threading.Thread) -> bool:
        alive: bool = original(self)
        if not alive:
            _acquire_owned(self)
        return alive

    return is_alive


# --- queues


def _whole(original: Callable[..., Any]) -> Callable[..., Any]:
    """Leave alone the locks that a constructor makes."""

    def __init__(self: Any, *arguments: Any, **options: Any) -> None:
        with _as_a_whole():
            original(self, *arguments, **options)

    return __init__


def _sent(holder: Any) -> dict[int, list[int]]:
    tokens: dict[int, list[int]] = holder.__dict__.setdefault("_accel_streams_sent", {})
    return tokens


def _queue_put(original: Callable[..., Any]) -> Callable[..., Any]:
    def _put(self: Any, item: Any) -> None:
        original(self, item)  # under the queue's lock
        _sent(self).setdefault(id(item), []).append(_release_new())

    return _put


def _queue_get(original: Callable[..., Any], newest: bool = False) -> Callable[..., Any]:
    def _get(self: Any) -> Any:
        item = original(self)
        tokens = _sent(self).get(id(item))
        if tokens:
            token = tokens.pop(-1 if newest else 0)
            if not tokens:
                del _sent(self)[id(item)]
            _acquire(token)
            _tokens.end(token)
        return item

    return _get


def _queue_task_done(original: Callable[..., Any]) -> Callable[..., Any]:
    def task_done(self: Any) -> None:
        done = self.__dict__.setdefault("_accel_streams_done", {})
        ident = threading.get_ident()
        if ident not in done:
            done[ident] = _tokens.new()
        _release(done[ident])
        original(self)

    return task_done


def _queue_join(original: Callable[..., Any]) -> Callable[..., Any]:
    def join(self: Any) -> None:
        original(self)
        for token in list(self.__dict__.get("_accel_streams_done", {}).values()):
            _acquire(token)

    return join


class _SimpleQueue(queue.SimpleQueue):  # type: ignore[type-arg]
    """A SimpleQueue whose items carry what was known when they were put."""

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        super().put((_release_new() if _listeners else None, item), block, timeout)

    def put_nowait(self, item: Any) -> None:
        self.put(item)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        token, item = super().get(block, timeout)
        if token is not None:
            _acquire(token)
            _tokens.end(token)
        return item

    def get_nowait(self) -> Any:
        return self.get(False)


# --- events, conditions and locks


def _event_set(original: Callable[..., Any]) -> Callable[..., Any]:
    def set(self: threading.Event) -> None:
        if not self._flag:  # type: ignore[attr-defined]
            _release_owned(self)
        original(self)

    return set


def _event_seen(original: Callable[..., Any]) -> Callable[..., Any]:
    def seen(self: threading.Event, *arguments: Any, **options: Any) -> bool:
        flag: bool = original(self, *arguments, **options)
        if flag:
            _acquire_owned(self)
        return flag

    return seen


def _condition_init(original: Callable[..., Any]) -> Callable[..., Any]:
    def __init__(self: Any, *arguments: Any, **options: Any) -> None:
        original(self, *arguments, **options)
        self.__dict__["_accel_streams_quiet"] = _local.inside or isinstance(self._lock, _Lock)

    return __init__


def _condition_enter(original: Callable[..., Any]) -> Callable[..., Any]:
    def __enter__(self: Any) -> Any:
        entered = original(self)
        if not self.__dict__.get("_accel_streams_quiet"):
            _acquire_owned(self)
        return entered

    return __enter__


def _condition_exit(original: Callable[..., Any]) -> Callable[..., Any]:
    def __exit__(self: Any, *arguments: Any) -> Any:
        if not self.__dict__.get("_accel_streams_quiet") and not _alone():
            _release_owned(self)
        return original(self, *arguments)

    return __exit__


def _condition_wait(original: Callable[..., Any]) -> Callable[..., Any]:
    def wait(self: Any, timeout: float | None = None) -> Any:
        if self.__dict__.get("_accel_streams_quiet"):
            return original(self, timeout)
        _release_owned(self)
        woken = original(self, timeout)
        _acquire_owned(self)
        return woken

    return wait


class _Lock:
    """A lock that hands over from each release to the next acquisition."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        got: bool = self._lock.acquire(blocking, timeout)
        if got and _listeners:
            _acquire_owned(self)
        return got

    def release(self) -> None:
        if _listeners and not _alone():
            _release_owned(self)
        self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lock, name)

    def __repr__(self) -> str:
        return repr(self._lock)


class _RLock(_Lock):
    """The same for a lock that its owner may take again; Condition uses the two private methods."""

    def _release_save(self) -> Any:
        if _listeners:
            _release_owned(self)
        return self._lock._release_save()

    def _acquire_restore(self, state: Any) -> None:
        self._lock._acquire_restore(state)
        if _listeners:
            _acquire_owned(self)


def _lock_factory(original: Callable[..., Any], kind: type[_Lock]) -> Callable[..., Any]:
    def make(*arguments: Any) -> Any:
        lock = original(*arguments)
        return lock if _local.inside or not _listeners else kind(lock)

    return make


# --- autograd

_PASS: Final = "accel_streams.backward"


class _Pass:
    """One call of backward."""

    def __init__(self) -> None:
        self.caller = threading.get_ident()
        self.token = _release_new()
        self.works: list[_Work] | None = []

    def end(self) -> None:
        works, self.works = self.works or [], None
        for work in works:
            work.end()
            _acquire(work.token)
            _tokens.end(work.token)
        _tokens.end(self.token)


def _stash(value: _Pass | None) -> None:
    """Put the value where the threads that run this thread's next backward find it."""
    from torch import _C

    if _stash_takes_a_reference():
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))
    _C._stash_obj_in_tls(_PASS, value)


@functools.cache
def _stash_takes_a_reference() -> bool:
    """Return whether this torch gives back a reference that it never took: up to 2.11 at least."""
    from torch import _C

    probe = _Pass.__new__(_Pass)
    before = sys.getrefcount(probe)
    # It stays there; this is the reference that such a torch would give back.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(probe))
    _C._stash_obj_in_tls(f"{_PASS}.probe", probe)
    return sys.getrefcount(probe) == before + 1


class _Engine:
    """Autograd's engine, with hand-overs from the caller to its threads and back."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def run_backward(self, *arguments: Any, **options: Any) -> Any:
        if not _listeners:
            return self._engine.run_backward(*arguments, **options)
        from torch import _C

        outer = _C._get_obj_in_tls(_PASS) if _C._is_key_in_tls(_PASS) else None
        current = _Pass()
        _stash(current)
        try:
            return self._engine.run_backward(*arguments, **options)
        finally:
            remove = getattr(_C, "_remove_obj_from_tls", None)
            if outer is None and remove is not None:
                remove(_PASS)
            else:
                _stash(outer)
            current.end()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


def note_backward() -> None:
    """Take over what the caller of backward knows, in a thread that works for it.

    A source calls this before each record that it makes, in the thread that makes it, or whenever
    ``torch._C._current_graph_task_id()`` has changed.
    """
    from torch import _C

    task = _C._current_graph_task_id()
    if task == _local.task:
        return
    _local.task = task
    if _local.work is not None:
        _local.work.end()
        _local.work = None
    if task < 0 or not _C._is_key_in_tls(_PASS):
        return
    current: _Pass | None = _C._get_obj_in_tls(_PASS)
    if current is None or current.works is None or current.caller == threading.get_ident():
        return
    _acquire(current.token)
    _local.work = _Work()
    current.works.append(_local.work)


# --- putting it in place

_Patch = tuple[Any, str, Callable[[Any], Any]]

_PATCHES: Final[tuple[_Patch, ...]] = (
    (threading.Thread, "start", _thread_start),
    (threading.Thread, "_bootstrap_inner", _thread_bootstrap),
    (threading.Thread, "is_alive", _thread_is_alive),
    (threading.Thread, "join", _thread_join),
    (queue.Queue, "__init__", _whole),
    (queue.Queue, "_put", _queue_put),
    (queue.Queue, "_get", _queue_get),
    (queue.Queue, "task_done", _queue_task_done),
    (queue.Queue, "join", _queue_join),
    (queue.LifoQueue, "_put", _queue_put),
    (queue.LifoQueue, "_get", functools.partial(_queue_get, newest=True)),
    (queue.PriorityQueue, "_put", _queue_put),
    (queue.PriorityQueue, "_get", _queue_get),
    (queue, "SimpleQueue", lambda _: _SimpleQueue),
    (threading.Event, "__init__", _whole),
    (threading.Event, "set", _event_set),
    (threading.Event, "wait", _event_seen),
    (threading.Event, "is_set", _event_seen),
    (threading.Condition, "__init__", _condition_init),
    (threading.Condition, "__enter__", _condition_enter),
    (threading.Condition, "__exit__", _condition_exit),
    (threading.Condition, "wait", _condition_wait),
    (concurrent.futures.thread.ThreadPoolExecutor, "__init__", _whole),
    (threading, "Lock", lambda original: _lock_factory(original, _Lock)),
    (threading, "RLock", lambda original: _lock_factory(original, _RLock)),
)
_replaced: list[tuple[Any, str, Any, Any]] = []


def start(listener: Listener) -> None:
    """Tell ``listener`` of every hand-over from now on."""
    global _listeners
    with _guard:
        if not _listeners:
            patches = [*_PATCHES, *_autograd()]
            for owner, name, make in patches:
                original = owner.__dict__[name]
                patched = make(original)
                _replaced.append((owner, name, original, patched))
                setattr(owner, name, patched)
        _listeners = (*_listeners, listener)


def stop(listener: Listener) -> None:
    """Tell ``listener`` no more."""
    global _listeners
    with _guard:
        before = _listeners
        _listeners = tuple(each for each in before if each is not listener)
        if before and not _listeners:
            while _replaced:
                owner, name, original, patched = _replaced.pop()
                # Unless somebody has put something else there meanwhile.
                if owner.__dict__.get(name) is patched:
                    setattr(owner, name, original)


def _autograd() -> list[_Patch]:
    from torch.autograd.variable import Variable

    return [(Variable, "_execution_engine", _Engine)]

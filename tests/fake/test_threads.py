# mypy: disable-error-code="attr-defined, no-untyped-call"
# torch.fake comes into being at run time; some of torch's methods have no types.
"""Host threads: whoever hands over is seen, so that right programs are quiet and wrong ones not."""

from __future__ import annotations

import concurrent.futures
import queue
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from accel_streams import _handover, fake
from accel_streams.races import READ, Analyser, Race, access

LIMIT_S = 30


class Program:
    """Two streams and a buffer; every thread waits for what it has queued."""

    def __init__(self) -> None:
        self.one, self.other = torch.fake.Stream(), torch.fake.Stream()
        self.buffer = torch.zeros(64, device="fake")
        torch.fake.synchronize()

    def work(self, stream: torch.Stream) -> None:
        with torch.fake.stream(stream):
            self.buffer.add_(1)
        stream.synchronize()

    def first(self) -> None:
        self.work(self.one)

    def then(self) -> None:
        self.work(self.other)


def races(body: Callable[[Program], None], *, brief: bool = True) -> list[Race]:
    analyser = Analyser()
    fake.start_trace(brief=brief, sink=analyser.feed)
    try:
        body(Program())
    finally:
        fake.stop_trace()
    return analyser.races(fake.stream_names())


def in_threads(*bodies: Callable[[], None]) -> None:
    """Run each in a thread of its own and hide from the race check that they are joined."""
    failures: list[BaseException] = []

    def guarded(body: Callable[[], None]) -> None:
        try:
            body()
        except BaseException as exc:
            failures.append(exc)

    threads = [threading.Thread(target=guarded, args=(body,), daemon=True) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive()
    if failures:
        raise failures[0]


def passed_on(tell: Callable[[], Any], be_told: Callable[[], Any]) -> Callable[[Program], None]:
    def body(program: Program) -> None:
        def first() -> None:
            program.first()
            tell()

        def then() -> None:
            be_told()
            program.then()

        in_threads(first, then)

    return body


def through(make: Callable[[], Any], tell: str, be_told: str, *given: Any) -> Any:
    """Make the primitive while the trace is recorded, as a program does."""

    def body(program: Program) -> None:
        primitive = make()
        passed_on(lambda: getattr(primitive, tell)(*given), lambda: getattr(primitive, be_told)())(
            program
        )

    return body


PRIMITIVES = {
    "Queue": through(queue.Queue, "put", "get", 1),
    "LifoQueue": through(queue.LifoQueue, "put", "get", 1),
    "PriorityQueue": through(queue.PriorityQueue, "put", "get", 1),
    "SimpleQueue": through(lambda: queue.SimpleQueue(), "put", "get", 1),
    "Event": through(threading.Event, "set", "wait"),
    "Semaphore": through(lambda: threading.Semaphore(0), "release", "acquire"),
    "Barrier": through(lambda: threading.Barrier(2), "wait", "wait"),
}


@pytest.mark.parametrize("primitive", PRIMITIVES)
def test_what_is_passed_on_is_ordered(primitive: str) -> None:
    assert races(PRIMITIVES[primitive]) == []


def test_a_variable_that_is_polled_is_not_seen() -> None:
    # The stated limit, and the proof that the tests beside this one can fail.
    told: list[int] = []

    def be_told() -> None:
        deadline = time.monotonic() + LIMIT_S
        while not told and time.monotonic() < deadline:
            time.sleep(0.001)

    assert len(races(passed_on(lambda: told.append(1), be_told))) == 1


def test_passing_on_without_waiting_for_the_device_is_a_race() -> None:
    def body(program: Program) -> None:
        items: queue.Queue[int] = queue.Queue()

        def first() -> None:
            with torch.fake.stream(program.one):
                program.buffer.add_(1)
            items.put(1)

        def then() -> None:
            items.get(timeout=LIMIT_S)
            program.then()

        in_threads(first, then)

    assert [race.kind for race in races(body)] == ["read-after-write"]


def test_an_item_carries_what_was_known_when_it_was_put() -> None:
    def body(program: Program) -> None:
        items: queue.Queue[int] = queue.Queue()
        second = _raw_event()

        def first() -> None:
            items.put(1)
            program.first()
            items.put(2)
            second.release()

        def then() -> None:
            second.acquire()  # so that the second item is there, by means that nobody sees
            items.get(timeout=LIMIT_S)
            program.then()

        in_threads(first, then)

    assert len(races(body)) == 1


def unordered(before: Callable[[], Any], after: Callable[[], Any]) -> Callable[[Program], None]:
    """Do two things one after the other that make no order, in two threads."""
    done = _raw_event()
    return passed_on(
        lambda: (before(), done.release()),
        lambda: (done.acquire(), after()),
    )


def test_two_threads_that_put_are_not_ordered() -> None:
    def body(program: Program) -> None:
        items: queue.Queue[int] = queue.Queue()
        unordered(lambda: items.put(1), lambda: items.put(2))(program)

    assert len(races(body)) == 1


def test_who_sets_an_event_does_not_come_after_who_looked_at_it() -> None:
    def body(program: Program) -> None:
        event = threading.Event()
        unordered(lambda: event.wait(0), event.set)(program)

    assert len(races(body)) == 1


def test_an_event_that_is_polled() -> None:
    def body(program: Program) -> None:
        event, done = threading.Event(), _raw_event()

        def be_told() -> None:
            done.acquire()
            assert event.is_set()

        def tell() -> None:
            event.set()
            done.release()

        passed_on(tell, be_told)(program)

    assert races(body) == []


def test_entering_a_condition_older_than_the_trace() -> None:
    condition, done = threading.Condition(), _raw_event()

    def enter() -> None:
        with condition:
            pass

    def enter_first() -> None:
        enter()
        done.release()

    def enter_then() -> None:
        done.acquire()
        enter()

    assert races(passed_on(enter_first, enter_then)) == []


def _raw_event() -> Any:
    lock = _handover._thread.allocate_lock()
    lock.acquire()
    return lock


def test_starting_and_joining_a_thread() -> None:
    def body(program: Program) -> None:
        program.first()
        thread = threading.Thread(target=program.then)
        thread.start()
        thread.join(LIMIT_S)
        program.first()

    assert races(body) == []


def test_a_thread_that_is_not_joined() -> None:
    def body(program: Program) -> None:
        done = _raw_event()

        def work() -> None:
            program.then()
            done.release()

        thread = threading.Thread(target=work)
        thread.start()
        done.acquire()
        program.first()
        thread.join(LIMIT_S)

    assert len(races(body)) == 1


@pytest.mark.parametrize("make", ["Lock", "RLock", "Condition"])
def test_critical_sections(make: str) -> None:
    def body(program: Program) -> None:
        lock = getattr(threading, make)()

        def work(stream: torch.Stream) -> None:
            for _ in range(4):
                with lock:
                    program.work(stream)

        in_threads(lambda: work(program.one), lambda: work(program.other))

    assert races(body) == []


@pytest.mark.parametrize("locked", [True, False])
def test_a_condition_older_than_the_trace(locked: bool) -> None:
    condition = threading.Condition()
    ready: list[int] = []

    def tell() -> None:
        with condition:
            ready.append(1)
            condition.notify_all()

    def be_told() -> None:
        with condition:
            assert condition.wait_for(lambda: ready, LIMIT_S)

    def unseen() -> None:
        deadline = time.monotonic() + LIMIT_S
        while not ready and time.monotonic() < deadline:
            time.sleep(0.001)

    assert len(races(passed_on(tell, be_told if locked else unseen))) == (0 if locked else 1)


def test_a_pool_of_threads() -> None:
    def body(program: Program) -> None:
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            program.first()
            pool.submit(program.then).result(LIMIT_S)
            program.first()
            concurrent.futures.wait([pool.submit(program.then)], LIMIT_S)
            program.first()
            list(pool.map(program.work, [program.other]))
            program.first()
            for future in concurrent.futures.as_completed([pool.submit(program.then)], LIMIT_S):
                future.result()
                program.first()

    assert races(body) == []


def test_two_tasks_of_a_pool_are_not_ordered() -> None:
    def body(program: Program) -> None:
        begun, done = _raw_event(), _raw_event()

        def first() -> None:
            begun.acquire()  # so that there are two threads
            program.first()
            done.release()

        def then() -> None:
            begun.release()
            done.acquire()
            program.then()

        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            concurrent.futures.wait([pool.submit(first), pool.submit(then)], LIMIT_S)

    assert len(races(body)) == 1


def test_a_task_of_a_pool_is_not_ordered_before_later_submissions() -> None:
    def body(program: Program) -> None:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            done = _raw_event()

            def work() -> None:
                program.first()
                done.release()

            pool.submit(work)
            done.acquire()
            pool.submit(int)
            program.then()

    assert len(races(body)) == 1


def test_waiting_until_a_queue_is_worked_off() -> None:
    def body(program: Program) -> None:
        items: queue.Queue[int | None] = queue.Queue()

        def work() -> None:
            while items.get(timeout=LIMIT_S) is not None:
                program.then()
                items.task_done()

        thread = threading.Thread(target=work)
        thread.start()
        for item in range(3):
            items.put(item)
        items.join()
        program.first()
        items.put(None)
        thread.join(LIMIT_S)

    assert races(body) == []


class TestBackward:
    """Autograd works on threads of its own."""

    def gradient(self, program: Program, hook: Callable[[], None] | None = None) -> torch.Tensor:
        weight = torch.ones(64, device="fake", requires_grad=True)
        torch.fake.current_stream().synchronize()
        with torch.enable_grad():
            product = weight * 2
            total = product.sum()
        if hook is not None:
            called = hook
            product.register_hook(lambda _: called())
        total.backward()
        assert weight.grad is not None
        return weight.grad

    def test_what_the_caller_waited_for_is_known_to_its_hooks(self) -> None:
        def body(program: Program) -> None:
            program.first()
            self.gradient(program, program.then)

        assert races(body) == []

    def test_what_a_hook_waited_for_is_known_to_the_caller(self) -> None:
        def body(program: Program) -> None:
            self.gradient(program, program.then)
            program.first()

        assert races(body) == []

    def test_what_another_thread_waited_for_is_not(self) -> None:
        def body(program: Program) -> None:
            done = _raw_event()

            def first() -> None:
                program.first()
                done.release()

            def then() -> None:
                done.acquire()
                self.gradient(program, program.then)

            in_threads(first, then)

        assert len(races(body)) == 1

    def test_two_passes_at_once(self) -> None:
        def body(program: Program) -> None:
            def work(stream: torch.Stream) -> None:
                with torch.fake.stream(stream):
                    for _ in range(5):
                        self.gradient(program).mul_(2)
                    stream.synchronize()

            in_threads(lambda: work(program.one), lambda: work(program.other))

        assert races(body) == []

    def test_a_backward_within_a_backward(self) -> None:
        def body(program: Program) -> None:
            program.first()

            def again() -> None:
                program.then()
                self.gradient(program, program.first)

            self.gradient(program, again)
            program.then()

        assert races(body) == []


def test_nothing_is_left_behind() -> None:
    before = {(id(owner), name): owner.__dict__[name] for owner, name, _ in _handover._PATCHES}
    engine = torch.autograd.Variable._execution_engine
    races(PRIMITIVES["Queue"])
    for owner, name, _ in _handover._PATCHES:
        assert owner.__dict__[name] is before[id(owner), name]
    assert torch.autograd.Variable._execution_engine is engine


def test_what_was_made_meanwhile_works_on() -> None:
    made: list[Any] = []
    races(lambda _: made.extend((threading.Lock(), threading.RLock(), queue.SimpleQueue())))
    lock, again, items = made
    with lock, again, again:
        assert lock.locked()
    assert not lock.acquire(timeout=0.01) or lock.release() is None
    items.put(5)
    assert items.get(timeout=1) == 5
    with pytest.raises(queue.Empty):
        items.get_nowait()


def test_tokens_are_used_again() -> None:
    def body(program: Program) -> None:
        items: queue.Queue[int] = queue.Queue()
        for _ in range(100):
            items.put(1)
            items.get()

    seen: set[int] = set()
    fake.start_trace(sink=lambda records: seen.update(r[3] for r in records if r[0] == "release"))
    body(Program())
    fake.stop_trace()
    assert 1 <= len(seen) <= 3


class TestBrief:
    """A brief trace has the races of the whole one."""

    def both(self, body: Callable[[Program], None]) -> list[list[tuple[str, str]]]:
        return [
            [(race.kind, race.missing_edge) for race in races(body, brief=brief)]
            for brief in (True, False)
        ]

    @pytest.mark.parametrize("waits", [True, False])
    def test_of_a_training_step(self, waits: bool) -> None:
        def body(program: Program) -> None:
            torch.manual_seed(0)
            model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 2)).to("fake")
            for stream in (program.one, program.other):
                if waits:
                    stream.wait_stream(torch.fake.current_stream())
                with torch.fake.stream(stream):
                    model(torch.ones(4, 8, device="fake")).sum().backward()
                if waits:
                    torch.fake.current_stream().wait_stream(stream)

        def without_stream_numbers(text: str) -> str:
            return "".join(letter for letter in text if not letter.isdigit())

        brief, whole = (
            [(kind, without_stream_numbers(edge)) for kind, edge in found]
            for found in self.both(body)
        )
        assert brief == whole
        assert bool(brief) != waits

    @pytest.mark.parametrize("seed", range(8))
    def test_of_random_programs(self, seed: int) -> None:
        def run(brief: bool) -> list[tuple[object, ...]]:
            rng = random.Random(seed)
            analyser = Analyser()
            torch.fake.synchronize()
            fake.start_trace(brief=brief, sink=analyser.feed)
            streams = [torch.fake.Stream() for _ in range(3)]
            kept: list[torch.Tensor] = []

            def step() -> None:
                for _ in range(60):
                    with torch.fake.stream(rng.choice(streams)):
                        if not kept or rng.random() < 0.4:
                            kept.append(torch.ones(4, device="fake") * 2)
                        elif rng.random() < 0.6:
                            rng.choice(kept).add_(rng.choice(kept))
                        elif rng.random() < 0.2:
                            rng.choice(kept).record_stream(rng.choice(streams))
                        else:
                            del kept[rng.randrange(len(kept))]
                    if rng.random() < 0.5:
                        rng.choice(streams).wait_stream(rng.choice(streams))
                    if rng.random() < 0.05:
                        rng.choice(streams).synchronize()

            for number in range(6):
                if number % 2:
                    in_threads(step)
                else:
                    step()
            fake.stop_trace()
            return [
                (race.kind, race.first.name, race.first.source, race.second.source, race.count)
                for race in analyser.races()
            ]

        brief, whole = run(True), run(False)
        assert brief == whole
        assert brief

    def test_counts_every_operation(self) -> None:
        counts = []
        for brief in (True, False):
            analyser = Analyser()
            fake.start_trace(brief=brief, sink=analyser.feed)
            for _ in range(200):
                torch.zeros(4, device="fake").add_(1).mul_(2)
            fake.stop_trace()
            counts.append(analyser.operations)
        assert counts[0] == counts[1] >= 600


class TestStrides:
    def races_of(self, first: Any, then: Any) -> list[str]:
        def body(program: Program) -> None:
            matrix = torch.zeros(8, 8, device="fake")
            torch.fake.synchronize()
            for stream, view in ((program.one, first), (program.other, then)):
                with torch.fake.stream(stream):
                    view(matrix).add_(1)

        return [race.kind for race in races(body)]

    @pytest.mark.parametrize(
        ("first", "then", "race"),
        [
            (lambda m: m[:, 1], lambda m: m[:, 2], False),
            (lambda m: m[:, 1], lambda m: m[:, 1], True),
            (lambda m: m[:, :4], lambda m: m[:, 4:], False),
            (lambda m: m[:, :5], lambda m: m[:, 4:], True),
            (lambda m: m[:, 1], lambda m: m[3], True),
            (lambda m: m[::2], lambda m: m[1::2], False),
            (lambda m: m[::2, ::2], lambda m: m[::2, 1::2], False),
            (lambda m: m[::2, ::3], lambda m: m[::3, ::2], True),
            (lambda m: m.t()[1], lambda m: m.t()[2], False),
            (lambda m: m.diagonal(), lambda m: m[0, 1:], False),
            (lambda m: m.diagonal(), lambda m: m[:, 0], True),
        ],
    )
    def test_views_race_where_they_share_an_element(
        self, first: Any, then: Any, race: bool
    ) -> None:
        assert bool(self.races_of(first, then)) == race


def test_the_device_and_the_helper_give_a_view_one_form() -> None:
    rng = random.Random(5)
    base = torch.zeros(600, device="fake")
    views, expected = [], []
    for _ in range(200):
        sizes = [rng.randint(1, 5) for _ in range(rng.randint(0, 3))]
        strides = [rng.randint(1, 30) for _ in sizes]
        view = base.as_strided(sizes, strides, rng.randint(0, 100))
        views.append(view)
        expected.append(access(1, int(view.storage_offset()), sizes, strides, 4, READ))
    fake.start_trace()
    for view in views:
        view.sum()
    launches = [r for r in fake.stop_trace() if r[0] == "launch"]
    found = [next(a for a in r[5] if a[3] == READ) for r in launches]
    assert [(1, *each[1:]) for each in found] == expected


def test_an_allocation_that_fails_ends_nothing() -> None:
    def body(program: Program) -> None:
        with pytest.raises(RuntimeError, match=r"memory|alloc"):
            torch.empty(1 << 60, dtype=torch.uint8, device="fake")
        with torch.fake.stream(program.one):
            program.buffer.add_(1)
        with torch.fake.stream(program.other):
            program.buffer.mul_(2)

    assert [race.kind for race in races(body)] == ["read-after-write"]

"""The conformance suite as tests: what ``pytest --accel-backend NAME`` adds.

Imported only with that option. The properties are checked in one process beside pytest's, which may
hang or crash without harm to other tests.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from accel_streams import _registry
from accel_streams._errors import BackendError
from accel_streams.conformance._apart import Findings, check_apart
from accel_streams.conformance._gates import Level
from accel_streams.conformance._messages import Subject, Task
from accel_streams.conformance._property import Property, properties
from accel_streams.conformance._results import Outcome, Result

__all__ = ["MARKER", "ConformancePlugin"]

MARKER = "accel_conformance: the properties that --accel-backend adds; -m selects them alone."

# How pytest tells them in its progress; what passes or fails it tells itself.
_TOLD = {
    Result.UNVERIFIED.value: ("unverified", "u", "UNVERIFIED"),
    Result.DECLARED.value: ("declared", "d", "DECLARED"),
    Result.INCONCLUSIVE.value: ("inconclusive", "I", "INCONCLUSIVE"),
}


class ConformancePlugin:
    """Adds a test for each property of the backend ``name``.

    A property that failed or was inconclusive fails; one that is unverified is skipped, one that
    the backend declares not to hold is an expected failure. Each has a count of its own in pytest's
    last line. Raise UsageError when there is no such backend.
    """

    def __init__(self, name: str) -> None:
        if ":" not in name:
            name = _registry.normalise(name)
            try:
                _registry.find(name, _registry.registered())
            except BackendError as exc:
                raise pytest.UsageError(f"--accel-backend: {exc}") from exc
        self._name = name
        self._checking: _Checking | None = None

    @pytest.hookimpl(tryfirst=True)  # Before -k and -m choose among what there is.
    def pytest_collection_modifyitems(
        self, session: pytest.Session, items: list[pytest.Item]
    ) -> None:
        """Put the properties after the tests."""
        name = f"accel-streams check {self._name}"
        collector = _Collector.from_parent(session, name=name, nodeid=name)
        items += [
            _Item.from_parent(collector, name=f"{each.id} {each.name}", checked=each, plugin=self)
            for each in properties()
        ]

    def pytest_report_collectionfinish(self, items: Sequence[pytest.Item]) -> str:
        """Tell how many properties there are besides the tests that were collected."""
        count = sum(isinstance(item, _Item) for item in items)
        return f"properties of {self._name} to check: {count}"

    def outcome(self, item: _Item) -> tuple[Outcome, Level]:
        """Return what became of a property, and the level of the gates; begin with the first."""
        if self._checking is None:
            chosen = [each.checked for each in item.session.items if isinstance(each, _Item)]
            self._checking = _Checking(self._name, chosen)
        return self._checking.outcome(item.checked.id)

    def pytest_sessionfinish(self) -> None:
        """End the checking that nobody asks for any more, as after -x."""
        if self._checking is not None:
            self._checking.stop()

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Iterator[None]:
        """Note the result in the report, which may travel between processes."""
        made: Any = yield
        if isinstance(item, _Item) and item.result is not None:
            report = made.get_result()
            report.accel_result, report.accel_gate = item.result.value, item.gate
            report.accel_told = f"{item.name}: {item.detail}"

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: Any) -> tuple[str, str, str] | None:
        """Count what neither passed nor failed under its own name."""
        return _TOLD.get(getattr(report, "accel_result", "")) if report.when == "call" else None

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Tell what was not found out, and why."""
        reports = [
            report
            for category in terminalreporter.stats.values()
            for report in category
            if getattr(report, "accel_result", None) and report.when == "call"
        ]
        if not reports:
            return
        terminalreporter.section(f"accel-streams check {self._name}")
        for result in Result:
            found = [report for report in reports if report.accel_result == result.value]
            if not found:
                continue
            terminalreporter.write_line(f"{len(found)} {result.value}")
            if result is not Result.PASSED:
                for report in found:
                    terminalreporter.write_line(f"  {report.accel_told}")
        terminalreporter.write_line(reports[0].accel_gate)


class _Collector(pytest.Collector):
    def collect(self) -> Sequence[pytest.Item]:
        return []


class _Item(pytest.Item):
    """One property."""

    def __init__(self, *, checked: Property, plugin: ConformancePlugin, **node: Any) -> None:
        super().__init__(**node)
        self.checked = checked
        self._plugin = plugin
        self.result: Result | None = None
        self.detail = ""
        self.gate = ""
        self.add_marker("accel_conformance")

    def runtest(self) -> None:
        outcome, level = self._plugin.outcome(self)
        self.result, self.detail = outcome.result, outcome.detail
        self.gate = f"gate {level}: {level.meaning}"
        if outcome.result is Result.UNVERIFIED:
            pytest.skip(outcome.detail)
        elif outcome.result is Result.DECLARED:
            pytest.xfail(outcome.detail)
        elif outcome.result is not Result.PASSED:
            raise _NotHolding(f"{self.checked.summary}\n{outcome.result.value}: {outcome.detail}")

    def repr_failure(self, excinfo: Any, *args: Any) -> Any:
        if isinstance(excinfo.value, (_NotHolding, BackendError)):
            return str(excinfo.value)  # Where in this package that was found out is no matter.
        return super().repr_failure(excinfo, *args)

    def reportinfo(self) -> tuple[Any, None, str]:
        # In the place of a file, so that the progress of the properties has a line of its own.
        place = self.parent.name if self.parent is not None else ""
        return self.path / place, None, self.name


class _NotHolding(Exception):
    """A property failed, or was inconclusive."""


class _Stop(Exception):
    """Nobody asks any more."""


class _Checking:
    """Checks properties in a thread, which waits for the process that does it."""

    def __init__(self, name: str, chosen: Sequence[Property]) -> None:
        self._subject = Subject(name)
        self._tasks = [Task(self._subject, each.id) for each in chosen]
        self._outcomes: dict[str, Outcome] = {}
        self._findings = Findings()
        self._error: BaseException | None = None
        self._stopped = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="accel-streams check", daemon=True)
        self._thread.start()

    def outcome(self, id: str) -> tuple[Outcome, Level]:
        with self._changed:
            self._changed.wait_for(lambda: id in self._outcomes or self._error is not None)
            if id in self._outcomes:
                return self._outcomes[id], self._findings.levels[self._subject]
            assert self._error is not None
            raise self._error

    def stop(self) -> None:
        with self._changed:
            self._stopped = True

    def _run(self) -> None:
        try:
            check_apart(self._tasks, finished=self._finished, findings=self._findings)
        except BaseException as exc:  # Raised by each property that has no result.
            with self._changed:
                self._error = exc
                self._changed.notify_all()

    def _finished(self, task: Task, outcome: Outcome) -> None:
        with self._changed:
            if self._stopped:
                raise _Stop
            self._outcomes[task.property_id] = outcome
            self._changed.notify_all()

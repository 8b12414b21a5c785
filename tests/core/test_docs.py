"""What README.md and docs/ say is so: examples run, commands and settings exist, links lead on.

An HTML comment before a fenced block says what it is: ``example: NAME`` is a program, ``pytest:
NAME`` a test file, ``command: NAME`` a command with its output, ``file: NAME`` part of something
that a test puts together. ``output: NAME`` is what the example of that name prints.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from accel_streams import _settings
from accel_streams.cli import main
from accel_streams.cli._commands import COMMANDS
from ports import free_port

ROOT = Path(__file__).parents[2]
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
}
TRAIN = ROOT / "tests" / "deepspeed" / "scripts" / "train_plain.py"

# Running an example may have to build the simulated device first.
LIMIT = 300

_MARK = re.compile(r"<!-- (example|pytest|command|file|output): (\S+) -->")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: the page it is on, what it is marked as, its language and its text."""

    page: str
    role: str
    name: str
    language: str
    text: str


def _blocks(page: str) -> list[Block]:
    blocks = []
    fence: list[str] | None = None
    language, before = "", ""
    for line in PAGES[page].splitlines():
        if fence is not None:
            if line == "```":
                mark = _MARK.fullmatch(before)
                role, name = (mark[1], mark[2]) if mark else ("", "")
                blocks.append(Block(page, role, name, language, "\n".join(fence) + "\n"))
                fence, before = None, ""
            else:
                fence.append(line)
        elif line.startswith("```"):
            fence, language = [], line.removeprefix("```")
        else:
            before = line
    assert fence is None, f"{page}: a fence is not closed"
    return blocks


BLOCKS = [block for page in PAGES for block in _blocks(page)]


def named(role: str) -> dict[str, Block]:
    return {block.name: block for block in BLOCKS if block.role == role}


EXAMPLES, OUTPUTS = named("example"), named("output")


def plain(text: str) -> list[str]:
    """Return the words: where a line breaks depends on how long the paths in it are."""
    return text.split()


def run(words: list[str], folder: Path, **variables: str) -> str:
    """Run a command in ``folder``, its modules importable; return what it printed."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]),
        **variables,
    }
    done = subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT
    )
    output = done.stdout.replace(f"{folder}{os.sep}", "")
    assert done.returncode == 0, f"{output}\n{done.stderr}"
    return output


def write(block: Block, folder: Path, change: Callable[[str], str] = lambda text: text) -> Path:
    path = folder / f"{block.name}.py"
    path.write_text(change(block.text), encoding="utf-8")
    return path


class TestExamples:
    pytestmark = pytest.mark.timeout(LIMIT + 20)

    def test_every_program_runs_here_and_shows_what_it_prints(self) -> None:
        for block in BLOCKS:
            if block.language == "python":
                assert block.role in ("example", "pytest", "file"), block
            if block.role in ("example", "pytest"):
                assert OUTPUTS[block.name].page == block.page
        assert set(OUTPUTS) == {*EXAMPLES, *named("pytest")}
        marked = [block for block in BLOCKS if block.role]
        assert len({(block.role, block.name) for block in marked}) == len(marked)
        marks = sum(len(_MARK.findall(text)) for text in PAGES.values())
        assert marks == len(marked), "a mark has no block directly after it"

    @pytest.mark.parametrize("name", EXAMPLES)
    def test_example(self, name: str, tmp_path: Path) -> None:
        if name == "install":
            pytest.importorskip("deepspeed")
        path = write(EXAMPLES[name], tmp_path)
        assert plain(run([sys.executable, path.name], tmp_path)) == plain(OUTPUTS[name].text)

    def test_the_tests_of_ones_own_code(self, tmp_path: Path) -> None:
        path = write(named("pytest")["test_overlap"], tmp_path)
        output = run([sys.executable, "-m", "pytest", "-q", path.name], tmp_path)
        assert OUTPUTS["test_overlap"].text.strip() in output.splitlines()[-1]

    def test_the_schedules_that_find_the_missing_wait(self, tmp_path: Path) -> None:
        """Docs/fake-device.md says which schedules fail without either wait."""
        sentence = re.search(
            r"Without the first `wait_stream` the schedules (.*?) fail; "
            r"without the second one all but (.*?) do\.",
            PAGES["docs/fake-device.md"],
        )
        assert sentence is not None
        first, second = (set(re.findall(r"`([\w-]+)`", part)) for part in sentence.groups())
        program = named("pytest")["test_overlap"].text
        waits = re.findall(r".*\.wait_stream\(.*\n", program)
        assert len(waits) == 2
        tail = (
            "\nif __name__ == '__main__':\n"
            "    for number, schedule in enumerate(fake.SCHEDULES):\n"
            "        try:\n"
            "            test_the_result_is_the_same_under_every_schedule(number)\n"
            "        except AssertionError:\n"
            "            print(schedule)\n"
        )
        for number, wait in enumerate(waits):
            path = tmp_path / f"without_{number}.py"
            path.write_text(program.replace(wait, "") + tail, encoding="utf-8")
        from accel_streams.fake import SCHEDULES

        assert set(plain(run([sys.executable, "without_0.py"], tmp_path))) == first
        failing = set(plain(run([sys.executable, "without_1.py"], tmp_path)))
        assert failing == set(SCHEDULES) - second

    def test_without_the_tracker_the_bucket_is_wrong(self, tmp_path: Path) -> None:
        def remove_calls(text: str) -> str:
            return re.sub(r"^ +tracker\..*\n", "", text, flags=re.MULTILINE)

        path = write(EXAMPLES["tracked_bucket"], tmp_path, remove_calls)
        assert run([sys.executable, path.name], tmp_path) != OUTPUTS["tracked_bucket"].text


@pytest.fixture
def nova(tmp_path: Path) -> Path:
    """Give a folder with the vendor's distribution of docs/vendors.md, as if installed."""
    files = named("file")
    for name in ("nova_backend.py", "torch_nova.py"):
        (tmp_path / name).write_text(files[name].text, encoding="utf-8")
    entry = re.search(
        r'^\[project\.entry-points\."(.+)"\]\n(\w+) = "(.+)"$',
        files["pyproject.toml"].text,
        re.MULTILINE,
    )
    assert entry is not None
    group, name, value = entry.groups()
    info = tmp_path / "torch_nova-2.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch-nova\nVersion: 2.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {value}\n")
    return tmp_path


class TestVendorsBackend:
    pytestmark = pytest.mark.timeout(LIMIT + 20)

    def test_is_short(self) -> None:
        assert len(named("file")["nova_backend.py"].text.splitlines()) < 15

    def test_is_listed_as_shown(self, nova: Path) -> None:
        command, _, output = named("command")["list"].text.partition("\n")
        words = command.removeprefix("$ ").split()
        assert words[0] == "accel-streams"
        printed = run([sys.executable, "-m", "accel_streams.cli", *words[1:]], nova)
        assert printed == output

    def test_trains(self, nova: Path) -> None:
        pytest.importorskip("deepspeed")
        output = run(
            [sys.executable, str(TRAIN)],
            nova,
            DS_ACCELERATOR="accel_streams:nova",
            RANK="0",
            LOCAL_RANK="0",
            WORLD_SIZE="1",
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(free_port()),
        )
        assert "trained on nova:0 rank 0 loss is finite True" in output


@pytest.fixture(scope="module")
def helps() -> dict[str, str]:
    """Give the help page of every subcommand."""
    pages = {}
    for name in COMMANDS:
        page = io.StringIO()
        with contextlib.redirect_stdout(page), pytest.raises(SystemExit):
            main([name, "--help"])
        pages[name] = page.getvalue()
    return pages


def code(page: str) -> list[str]:
    """Return what is shown as code: spans, and the lines of blocks that are not output."""
    spans = []
    prose = re.sub(r"^```.*?^```$", "", PAGES[page], flags=re.MULTILINE | re.DOTALL)
    spans += re.findall(r"`([^`\n]+)`", prose)
    for block in _blocks(page):
        if block.language == "console":
            spans += [
                line.removeprefix("$ ") for line in block.text.splitlines() if line[:2] == "$ "
            ]
        elif block.language == "python":
            spans += block.text.splitlines()
    return spans


def commands(page: str) -> list[list[str]]:
    """Return the words of each accel-streams command on a page, tox's demo among them."""
    found = []
    for span in code(page):
        for part in span.split(" && "):
            part = re.sub(r"^(\w+=\S+ )+", "", part)
            part = re.sub(r"^tox run -e demo(?: -- ?)?", "accel-streams demo ", part)
            if part.startswith("accel-streams "):
                found.append(shlex.split(part)[1:])
    return found


@pytest.mark.parametrize("page", PAGES)
def test_commands_and_options_exist(page: str, helps: dict[str, str]) -> None:
    for subcommand, *words in commands(page):
        assert subcommand in COMMANDS, subcommand
        mine = words[: words.index("--")] if "--" in words else words
        for option in (word.partition("=")[0] for word in mine if word.startswith("-")):
            assert re.search(rf"{option}\b", helps[subcommand]), f"{subcommand} {option}"
    everything = " ".join(helps.values())
    for span in code(page):
        if span.startswith("--"):
            assert re.search(rf"{span.split()[0]}\b", everything), span


def test_every_command_is_documented() -> None:
    named_somewhere = {words[0] for page in PAGES for words in commands(page)}
    assert named_somewhere == set(COMMANDS)


@pytest.fixture(scope="module")
def sources() -> str:
    """Give all that may read a variable or define a constant."""
    paths = [*(ROOT / "accel_streams").rglob("*.py"), *(ROOT / "backends").glob("*.py")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in [*paths, ROOT / "tox.ini"])
    return text + named("file")["nova_backend.py"].text


_UPPER = re.compile(r"\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\b")


@pytest.mark.parametrize("page", PAGES)
def test_variables_exist(page: str, sources: str) -> None:
    for span in code(page):
        for name in _UPPER.findall(span):
            ours = name.startswith("ACCEL_STREAMS_")
            assert name in _settings.VARIABLES or (not ours and name in sources), name


READERS: dict[str, Callable[[], Any]] = {
    "DS_ACCELERATOR": _settings.ds_accelerator,
    "ACCEL_STREAMS_ZERO": _settings.zero_mode,
    "ACCEL_STREAMS_PLUGINS": _settings.plugins,
    "ACCEL_STREAMS_SCHEDULE": _settings.schedule,
    "ACCEL_STREAMS_SEED": _settings.seed,
    "ACCEL_STREAMS_RACES": _settings.races_mode,
}


def test_every_variable_is_documented() -> None:
    assert set(READERS) == set(_settings.VARIABLES)
    table = {name for span in code("README.md") for name in _UPPER.findall(span)}
    assert set(_settings.VARIABLES) <= table


@pytest.mark.parametrize("page", PAGES)
def test_values_of_variables_mean_something(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for span in code(page):
        for name, value in re.findall(r"\b([A-Z_]+)=(\S+)", span):
            if name in READERS:
                monkeypatch.setenv(name, value)
                READERS[name]()


@pytest.mark.parametrize(
    ("variable", "values"),
    [
        ("ACCEL_STREAMS_ZERO", _settings.ZERO_MODES),
        ("ACCEL_STREAMS_RACES", _settings.RACES_MODES),
    ],
)
def test_the_table_has_all_values(variable: str, values: tuple[str, ...]) -> None:
    (row,) = re.findall(rf"^\| `{variable}` \| (.*) \|$", PAGES["README.md"], re.MULTILINE)
    assert re.findall(r"`(\w+)`", row) == list(values)


def test_every_schedule_is_described() -> None:
    section = PAGES["docs/fake-device.md"].partition("\n## Schedules\n")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `([\w-]+)` \|", section, re.MULTILINE) == list(_settings.SCHEDULES)


@pytest.mark.parametrize("page", PAGES)
def test_names_of_the_simulated_device_exist(page: str) -> None:
    from accel_streams import fake
    from accel_streams.fake._device import make_module

    module = make_module()
    for span in code(page):
        for name in re.findall(r"(?<!torch\.)(?<![\w.])fake\.([a-z_A-Z]+)", span):
            assert name in fake.__all__, name
        for name in re.findall(r"torch\.fake\.([a-z_A-Z]+)", span):
            assert hasattr(module, name), name


def test_every_edge_has_its_line() -> None:
    from accel_streams.deepspeed._ordering import EDGES

    assert re.findall(
        r"^\| ((?:bucket|gradient|partition): \S+) \|", PAGES["docs/how-it-works.md"], re.MULTILINE
    ) == list(EDGES)


def test_the_protocol_is_described_whole() -> None:
    from accel_streams._registry import _MEMBERS

    table = PAGES["docs/backends.md"].partition("\n## The protocol\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    described = {name for row in rows for name in re.findall(r"`(\w+)", row)}
    assert {*_MEMBERS, "api_version"} <= described


def test_every_kind_of_record_is_described() -> None:
    from accel_streams.races import FORMAT_VERSION
    from accel_streams.races._records import FIELDS

    page = PAGES["docs/trace-format.md"]
    rows = re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)
    described = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert set(FIELDS) <= described
    assert f"This is **version {FORMAT_VERSION}**." in page


def test_the_figures_of_the_gpus_are_those_of_the_file() -> None:
    name = "benchmarks/results/cuda_correctness.json"
    (row,) = (line for line in PAGES["README.md"].splitlines() if f"({name})" in line)
    document = json.loads((ROOT / name).read_text(encoding="utf-8"))
    machine, cases = document["machine"], document["cases"]
    wrong = [case["off"]["wrong"] for case in cases if case["off"]["wrong"]]
    for said in (
        f"{machine['gpus']} {machine['gpu']}",
        f"torch {machine['torch'].partition('+')[0]}",
        f"DeepSpeed {machine['deepspeed']}",
        f"{document['settings']['steps']} steps",
        f"{len(wrong)} of {len(cases)} settings",
        f"up to {max(wrong):,} of {cases[0]['off']['elements']:,}",
        f"all {len(cases)} were equal",
    ):
        assert said in row, said
    assert not any(case["track"]["wrong"] for case in cases)
    assert not any(case[mode]["skipped_steps"] for case in cases for mode in ("off", "track"))


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, made as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    prose = re.sub(r"^```.*?^```$", "", PAGES[page], flags=re.MULTILINE | re.DOTALL)
    links = re.findall(r"\]\(([^)\s]+)\)", prose)
    for link in links:
        if re.match(r"https?://", link):
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target.read_text(encoding="utf-8")), link
    if page == "README.md":
        assert {f"docs/{name}" for name in os.listdir(ROOT / "docs")} <= set(links)


def test_the_page_of_figures_is_what_the_results_say() -> None:
    import page

    assert PAGES["docs/benchmarks.md"] == page.page()

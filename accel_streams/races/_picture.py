"""The timeline picture: streams as lanes, one buffer's operations, and the pair that races."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from accel_streams._errors import AccelStreamsError
from accel_streams.races._files import temporary_beside
from accel_streams.races._race import Race, StreamNames, short_name, stream_label
from accel_streams.races._records import Record, is_collective
from accel_streams.races._scene import Scene, choose_scene, focus_of
from accel_streams.races._timeline import Slice, read_timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_timeline"]

_COPY: Final = "#4e79a7"
_REDUCTION: Final = "#e39b2d"
_OTHER: Final = "#76a89a"
_MEMORY: Final = "#8c7aa9"
_PAIR: Final = "#d62728"
_QUIET: Final = "#e3e3e3"
_EDGE: Final = "#8a8a8a"
_BOX: Final = 0.46
_SWARM: Final = 0.2
_LANE_INCHES: Final = 1.05
_UNIT_INCHES: Final = 0.42
_TOP_INCHES: Final = 1.0
_BOTTOM_INCHES: Final = 0.8


def draw_timeline(
    path: str | os.PathLike[str],
    records: Iterable[Record],
    races: Sequence[Race] = (),
    stream_names: StreamNames | None = None,
    *,
    window: tuple[int, int] | None = None,
    buffer: str | None = None,
    device_type: str = "fake",
    title: str | None = None,
) -> None:
    """Draw the first of ``races`` as a PNG: who touches its buffer when, and the missing edge.

    With ``buffer``, the first race on the buffer of that name is drawn, or its accesses if there is
    none; without any races, the accesses to the buffer that most streams share. The window is
    chosen around the pair; ``window`` gives the first and last seq instead. ``path`` is replaced
    only when the picture is whole.

    Raise AccelStreamsError when matplotlib is not installed, or nothing in the trace touches the
    buffer.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as exc:
        raise AccelStreamsError(
            "drawing a timeline needs matplotlib, which is not installed. Run "
            "`python -m pip install matplotlib`, or write a trace for Perfetto instead."
        ) from exc
    names = stream_names or {}
    race = next((race for race in races if buffer in (None, race.buffer)), None)
    pair = () if race is None else (race.first.seq, race.second.seq)
    timeline = read_timeline(records, pair)
    block = focus_of(timeline, race, buffer)
    scene = None if block is None else choose_scene(timeline, block, race, window)
    if scene is None:
        raise AccelStreamsError(
            f"no operation in the trace touches {buffer or 'a buffer'}, so there is nothing to "
            "draw. Record the trace over at least one step, and check the buffer's name."
        )
    width = scene.axis.positions[-1] + 1.5
    inches = max(8.5, min(_UNIT_INCHES * width + 2.2, 22.0))
    height = _LANE_INCHES * len(scene.lanes) + _TOP_INCHES + _BOTTOM_INCHES
    figure = Figure(figsize=(inches, height), dpi=130, facecolor="white")
    FigureCanvasAgg(figure)
    # Fixed margins in inches: room for the heading, the lanes' names and the legend.
    axes = figure.add_axes(
        (
            1.75 / inches,
            _BOTTOM_INCHES / height,
            1 - 1.95 / inches,
            1 - (_TOP_INCHES + _BOTTOM_INCHES) / height,
        )
    )
    label = timeline.labels.get(scene.block) or (race.buffer if race else f"block {scene.block}")
    heading, explanation = _words(race, label)
    figure.text(
        0.2 / inches, 1 - 0.2 / height, title or heading, fontsize=13, fontweight="bold", va="top"
    )
    columns = int((inches - 0.4) * 13.5)
    figure.text(
        0.2 / inches,
        1 - 0.52 / height,
        "\n".join(textwrap.wrap(explanation, columns)),
        fontsize=9.5,
        va="top",
        color="#333333",
    )
    _draw_lanes(axes, scene, names, device_type, width)
    _draw_operations(axes, scene)
    _draw_edges(axes, scene)
    if race is not None:
        _draw_missing(axes, scene, race)
    _draw_legend(figure, scene, race is not None)
    with temporary_beside(path) as temporary:
        figure.savefig(temporary, format="png")


def _words(race: Race | None, label: str) -> tuple[str, str]:
    if race is None:
        return (
            f"No race on {label}",
            "Each access comes after all earlier ones that it conflicts with: follow the waits.",
        )
    heading = f"{race.kind} on {race.buffer}"
    said = race.consequence[0].upper() + race.consequence[1:]
    return heading, f"{said}. Missing: {race.missing_edge}.".replace("`", "")


def _draw_lanes(
    axes: Axes, scene: Scene, names: StreamNames, device_type: str, width: float
) -> None:
    for number in range(len(scene.lanes)):
        axes.axhline(number, color="#cfcfcf", linewidth=1, zorder=0)
        if number % 2:
            axes.axhspan(number - 0.5, number + 0.5, color="#f7f7f7", zorder=-1)
    axes.set_xlim(-0.8, width - 0.7)
    axes.set_ylim(len(scene.lanes) - 0.5, -0.5)
    labels = [
        "\n".join(textwrap.wrap(stream_label(lane, names, device_type), 18)) for lane in scene.lanes
    ]
    axes.set_yticks(range(len(scene.lanes)), labels, fontsize=10)
    axes.set_xticks([])
    axes.tick_params(length=0)
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)
    note = "device time \N{RIGHTWARDS ARROW} (order and overlap are true, lengths are not)"
    axes.set_xlabel(note, fontsize=8.5, color="#555555", loc="left", labelpad=2)
    if scene.cut is not None:
        start, end, count = scene.cut
        left, right = scene.axis.after(start), scene.axis.before(end)
        axes.axvspan(left + 0.15, right - 0.15, color="white", zorder=4)
        for edge in (left + 0.15, right - 0.15):
            axes.axvline(edge, color="#b0b0b0", linewidth=1, linestyle=(0, (4, 3)), zorder=4)
        axes.text(
            (left + right) / 2,
            _quiet_lane(scene),
            f"{count} more\noperations\non the buffer",
            ha="center",
            va="center",
            fontsize=8,
            color="#777777",
            zorder=5,
        )


def _quiet_lane(scene: Scene) -> int:
    """Return a lane that the missing edge doesn't cross, as far as there is one."""
    pair = [scene.lanes.index(each.stream) for each in (scene.first, scene.second) if each]
    last = len(scene.lanes) - 1
    return 0 if pair and max(pair) == last else last


def _color(each: Slice) -> str:
    if each.kind != "launch":
        return _MEMORY
    name = each.name.lower()
    if is_collective(name) or "reduce" in name or name.rpartition("::")[2].startswith("div"):
        return _REDUCTION
    return _COPY if "copy" in name else _OTHER


def _draw_operations(axes: Axes, scene: Scene) -> None:
    from matplotlib.patches import FancyBboxPatch, Rectangle

    for swarm in scene.others:
        left, right = scene.axis.before(swarm.start), scene.axis.after(swarm.end)
        y = scene.lanes.index(swarm.stream)
        axes.add_patch(
            Rectangle(
                (left, y - _SWARM / 2),
                right - left,
                _SWARM,
                facecolor=_QUIET,
                linewidth=0,
                zorder=1,
            )
        )
        if right - left > 1.1:
            axes.text(
                (left + right) / 2,
                y,
                f"{swarm.count}",
                ha="center",
                va="center",
                fontsize=7,
                color="#777777",
                zorder=2,
            )
    for each in scene.shown:
        left, right = scene.axis.span(each)
        y = scene.lanes.index(each.stream)
        racing = each in (scene.first, scene.second)
        axes.add_patch(
            FancyBboxPatch(
                (left + 0.08, y - _BOX / 2),
                max(right - left - 0.16, 0.1),
                _BOX,
                boxstyle="round,pad=0,rounding_size=0.12",
                facecolor=_PAIR if racing else _color(each),
                edgecolor="#7f0000" if racing else "white",
                linewidth=1.6 if racing else 0.8,
                zorder=6 if racing else 3,
            )
        )
        name = _box_name(each)
        fits = (right - left) / max(len(name), 1)
        axes.text(
            (left + right) / 2,
            y - 0.06,
            name,
            ha="center",
            va="center",
            fontsize=min(8.5, max(5.5, 40 * fits)),
            color="white",
            fontweight="bold" if racing else "normal",
            zorder=7,
        )
        axes.text(
            (left + right) / 2,
            y + 0.12,
            _box_line(each),
            ha="center",
            va="center",
            fontsize=6.2,
            color="white",
            zorder=7,
        )


def _box_name(each: Slice) -> str:
    if each.kind == "launch":
        return short_name(each.name).rpartition("::")[2]
    return "handed out" if each.kind == "alloc" else "reused"


def _box_line(each: Slice) -> str:
    if each.source is None or each.source[1] == 0:
        return "backward" if each.source is not None else ""
    return f"line {each.source[1]}"


def _draw_edges(axes: Axes, scene: Scene) -> None:
    for edge in scene.edges:
        start, end = scene.lanes.index(edge.recorded.stream), scene.lanes.index(edge.waited.stream)
        down = 1 if end > start else -1
        axes.annotate(
            "",
            xy=(scene.axis.before(edge.waited.end), end - down * _BOX / 2),
            xytext=(scene.axis.after(edge.recorded.start), start + down * _BOX / 2),
            arrowprops={
                "arrowstyle": "-|>,head_width=0.18,head_length=0.35",
                "color": _EDGE,
                "linewidth": 1.0,
                "shrinkA": 0,
                "shrinkB": 0,
            },
            zorder=2.5,
        )


def _draw_missing(axes: Axes, scene: Scene, race: Race) -> None:
    first, second = scene.first, scene.second
    if first is None or second is None:
        return
    y_first, y_second = scene.lanes.index(first.stream), scene.lanes.index(second.stream)
    down = 1 if y_second > y_first else -1
    x_first = scene.axis.span(first)[1] - 0.3
    x_second = scene.axis.span(second)[0] + 0.3
    axes.annotate(
        "",
        xy=(x_second, y_second - down * _BOX / 2),
        xytext=(x_first, y_first + down * _BOX / 2),
        arrowprops={
            "arrowstyle": "-|>,head_width=0.35,head_length=0.6",
            "color": _PAIR,
            "linewidth": 2.2,
            "linestyle": (0, (5, 2.5)),
            "shrinkA": 0,
            "shrinkB": 0,
        },
        zorder=8,
    )
    waiting = race.second.issuer_name or race.second.stream_name
    waited = race.first.issuer_name or race.first.stream_name
    if race.kind == "use-after-free":
        said = f"missing: {waiting} waits for {waited},\nor record_stream"
    else:
        said = f"missing: {waiting}\nwaits for {waited}"
    # Between two lanes, where no operation is in the way.
    y = (y_first + y_second) // 2 + 0.5
    along = 0.5 if y_first == y_second else (y - y_first) / (y_second - y_first)
    x = x_first + (x_second - x_first) * along
    left = x < scene.axis.positions[-1] * 0.6
    axes.text(
        x + 0.4 if left else x - 0.4,
        y,
        said,
        ha="left" if left else "right",
        va="center",
        fontsize=8.5,
        fontweight="bold",
        color=_PAIR,
        bbox={"boxstyle": "round,pad=0.3", "facecolor": "white", "edgecolor": _PAIR},
        zorder=9,
    )


def _draw_legend(figure: Figure, scene: Scene, race: bool) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    used = {_color(each) for each in scene.shown if each not in (scene.first, scene.second)}
    words = {
        _COPY: "copy",
        _REDUCTION: "reduction",
        _OTHER: "other access to the buffer",
        _MEMORY: "memory handed out",
    }
    handles: list[Patch | Line2D] = [
        Patch(color=color, label=word) for color, word in words.items() if color in used
    ]
    if scene.others:
        handles.append(Patch(color=_QUIET, label="operations on other memory, how many"))
    if scene.edges:
        handles.append(Line2D([], [], color=_EDGE, linewidth=1.2, label="a wait that is there"))
    if race:
        handles.append(Patch(color=_PAIR, label="the pair that races"))
        dashed = Line2D([], [], color=_PAIR, linewidth=2.2, linestyle=(0, (3, 1.5)))
        dashed.set_label("missing wait")
        handles.append(dashed)
    inches = figure.get_figwidth()
    rows = 1 if inches > 1.75 * len(handles) else 2
    figure.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=(0.15 / inches, 0.0),
        ncols=-(-len(handles) // rows),
        frameon=False,
        fontsize=8.5,
        handlelength=1.6,
        columnspacing=1.4,
    )

"""`legato top` and `legato dashboard`: jobs that serve a dashboard, in a terminal or on a page for several of them."""

import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live as Screen
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from legato.errors import InputError
from legato.launch.signals import ended_by_signals
from legato.live.board import Board
from legato.live.client import Address, Subscription
from legato.observe.report.terminal import NETWORK, WORKS
from legato.variables import DASHBOARD, DASHBOARD_TOKEN

_BARS = "▁▂▃▄▅▆▇█"
_BOXES: dict[str, tuple[str, str]] = {str(work): glyph for work, glyph in WORKS.items()} | {"part": NETWORK}
_SIGNS = {"plan": ("◆", "magenta"), "tuner": ("◇", "magenta"), "fault": ("▲", "red")}
_GUTTER = 12
_MARKERS = 6
_PEERS = 8
_FIRST_S = 10.0
"""How long `--once` waits for an answer."""

Addresses = Annotated[
    list[str] | None,
    typer.Argument(metavar="ADDRESS...", help="Dashboards, as 8321, host:8321 or http://host:8321/. Default: 8321."),
]
TokenOption = Annotated[
    str | None, typer.Option(envvar=DASHBOARD_TOKEN.variable, show_envvar=False, help="What dashboards ask for.")
]


def top(
    addresses: Addresses = None,
    token: TokenOption = None,
    every_s: Annotated[float, typer.Option("--every", min=0.1, help="Seconds between two frames.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print one frame and exit.")] = False,
) -> int:
    """Show jobs while they train: steps against T*, links, queue, tuner, faults. LEGATO_DASHBOARD=8321 turns it on."""
    board, readers = _subscribe(addresses, token)
    console = Console(highlight=False)
    try:
        if once:
            return _print_once(console, board, readers)
        with ended_by_signals(), Screen(console=console, screen=True, auto_refresh=False) as screen:
            while True:
                screen.update(frame(board, readers, console.width), refresh=True)
                time.sleep(every_s)
    finally:
        for reader in readers:
            reader.close()


def dashboard(
    addresses: Annotated[list[str], typer.Argument(metavar="ADDRESS...", help="Jobs' dashboards: 8321 host:8322.")],
    serve_at: Annotated[str, typer.Option("--at", help="Where to serve the page: a port, or host:port.")] = "8320",
    token: TokenOption = None,
) -> int:
    """Serve one page for several jobs, which need not run yet."""
    from legato.live.endpoint import Endpoint  # for this command only

    place = DASHBOARD.form.read("--at", serve_at)
    if place is None or place.port is None:
        raise InputError("--at is off; accepted are a port and host:port")
    board, readers = _subscribe(addresses, token)
    with ended_by_signals():
        endpoint = Endpoint(board, str(place.host), place.port, token=token)
        print(f"dashboard at {endpoint.url}", flush=True)
        try:
            endpoint.wait()
        finally:
            endpoint.close()
            for reader in readers:
                reader.close()
    return 0


def _subscribe(addresses: Sequence[str] | None, token: str | None) -> tuple[Board, list[Subscription]]:
    board = Board()
    places = [Address(each, token) for each in addresses or ["8321"]]
    return board, [Subscription(place, board) for place in places]


def _print_once(console: Console, board: Board, readers: Sequence[Subscription]) -> int:
    deadline_s = time.monotonic() + _FIRST_S
    while not board.states() and time.monotonic() < deadline_s:
        time.sleep(0.05)
    console.print(frame(board, readers, console.width))
    return 0 if board.states() else 1


# ---- a frame ----


def frame(board: Board, readers: Sequence[Subscription], width: int) -> RenderableType:
    """All jobs, one below the other."""
    panels: list[RenderableType] = [_panel(name, state, width - 4) for name, state in board.states().items()]
    silent = [f"{each.address}: {each.trouble}" for each in readers if each.trouble is not None]
    return Group(*panels, *(Text(line, style="red") for line in silent))


def _panel(name: str, state: Mapping[str, Any], width: int) -> Panel:
    job, points = state.get("job", {}), state["points"]
    lines: list[RenderableType] = [Text(job.get("about", ""), style="dim")]
    if points:
        lines += [_headline(points[-1]), _history(points, width), _ranks(points[-1])]
        if state["links"]:
            lines += [_links(state["links"][-1]["links"])]
        lines += [_queue(points[-1], job.get("tensors", ()), width)]
    else:
        lines.append(Text("no step is over yet"))
    if state.get("gantt"):
        lines += _gantt(state["gantt"], width)
    if state.get("tuning", {}).get("said"):
        lines.append(Text(f"tuner: {state['tuning']['said']}", style="magenta"))
    for marker in state["markers"][-_MARKERS:]:
        sign, colour = _SIGNS.get(marker["kind"], ("●", "dim"))
        when = time.strftime("%H:%M:%S", time.localtime(marker["time"]))
        lines.append(Text(f"{when} {sign} {marker['text']}", style=colour))
    return Panel(Group(*lines), title=name, title_align="left")


def _headline(point: Mapping[str, Any]) -> Text:
    share = point["exposed_s"] / point["step_s"] if point["step_s"] else 0.0
    bound = "T* not known yet"
    if point["bound_s"]:
        bound = f"T* {_ms(point['bound_s'])}, a step is {point['step_s'] / point['bound_s']:.2f} of it"
    return Text(
        f"step {point['step']}   {point['steps_per_s']:.2f} steps/s   {_ms(point['step_s'])} a step   "
        f"{_ms(point['exposed_s'])} exposed ({share:.0%})\n{bound}",
        style="bold",
    )


def _history(points: Sequence[Mapping[str, Any]], width: int) -> Text:
    times = [point["step_s"] for point in points[-(width - _GUTTER) :]]
    most = max(times) or 1.0
    bars = "".join(_BARS[min(int(seconds / most * len(_BARS)), len(_BARS) - 1)] for seconds in times)
    return Text(f"{'a step':>{_GUTTER - 1}} {bars}", style="blue")


def _ranks(point: Mapping[str, Any]) -> Table:
    table = Table(
        "rank", "step", "a step", "exposed", "sent", "received", "shared", "in flight", box=None, pad_edge=False
    )
    for column in table.columns:
        column.justify, column.no_wrap = "right", True
    for rank in point["ranks"]:
        table.add_row(
            str(rank["rank"]),
            str(rank["step"]),
            _ms(rank["step_s"]),
            _ms(rank["exposed_s"]),
            *(_rate(rank[f"{way}_bytes_per_s"]) for way in ("sent", "received", "shared")),
            f"{rank['in_flight_bytes'] / 1e6:.1f} MB",
        )
    return table


def _links(links: Sequence[Mapping[str, Any]]) -> Table:
    """What each rank sends to each peer: a column for each, of many for those that get most."""
    to: dict[str, float] = {}
    for link in links:
        to[link["peer"]] = to.get(link["peer"], 0.0) + link["sent_bytes_per_s"]
    shown = sorted(sorted(to, key=lambda peer: -to[peer])[:_PEERS], key=lambda peer: (len(peer), peer))
    left_out = f" (of {len(to)}, the busiest)" if len(to) > len(shown) else ""
    table = Table(f"rank sends to{left_out}", *shown, box=None, pad_edge=False)
    for column in table.columns:
        column.justify, column.no_wrap = "right", True
    rates = {(link["rank"], link["peer"]): _rate(link["sent_bytes_per_s"]) for link in links}
    for rank in sorted({link["rank"] for link in links}):
        table.add_row(str(rank), *(rates.get((rank, peer), "") for peer in shown))
    return table


def _queue(point: Mapping[str, Any], tensors: Sequence[Sequence[Any]], width: int) -> Text:
    """What is under way at the end of backward, over priorities."""
    slots = min(len(tensors), width - _GUTTER - 24) or 1
    waiting, total = [0.0] * slots, [0.0] * slots
    for priority, (_, num_bytes) in enumerate(tensors):
        total[priority * slots // len(tensors)] += num_bytes
    for priority, num_bytes in point["queue"]:
        if tensors:
            waiting[priority * slots // len(tensors)] += num_bytes
    bars = "".join(
        _BARS[min(int(part / whole * len(_BARS)), len(_BARS) - 1)] if part else "·"
        for part, whole in zip(waiting, total, strict=True)
        if whole or part
    )
    queued = sum(num_bytes for _, num_bytes in point["queue"])
    return Text(f"{'queue':>{_GUTTER - 1}} {bars} {queued / 1e6:.1f} MB by priority", style="yellow")


def _gantt(gantt: Mapping[str, Any], width: int) -> list[RenderableType]:
    columns = max(width - _GUTTER, 10)
    rows: dict[str, list[tuple[str, str]]] = {}
    for box in gantt["boxes"]:
        cells = rows.setdefault(box["row"], [(" ", "")] * columns)
        first = min(int(box["begin_s"] / gantt["seconds"] * columns), columns - 1)
        last = min(int(box["end_s"] / gantt["seconds"] * columns), columns - 1)
        cells[first : last + 1] = [_BOXES[box["kind"]]] * (last + 1 - first)
    lines: list[RenderableType] = []
    for row, cells in rows.items():
        line = Text(f"{row:>{_GUTTER - 1}} ")
        for sign, colour in cells:
            line.append(sign, style=colour)
        lines.append(line)
    return lines


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"


def _rate(bytes_per_s: float) -> str:
    bits = bytes_per_s * 8
    return f"{bits / 1e9:.2f} Gb/s" if bits >= 1e9 else f"{bits / 1e6:.1f} Mb/s"

"""`legato trace`: what a timeline says, in figures and as a page."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from legato.cli.gantt import GUTTER, chart, legend
from legato.errors import InputError
from legato.observe.report import Analysis, Recording, analyse, read
from legato.observe.report.analysis import short_name
from legato.observe.report.document import ms, report, straggler
from legato.observe.report.page import Section
from legato.tuning.twin.forecast import Forecast, forecast

app = typer.Typer(name="trace", help="Look into a timeline.", no_args_is_help=True)
_MOST_EXPOSED = 5


@app.callback()
def trace() -> None:
    """Look into a timeline, which LEGATO_TIMELINE=FILE makes."""


@app.command("report")
def report_of(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="a timeline; or the files of its ranks, where each has one")
    ],
    *,
    out: Annotated[Path | None, typer.Option(help="the page to write; else the first file's name with .html")] = None,
    text: Annotated[bool, typer.Option("--text", help="print the summary, and write no page")] = False,
) -> None:
    """Say where the time of each step went and what would help; write the whole of it as an HTML page."""
    recording = read(files)
    analysis = analyse(recording)
    outlook = forecast(recording, analysis)
    console = Console(highlight=False)
    _print(console, recording, analysis, outlook)
    if text:
        return
    path = out or files[0].with_suffix(".html")
    subtitle = ", ".join(file.name for file in files[:3]) + (f" and {len(files) - 3} more" if len(files) > 3 else "")
    page = report(recording, analysis, subtitle, _outlook(analysis, outlook))
    try:
        path.write_text(page)
    except OSError as error:
        raise InputError(f"--out: {path}: {error.strerror}") from None
    console.print(f"The whole report: {path}", soft_wrap=True)


def _outlook(analysis: Analysis, found: Forecast) -> Section:
    title = "What would help"
    if not found.outlooks or analysis.summary is None:
        return Section(id="outlook", kind="text", title=title, remarks=found.remarks)
    rows = [
        {
            "change": each.change,
            "us": each.step_s * 1e6,
            "error": each.error,
            "kind": "bound" if each.error is None else "",
        }
        for each in found.outlooks
    ]
    return Section(
        id="outlook",
        kind="outlooks",
        title=title,
        about=f"Time of a step, predicted by the simulator from this recording: its layers' times, and links of "
        f"{found.gbps:.3g} Gbit/s, as its waits show. The error is that of a prediction never put to the test.",
        content={"now": analysis.summary.step_s * 1e6, "rows": rows},
        remarks=found.remarks,
    )


def _print_chart(console: Console, recording: Recording, analysis: Analysis) -> None:
    """The usual step of the first rank."""
    first = recording.ranks[0]
    step = next(
        (each for each in analysis.steps if (each.rank, each.number) == (first.number, analysis.usual_step)), None
    )
    if step is None:
        return
    console.print(f"\nStep {step.number} of {first.title}, {ms(step.ns * 1e-9)}:")
    for line in (*chart(first, (step.begin_ns, step.end_ns), min(console.width, 100) - GUTTER), legend()):
        console.print(line, soft_wrap=True)
    console.print()


def _print(console: Console, recording: Recording, analysis: Analysis, outlook: Forecast) -> None:
    summary = analysis.summary
    if summary is None:
        console.print(f"{recording.num_workers} workers; no layers were recorded: what was waited for is not known.")
    else:
        table = Table("", "", "", show_header=False, title=f"A step of {recording.num_workers} workers")
        table.columns[1].justify = table.columns[2].justify = "right"
        rows = {
            "the usual step": summary.step_s,
            "  compute": summary.compute_s,
            "    of it hiding communication": summary.hidden_s,
            "  exposed communication": summary.exposed_s,
            "  idle": summary.idle_s,
        }
        for name, seconds in rows.items():
            table.add_row(name, ms(seconds), f"{seconds / summary.step_s:.0%}")
        console.print(table)
        _print_chart(console, recording, analysis)
        if len(recording.ranks) > 1:
            console.print(straggler(recording, analysis))
    exposed = sorted((each for each in analysis.tensors if each.exposed_s > 0), key=lambda each: -each.exposed_s)
    if exposed:
        table = Table("waited for most", "bytes", "queued", "in flight", "exposed")
        for column in table.columns[1:]:
            column.justify = "right"
        for each in exposed[:_MOST_EXPOSED]:
            size = f"{each.num_bytes / 1e6:.2f} MB"
            table.add_row(short_name(each.name), size, ms(each.queued_s), ms(each.flying_s), ms(each.exposed_s))
        console.print(table)
    if outlook.outlooks and summary is not None:
        table = Table("what would help", "step", "", title_justify="left")
        table.columns[1].justify = table.columns[2].justify = "right"
        for found in outlook.outlooks:
            error = "" if found.error is None else f" ± {found.error:.0%}"
            table.add_row(found.change, f"{ms(found.step_s)}{error}", f"{summary.step_s / found.step_s:.2f}×")
        console.print(table)
    for remark in outlook.remarks:
        console.print(remark)

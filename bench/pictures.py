"""Pictures of the demo: DDP's step above legato's, on one scale, in a terminal and as a page."""

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.text import Text

from bench.browser import HEADLESS, find_browser
from bench.comparison import Comparison
from bench.contest import System
from legato.cli.gantt import GUTTER, chart, legend
from legato.observe.report import Analysis, Recording, analyse, read
from legato.observe.report.analysis import Step
from legato.observe.report.document import ms
from legato.observe.report.gantt import gantt
from legato.observe.report.page import Card, Section
from legato.observe.report.page import page as whole_page
from legato.observe.report.terminal import WORKS

TITLES: dict[System, str] = {"ddp": "DDP over Gloo", "legato": "legato"}
_MARGIN = 0.02
_SIZE = (1240, 905)
_BROWSER_S = 60

Recordings = Mapping[System, Sequence[Path]]
"""The files of each system, by its name."""


class _Seen:
    """One system's recording and its usual step on rank 0."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.recording: Recording = read(paths)
        self.analysis: Analysis = analyse(self.recording)
        number = self.analysis.usual_step
        self.step: Step = next(each for each in self.analysis.steps if each.rank == 0 and each.number == number)


def terminal(recordings: Recordings, width: int) -> Iterator[Text]:
    """Lines; both systems on the scale of the slower one."""
    seen = {system: _Seen(paths) for system, paths in recordings.items()}
    longest_ns = max(each.step.ns for each in seen.values())
    yield Text()
    for system, each in seen.items():
        step = each.step
        title = Text.assemble((TITLES[system], "bold"), f": a step of {ms(step.ns * 1e-9)}, of which it waits ")
        yield title.append(ms(step.exposed_ns * 1e-9), style=WORKS["wait"][1])
        columns = max(round((width - GUTTER) * step.ns / longest_ns), 1)
        yield from chart(each.recording.ranks[0], (step.begin_ns, step.end_ns), columns)
        yield Text()
    yield legend()
    yield Text()


def page(recordings: Recordings, comparison: Comparison, subtitle: str) -> str:
    """Both charts, and what came of it."""
    seen = {system: _Seen(paths) for system, paths in recordings.items()}
    longest_us = max(each.step.ns for each in seen.values()) / 1e3
    sections = []
    for system, each in seen.items():
        exposed, step = ms(each.step.exposed_ns * 1e-9), ms(each.step.ns * 1e-9)
        content, left_out = gantt(each.recording, each.analysis, TITLES[system], still=True)
        content["view"] = [content["zero"] - _MARGIN * longest_us, content["zero"] + (1 + _MARGIN) * longest_us]
        title = f"{TITLES[system]}: a step of {step}, of which it waits {exposed}"
        sections.append(Section(id=system, kind="gantt", title=title, content=content, remarks=left_out))
    faster = comparison.speedup["legato"]
    rough = "rough: something else kept the processors busy"
    bound = rough if comparison.was_disturbed else "no schedule is faster over these links"
    cards = [
        Card(label=TITLES["ddp"], value=ms(comparison.step_s["ddp"]), about="a step, median of all turns"),
        Card(label="legato", value=ms(comparison.step_s["legato"]), about=f"{faster:.2f} times as fast"),
        Card(label="T*", value=ms(comparison.bound_s), about=bound),
        Card(label="compute alone", value=ms(comparison.step_s["alone"]), about="the same step without communication"),
        Card(label="loss", value=f"{comparison.loss['legato']:.4f}", about=f"DDP's is {comparison.loss['ddp']:.4f}"),
    ]
    return whole_page("The same training, twice", subtitle, cards, sections)


def screenshot(drawn: Path, picture: Path) -> None:
    """The page as `picture`, and beside it as NAME-dark for pages that are dark."""
    browser = find_browser()
    if browser is None:
        raise SystemExit("--picture needs Chromium to draw the page; there is none on this machine")
    for theme, path in (("light", picture), ("dark", picture.with_stem(f"{picture.stem}-dark"))):
        themed = drawn.with_name(f"{drawn.stem}-{theme}.html")
        themed.write_text(drawn.read_text().replace("<html ", f'<html data-theme="{theme}" ', 1))
        size = f"--window-size={_SIZE[0]},{_SIZE[1]}"
        command = [browser, *HEADLESS, size, f"--screenshot={path.resolve()}", themed.resolve().as_uri()]
        subprocess.run(command, check=True, capture_output=True, timeout=_BROWSER_S)
        themed.unlink()

"""The page in a real browser, of facts that are known beforehand."""

import pytest

from bench.browser import find_browser
from legato.live.board import Board
from tests.live.browser import Page
from tests.live.samples import JOB, job_facts, links, point, whole_board
from tests.live.test_endpoint import serving

BROWSER = find_browser()
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine (apt install chromium)")


def text_of(page: Page, selector: str) -> str:
    return str(page.value(f"document.querySelector({selector!r}).textContent"))


def test_everything_is_drawn_and_several_jobs_can_be_chosen() -> None:
    board = whole_board()
    board.add("other.py@there", job_facts("2-2.0"))
    board.add("other.py@there", point(77, bound_s=None))
    assert BROWSER is not None
    with serving(board) as port, Page(BROWSER) as page:
        page.open(f"http://127.0.0.1:{port}/")
        page.wait_until('document.body.dataset.points === "3"')
        assert text_of(page, "#connection") == "live"
        assert text_of(page, '[data-figure="A step takes"]') == "110 ms"
        assert text_of(page, '[data-figure="T*"]') == "100 ms"
        assert text_of(page, '[data-figure="Busiest link"]') == "1.00 Gbit/s"
        assert page.value('document.querySelectorAll("#gantt rect").length') == 5
        assert page.value('document.querySelectorAll("#queue rect").length') == 3
        assert page.value('document.querySelectorAll("#tuning rect").length') == 3
        assert page.value('document.querySelectorAll("#traffic path").length') == 4
        assert page.value('document.querySelectorAll("#links path").length') == 4
        legend = "0 → 1", "0 → server 0", "1 → 0", "server 0 → 0"
        assert text_of(page, "#links-legend") == "".join(legend)
        tip = page.value('document.querySelector("#links g:nth-of-type(2)").dataset.tip')
        assert tip == "0 → server 0\n200 Mbit/s"
        assert page.value('document.querySelectorAll("#steps path").length') == 3
        assert "rank 1 waits for rank 0" in text_of(page, "#markers")
        assert '"2" workers' in text_of(page, "#about")
        board.add(JOB, links(40))
        board.add(JOB, point(40))
        page.wait_until('document.body.dataset.points === "4"')
        assert page.value('document.querySelector("#links path").getAttribute("d").match(/[ML]/g).length') == 4
        page.value('document.querySelector("#jobs button:nth-child(2)").click()')
        assert text_of(page, '[data-figure="Step"]') == "77"
        assert text_of(page, '[data-figure="T*"]') == "–"


def test_a_board_without_steps_is_a_page_too() -> None:
    board = Board()
    board.add(JOB, job_facts())
    assert BROWSER is not None
    with serving(board) as port, Page(BROWSER) as page:
        page.open(f"http://127.0.0.1:{port}/")
        page.wait_until('document.body.dataset.points === "0"')
        assert "waiting for the first steps" in text_of(page, "#cards")

"""What counts as left behind."""

import multiprocessing
import os

from tests.leftovers import expect_nothing_beyond, open_files_and_threads


def test_a_process_that_has_ended_is_not_left_behind_but_one_that_runs_is() -> None:
    before = open_files_and_threads()
    receiver, sender = os.pipe()
    process = multiprocessing.get_context("fork").Process(target=os.read, args=(receiver, 1), name="reader")
    process.start()
    os.close(receiver)
    assert "child reader" in open_files_and_threads() - before
    os.close(sender)
    process.kill()
    del process  # without join
    expect_nothing_beyond(before)

from legato.sim.link import Link, Rate


def test_jobs_queue_behind_each_other() -> None:
    link = Link(bytes_per_second=10, overhead_s=0.5, rate=Rate([(0, 1)]))
    assert link.serve(0, 10) == 1.5
    assert link.serve(1, 20) == 4.0
    assert link.serve(9, 10) == 10.5
    assert link.num_bytes == 40


def test_a_rate_that_changes_while_a_job_is_on_the_link() -> None:
    """Half speed from second 1 on, full speed again from second 5: 1 + 4·½ = 3 s of work by then."""
    rate = Rate([(0, 1.0), (1, 0.5), (5, 1.0)])
    assert rate.finish(0, 1.0) == 1.0
    assert rate.finish(0, 2.0) == 3.0
    assert rate.finish(0, 4.0) == 6.0
    assert rate.finish(7, 1.0) == 8.0
    assert rate.mean(0, 10) == 0.8
    assert rate.mean(2, 2) == 0.5

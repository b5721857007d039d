"""What the conductor decides, without sockets, threads or clocks: messages and times in, messages out."""

import pytest

from legato.core.shards import Deployment
from legato.errors import ClosedError, InputError, MismatchError, ProtocolError
from legato.transports.declaration import Declaration, Operation
from legato.transports.rendezvous import messages as m
from legato.transports.rendezvous.agreement import Agreement, Phase

W = Declaration(name="w", shape=(3, 4), dtype="float32")
TURNED = Declaration(name="w", shape=(4, 3), dtype="float32")


def hello(rank: int | None, common: str = "1") -> m.Hello:
    return m.Hello(rank, "127.0.0.1", 4000 + (rank or 99), (("version", common),))


def agreement(num_workers: int = 2, num_servers: int = 0) -> Agreement:
    return Agreement(
        deployment=Deployment(num_workers=num_workers, num_servers=num_servers),
        common=(("version", "1"),),
        job="j",
        join_timeout_s=30.0,
        timeout_s=60.0,
        now_s=100.0,
    )


def running(num_workers: int = 2, num_servers: int = 0) -> Agreement:
    job = agreement(num_workers, num_servers)
    for member in range(num_workers + num_servers):
        job.hello(hello(member if member < num_workers else None))
    for member in range(num_workers + num_servers):
        job.received(member, m.Connected(), 101.0)
    assert job.phase is Phase.RUNNING
    return job


def said(outgoing: list[tuple[int | None, m.FromConductor]]) -> list[str]:
    """The errors in what goes out to everybody."""
    texts = [message.error.text for target, message in outgoing if isinstance(message, m.Refused | m.Abort | m.Fatal)]
    assert all(target is None for target, _ in outgoing)
    return texts


# ---- gathering ----


def test_everybody_is_welcomed_when_the_last_one_joins() -> None:
    job = agreement(2, 1)
    assert job.hello(hello(1)) == (1, [])
    assert job.hello(hello(None)) == (2, [])
    assert job.roster.words() == "1/2 workers joined, missing 0; 1/1 servers joined"
    member, outgoing = job.hello(hello(0))
    assert member == 0
    assert [target for target, _ in outgoing] == [0, 1, 2]
    assert outgoing[2][1] == m.Welcome(
        2, "j", (("127.0.0.1", 4099), ("127.0.0.1", 4001), ("127.0.0.1", 4099)), (0, 1, 2), ("", "", "")
    )


def test_the_job_begins_when_the_last_one_is_connected() -> None:
    job = agreement()
    job.hello(hello(0))
    job.hello(hello(1))
    assert job.received(1, m.Connected(), 101.0) == []
    assert job.received(0, m.Connected(), 101.0) == [(None, m.Begin())]


def test_who_is_missing_at_the_deadline_is_named_to_everybody() -> None:
    job = agreement(4)
    job.hello(hello(0))
    job.hello(hello(1))
    assert job.expire(129.9) == []
    assert job.deadline_s() == 130.0
    assert said(job.expire(130.0)) == ["2/4 workers joined, missing 2, 3 within 30 s"]
    assert job.phase is Phase.OVER


def test_who_cannot_connect_is_named_to_everybody() -> None:
    job = agreement()
    job.hello(hello(0))
    job.hello(hello(1))
    job.received(0, m.Connected(), 101.0)
    assert said(job.expire(130.0))[0].startswith("rank 1 could not connect to the other members")


def test_who_goes_away_while_gathering_may_come_again() -> None:
    job = agreement()
    job.hello(hello(1))
    assert job.gone(1, "it hung up") == []
    assert job.roster.missing() == [0, 1]
    job.hello(hello(1))


@pytest.mark.parametrize(
    ("newcomer", "words"),
    [
        (hello(2), "rank is 2, with 2 workers it must be 0 to 1"),
        (hello(1), r"rank 1 has joined already, from 127\.0\.0\.1:4001; every worker needs a rank of its own"),
        (hello(None), "all 0 servers have joined already"),
    ],
)
def test_who_cannot_be_a_member_is_told(newcomer: m.Hello, words: str) -> None:
    job = agreement()
    job.hello(hello(1))
    with pytest.raises(InputError, match=words):
        job.hello(newcomer)
    assert job.phase is Phase.GATHERING


def test_members_must_agree_on_what_they_take_for_granted() -> None:
    job = agreement()
    with pytest.raises(MismatchError, match="version: rank 0 says 1, rank 1 says 2; all members must agree on it"):
        job.hello(hello(1, common="2"))


def test_a_job_that_cannot_begin_is_told_to_those_who_come_later_too() -> None:
    job = agreement(3)
    job.hello(hello(0))
    with pytest.raises(MismatchError) as caught:
        job.hello(hello(1, common="2"))
    assert said(job.doom(caught.value)) == [str(caught.value)]
    with pytest.raises(MismatchError, match="rank 0 says 1, rank 1 says 2"):
        job.hello(hello(2))
    assert job.phase is Phase.OVER


def test_everybody_hears_where_all_can_be_reached() -> None:
    job = running(1, 1)
    peers = tuple(m.Peer(name, "127.0.0.1", 5000) for name in "ab")
    assert job.received(1, m.OwnPost(peers[1]), 102.0) == []
    assert job.received(0, m.OwnPost(peers[0]), 103.0) == [(None, m.AllPosts(peers))]
    assert job.deadline_s() is None


def test_who_does_not_say_where_it_can_be_reached_is_named_to_everybody() -> None:
    job = running(2, 1)
    job.received(1, m.OwnPost(m.Peer("b", "127.0.0.1", 5000)), 102.0)
    assert job.expire(131.9) == []
    assert job.deadline_s() == 132.0
    assert said(job.expire(132.0)) == ["rank 0, server 2 did not say where they can be reached within 30 s"]
    assert job.phase is Phase.OVER


def test_nobody_joins_a_job_that_has_begun() -> None:
    with pytest.raises(ClosedError, match="the job has begun already"):
        running().hello(hello(1))


# ---- declarations ----


def test_a_tensor_is_ready_when_every_member_knows_it() -> None:
    job = running(2, 1)
    assert job.received(0, m.Declare((W,)), 102.0) == []
    assert job.received(1, m.Declare((W,)), 103.0) == [(None, m.Define((m.Definition(0, W),)))]
    assert job.received(0, m.Defined((0,)), 103.0) == []
    assert job.received(2, m.Defined((0,)), 103.0) == []
    assert job.received(1, m.Defined((0,)), 103.0) == [(None, m.TensorsReady((0,)))]
    assert job.deadline_s() is None


def test_a_batch_is_defined_in_one_message() -> None:
    job = running()
    batch = tuple(Declaration(name=f"t{i}", shape=(i,), dtype="int8") for i in range(3))
    job.received(0, m.Declare(batch[::-1]), 102.0)
    ((_, answer),) = job.received(1, m.Declare(batch), 102.0)
    assert isinstance(answer, m.Define)
    assert [(known.id, known.tensor) for known in answer.definitions] == list(enumerate(batch))


def test_a_mismatch_names_ranks_and_values_and_stays() -> None:
    job = running(3)
    job.received(0, m.Declare((W,)), 102.0)
    text = "tensor 'w': rank 0 says float32 (3, 4), rank 1 says float32 (4, 3)"
    assert said(job.received(1, m.Declare((TURNED,)), 102.0)) == [text]
    assert said(job.received(2, m.Declare((W,)), 102.0)) == [text]


def test_a_name_keeps_its_meaning() -> None:
    job = running()
    for rank in (0, 1):
        job.received(rank, m.Declare((W,)), 102.0)
    (text,) = said(job.received(1, m.Declare((TURNED,)), 103.0))
    assert text == (
        "tensor 'w': rank 1 declared float32 (3, 4) before and says float32 (4, 3) now; one name has one meaning"
    )


def test_a_root_must_be_a_rank() -> None:
    tensor = Declaration(name="w", shape=(1,), dtype="int8", operation=Operation.BROADCAST, root=2)
    assert said(running().received(1, m.Declare((tensor,)), 102.0)) == [
        "tensor 'w': rank 1 says root 2, it must be 0 to 1"
    ]


def test_a_rank_that_does_not_declare_is_named_at_the_deadline() -> None:
    job = running(3)
    job.received(1, m.Declare((W,)), 102.0)
    assert job.deadline_s() == 162.0
    (text,) = said(job.expire(162.0))
    assert text == "tensor 'w': ranks 0, 2 did not declare it within 60 s; every rank must use the same names"


def test_a_member_that_does_not_confirm_is_named_at_the_deadline() -> None:
    job = running(2, 1)
    for rank in (0, 1):
        job.received(rank, m.Declare((W,)), 102.0)
    for rank in (0, 1):
        job.received(rank, m.Defined((0,)), 102.0)
    assert said(job.expire(162.0))[0].startswith("tensor 'w': members 2 did not confirm it within 60 s")


def test_a_tensor_that_nobody_declared_cannot_be_defined() -> None:
    with pytest.raises(ProtocolError, match="member 1 has defined tensor 0, which nobody declared"):
        running().received(1, m.Defined((0,)), 102.0)


def test_what_waits_for_a_lost_rank_is_refused_now_and_later() -> None:
    job = running(3)
    job.received(0, m.Declare((W,)), 102.0)
    outgoing = job.gone(2, "it hung up")
    assert isinstance(outgoing[0][1], m.Fatal)
    text = "tensor 'w': rank 2 is gone (it hung up); see its log for why"
    assert said(outgoing[1:]) == [text]
    other = Declaration(name="v", shape=(1,), dtype="int8")
    assert said(job.received(0, m.Declare((other,)), 103.0)) == [text.replace("'w'", "'v'")]


def test_a_report_goes_to_rank_0_alone() -> None:
    assert running(3).received(2, m.WindowReport(20, "AAAA"), 102.0) == [(0, m.WindowReported(2, 20, "AAAA"))]


# ---- plans ----


def propose(job: Agreement, rank: int, plan: str = "p", *, everyone: bool = False) -> list[object]:
    return [message for _, message in job.received(rank, m.Propose(plan, 7, everyone), 102.0)]


def votes(job: Agreement, number: int, digests: list[str]) -> list[object]:
    last: list[object] = []
    for member, digest in enumerate(digests):
        last = [message for _, message in job.received(member, m.Vote(number, digest, ""), 103.0)]
    return last


def test_a_plan_holds_when_every_member_has_applied_it() -> None:
    job = running(2, 1)
    assert propose(job, 1) == [m.Prepare(1, "p", 7)]
    assert votes(job, 1, ["d", "d", "d"]) == [m.Commit(1)]
    assert job.received(0, m.Applied(1), 104.0) == []
    assert job.received(1, m.Applied(1), 104.0) == []
    assert job.received(2, m.Applied(1), 104.0) == [(None, m.Done("p", 7))]
    assert propose(job, 0) == [m.Done("p", 7)]
    assert job.deadline_s() is None


def test_a_plan_of_everyone_waits_for_everyone() -> None:
    job = running()
    assert propose(job, 1, everyone=True) == []
    assert propose(job, 0, everyone=True) == [m.Prepare(1, "p", 7)]


def test_a_rank_that_does_not_propose_is_named() -> None:
    job = running()
    propose(job, 1, everyone=True)
    assert said(job.expire(162.0)) == ["plan from step 7: members 0 did not answer within 60 s"]


def test_different_proposals_are_refused_both() -> None:
    job = running()
    propose(job, 1, "one", everyone=True)
    answers = propose(job, 0, "two", everyone=True)
    assert [answer.plan for answer in answers if isinstance(answer, m.Abort)] == ["two", "one"]
    assert propose(job, 0, "two") == [m.Prepare(2, "two", 7)]


def test_a_refusal_aborts() -> None:
    job = running()
    propose(job, 0)
    text = said(job.received(1, m.Vote(1, "", "rank 1 has begun step 9"), 103.0))
    assert text == ["plan from step 7: rank 1 has begun step 9"]


def test_members_that_would_do_different_things_abort() -> None:
    job = running()
    propose(job, 0)
    (answer,) = votes(job, 1, ["d", "e"])
    assert isinstance(answer, m.Abort)
    assert answer.error.text == "plan: members would follow different ones (member 0: d, member 1: e)"


def test_a_member_that_does_not_vote_is_named() -> None:
    job = running()
    propose(job, 0)
    votes(job, 1, ["d"])
    assert said(job.expire(162.0)) == ["plan from step 7: members 1 did not answer within 60 s"]
    assert job.phase is Phase.RUNNING


def test_a_member_that_does_not_apply_ends_the_job() -> None:
    job = running()
    propose(job, 0)
    votes(job, 1, ["d", "d"])
    ((_, message),) = job.expire(162.0)
    assert isinstance(message, m.Fatal)
    assert job.phase is Phase.OVER


def test_votes_of_an_old_round_count_for_nothing() -> None:
    job = running()
    propose(job, 0)
    job.received(1, m.Vote(1, "", "no"), 103.0)
    propose(job, 0, "q")
    assert job.received(0, m.Vote(1, "d", ""), 104.0) == []
    assert job.received(1, m.Applied(1), 104.0) == []


# ---- leaving ----


def test_everybody_goes_when_the_last_worker_leaves() -> None:
    job = running(2, 1)
    assert job.received(0, m.Leave(), 102.0) == [(None, m.Left(0))]
    assert job.received(1, m.Leave(), 102.0) == [(None, m.Left(1)), (None, m.AllLeft())]
    assert job.phase is Phase.OVER
    assert job.gone(1, "closed") == []


def test_who_leaves_says_what_it_has_begun() -> None:
    job = running()
    assert job.received(0, m.Leave((("t", 7),)), 102.0) == [(None, m.Left(0, (("t", 7),)))]


def test_a_plan_that_needs_a_rank_that_leaves_is_refused_now_and_later() -> None:
    job = running()
    assert propose(job, 0, everyone=True) == []
    left, refused = (message for _, message in job.received(1, m.Leave(), 103.0))
    assert left == m.Left(1)
    assert isinstance(refused, m.Abort)
    assert refused.error == m.ErrorText("ClosedError", "rank 1 has left the job", rank=1)
    assert propose(job, 0, everyone=True) == [refused]
    (prepare,) = propose(job, 0)
    assert isinstance(prepare, m.Prepare), "who has left still follows, until all have"


def test_a_server_that_leaves_first_is_lost() -> None:
    ((_, lost),) = running(2, 1).received(2, m.Leave(), 102.0)
    assert isinstance(lost, m.Fatal)
    assert lost.error.text == "server 2 has left the job"


def test_a_failure_is_told_to_everybody() -> None:
    job = running()
    error = m.ErrorText("PeerLostError", "cannot reach member 0", rank=0)
    assert job.received(1, m.Failed(error), 102.0) == [(None, m.Fatal(error))]


def test_a_member_does_not_speak_for_the_conductor() -> None:
    with pytest.raises(ProtocolError, match="rank 1 sent a Begin message"):
        running().received(1, m.Begin(), 102.0)

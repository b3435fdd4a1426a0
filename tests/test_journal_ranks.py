"""Journals over ranks: one for each, read together, compared with each other and with those of another run."""

from __future__ import annotations

import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from tachograph.engine import Divergence, diff, replay
from tachograph.engine.diff import ranks_part
from tachograph.engine.journal import Journal, JournalCorrupt, JournalError, Position, rank_directory, recover
from tachograph.states import CallerError, Event, Failed, Fetched, Stepped, Stopped
from tests.test_journal_support import Quick, Transition, kill, run, writer


def of_rank(records: list[Transition], rank: int) -> list[Transition]:
    """The same transitions as another rank has them: the same states, samples and losses of its own."""
    own: dict[type[Event], Callable[[Any], dict[str, Any]]] = {
        Fetched: lambda event: {"ids": f"{event.ids}.{rank}"},
        Stepped: lambda event: {"loss": event.loss + rank, "rng": event.rng + rank},
    }
    return [(s, attrs.evolve(e, **own[type(e)](e)) if type(e) in own else e, after) for s, e, after in records]


def life(
    run_dir: Path,
    rank: int,
    records: list[Transition],
    number: int = 0,
    parent: Position | None = None,
    *,
    end: Callable[..., None] = kill,
    **settings: Any,
) -> None:
    """Write one incarnation of one rank, and leave it as a kill would."""
    out = writer(run_dir, rank=rank, incarnation=number, parent=parent, **{"files": Quick(), **settings})
    for transition in of_rank(records, rank):
        out.append(*transition)
    end(out)


def ranks(run_dir: Path, *lengths: int, **settings: Any) -> Path:
    """Write a run of as many ranks as there are lengths; each was killed after so many transitions."""
    for rank, length in enumerate(lengths):
        life(run_dir, rank, run(length), **settings)
    return run_dir


def at(run_dir: Path, rank: int, seq: int) -> Position:
    """The point of a rank's newest incarnation that a resume goes on from."""
    journal = Journal(run_dir, rank=rank, history="all")
    found = [record for record in journal if record.seq == seq][-1]
    return Position(found.incarnation, seq, found.chain)


def joined(run_dir: Path, seq: int) -> Position:
    """Where a rank begins that wasn't there before: its own journal has nothing before it."""
    return Position(-1, seq, Journal(run_dir).seek(seq).chain)


def told(run_dir: Path, **settings: Any) -> list[tuple[int, int, int]]:
    settings = {"rank": "all", **settings}
    return [(r.seq, r.rank, r.incarnation) for r in Journal(run_dir, **settings)]


def pairs(first: int, last: int, *of: int, number: int = 0) -> list[tuple[int, int, int]]:
    return [(seq, rank, number) for seq in range(first, last + 1) for rank in of]


# -- read together -----------------------------------------------------------------------------------------


def test_ranks_that_were_killed_at_different_points_are_merged_as_far_as_each_goes(tmp_path: Path) -> None:
    ranks(tmp_path, 7, 5, 6)
    assert told(tmp_path) == [*pairs(1, 5, 0, 1, 2), (6, 0, 0), (6, 2, 0), (7, 0, 0)]
    assert [len(Journal(tmp_path, rank=rank)) for rank in ("all", 0, 1, 2)] == [18, 7, 5, 6]  # type: ignore[arg-type]
    merged = Journal(tmp_path, rank="all")
    assert merged.last is not None
    assert (merged.last.seq, merged.last.rank) == (7, 0), "single answers are the lowest rank's"
    assert merged.chain == Journal(tmp_path).chain != Journal(tmp_path, rank=1).chain


def test_a_rank_without_a_directory_is_passed_over_and_named_when_asked_for(tmp_path: Path) -> None:
    ranks(tmp_path, 3, 3, 3)
    shutil.rmtree(rank_directory(tmp_path, 0))
    assert told(tmp_path) == pairs(1, 3, 1, 2)
    with pytest.raises(JournalError, match="has no journal of rank 0, but of 1, 2"):
        Journal(tmp_path)
    with pytest.raises(JournalError, match=r"the journal of rank 1 of .* has no transition 9: it holds 1 to 3"):
        Journal(tmp_path, rank=1).seek(9)


def test_a_rank_that_died_before_its_first_line_has_nothing_and_hides_nothing(tmp_path: Path) -> None:
    ranks(tmp_path, 3, 3)
    for path in rank_directory(tmp_path, 1).glob("*.jsonl"):
        path.unlink()
    (rank_directory(tmp_path, 1) / "durable.json").unlink(missing_ok=True)
    assert told(tmp_path) == pairs(1, 3, 0)
    assert Journal(tmp_path, rank=1).last is None
    assert ranks_part(tmp_path) is None


def test_a_damaged_rank_is_named_and_a_salvage_reads_round_it(tmp_path: Path) -> None:
    ranks(tmp_path, 6, 6)
    path = next(rank_directory(tmp_path, 1).glob("*.jsonl"))
    path.write_bytes(path.read_bytes().replace(b'"seq":3,', b'"seq":8,'))
    for read in (lambda: list(Journal(tmp_path, rank="all")), lambda: ranks_part(tmp_path)):
        with pytest.raises(JournalCorrupt) as refused:
            read()
        assert refused.value.file == path
    assert len(list(Journal(tmp_path))) == 6
    salvage = Journal(tmp_path, rank="all", salvage=True)
    assert [(r.seq, r.rank) for r in salvage if r.seq == 3 or r.rank == 0] == [(n, 0) for n in range(1, 7)]
    assert {(damage.file, damage.offset > 0) for damage in salvage.damage} == {(path, True)}
    assert {r.seq for r in Journal(tmp_path, rank=1, salvage=True)} == {1, 2, 4, 5, 6}


def test_a_journal_of_another_rank_or_of_another_run_is_refused(tmp_path: Path) -> None:
    one, other = ranks(tmp_path / "one", 3, 3), ranks(tmp_path / "other", 3, 3, run_id="other")
    shutil.rmtree(rank_directory(one, 1))
    shutil.copytree(rank_directory(one, 0), rank_directory(one, 1))
    with pytest.raises(JournalCorrupt, match="it belongs to rank 0"):
        list(Journal(one, rank="all"))
    shutil.rmtree(rank_directory(one, 1))
    shutil.copytree(rank_directory(other, 1), rank_directory(one, 1))
    with pytest.raises(JournalCorrupt, match="it belongs to another run than the lowest rank's, 'other'"):
        list(Journal(one, rank="all"))
    assert len(list(Journal(one))) == 3


def test_a_torn_tail_of_any_rank_is_the_end_of_that_rank(tmp_path: Path) -> None:
    ranks(tmp_path, 4, 4)
    path = next(rank_directory(tmp_path, 1).glob("*.jsonl"))
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + b'{"seq":5,"from"')
    journal = Journal(tmp_path, rank="all")
    assert len(list(journal)) == 8
    assert journal.torn == (path, size)


# -- lives of a run ----------------------------------------------------------------------------------------


def resumed(run_dir: Path, seq: int, length: int, *of: int, number: int = 1) -> None:
    done = run(length)
    for rank in of:
        life(run_dir, rank, done[seq:], number, at(run_dir, rank, seq))


def test_a_resume_of_all_ranks_supersedes_on_all(tmp_path: Path) -> None:
    ranks(tmp_path, 9, 8)
    resumed(tmp_path, 6, 10, 0, 1)
    assert told(tmp_path) == [*pairs(1, 6, 0, 1), *pairs(7, 10, 0, 1, number=1)]
    everything = told(tmp_path, history="all")
    assert everything == [*pairs(1, 8, 0, 1), (9, 0, 0), *pairs(7, 10, 0, 1, number=1)], "one life after the other"


def test_a_rank_that_the_run_was_resumed_without_ends_there(tmp_path: Path) -> None:
    ranks(tmp_path, 9, 9, 9)
    resumed(tmp_path, 6, 10, 0)
    assert told(tmp_path) == [*pairs(1, 6, 0, 1, 2), *pairs(7, 10, 0, number=1)]
    left = Journal(tmp_path, rank=2)
    assert left.last is not None
    assert (len(left), left.last.seq, left.seek(6).chain) == (6, 6, left.chain)
    with pytest.raises(JournalError, match="it holds 1 to 6"):
        left.seek(7)
    assert [r.seq for r in Journal(tmp_path, rank=2, history="all")] == list(range(1, 10))
    assert left.verify_chain() == left.chain


def test_a_rank_that_joined_at_a_resume_begins_there(tmp_path: Path) -> None:
    ranks(tmp_path, 9)
    resumed(tmp_path, 6, 10, 0)
    life(tmp_path, 1, run(10)[6:], 1, joined(tmp_path, 6))
    assert told(tmp_path) == [*pairs(1, 6, 0), *pairs(7, 10, 0, 1, number=1)]
    new = Journal(tmp_path, rank=1)
    assert (len(new), new.verify_chain() == new.chain) == (4, True)
    with pytest.raises(JournalError, match="it holds 7 to 10"):
        new.seek(6)
    assert len(Journal(tmp_path, rank="all")) == 14
    assert [Journal(tmp_path, rank="all").world_at(seq) for seq in (1, 6, 7, 10)] == [1, 1, 2, 2]


def test_a_rank_that_left_and_came_back_has_a_gap(tmp_path: Path) -> None:
    ranks(tmp_path, 9, 9)
    resumed(tmp_path, 4, 8, 0)
    resumed(tmp_path, 7, 12, 0, number=2)
    life(tmp_path, 1, run(12)[7:], 2, joined(tmp_path, 7))
    assert told(tmp_path, rank=1) == pairs(8, 12, 1, number=2)
    assert [life.number for life in Journal(tmp_path, rank=1).incarnations] == [0, 2]
    assert recover(tmp_path, 1).end == at(tmp_path, 1, 12)
    assert ranks_part(tmp_path) is None


def test_a_rank_of_a_life_that_counts_no_more_has_no_live_history(tmp_path: Path) -> None:
    ranks(tmp_path, 5)
    resumed(tmp_path, 4, 8, 0)
    life(tmp_path, 1, run(8)[4:], 1, joined(tmp_path, 4))
    life(tmp_path, 0, run(6)[2:], 2, Position(0, 2, Journal(tmp_path).seek(2).chain))
    assert told(tmp_path) == [*pairs(1, 2, 0), *pairs(3, 6, 0, number=2)]
    assert Journal(tmp_path, rank=1).last is None
    assert len(Journal(tmp_path, rank=1, history="all")) == 4


def test_a_rank_that_died_before_a_life_of_the_run_began_takes_part_in_the_next(tmp_path: Path) -> None:
    ranks(tmp_path, 6, 6)
    resumed(tmp_path, 4, 5, 0)
    for rank in (0, 1):
        parent = Position(0, 4, Journal(tmp_path, rank=rank, history="all").seek(4).chain)
        life(tmp_path, rank, run(8)[4:], 2, parent)
    assert told(tmp_path) == [*pairs(1, 4, 0, 1), *pairs(5, 8, 0, 1, number=2)]
    assert told(tmp_path, history="all") == [*pairs(1, 6, 0, 1), (5, 0, 1), *pairs(5, 8, 0, 1, number=2)]


def test_a_rank_that_lost_what_it_went_on_from_is_refused(tmp_path: Path) -> None:
    ranks(tmp_path, 6, 6)
    resumed(tmp_path, 4, 8, 0, 1)
    next(rank_directory(tmp_path, 1).glob("*.i0.jsonl")).unlink()
    with pytest.raises(JournalCorrupt, match=r"i1\.jsonl.*goes on from seq 4"):
        list(Journal(tmp_path, rank=1))
    assert len(list(Journal(tmp_path))) == 8


# -- followed ----------------------------------------------------------------------------------------------


def test_all_ranks_are_followed_those_that_come_later_included(tmp_path: Path) -> None:
    done, outs = run(6), [writer(tmp_path, rank=0)]
    for transition in done[:3]:
        outs[0].append(*transition)

    def looks() -> Any:
        outs.append(writer(tmp_path, rank=1))
        for transition in of_rank(done[:4], 1):
            outs[1].append(*transition)
        yield False
        outs[0].append(*done[3])
        yield False
        yield True

    look = looks()
    follow = Journal(tmp_path, rank="all").follow(stop=lambda: next(look), sleep=lambda seconds: None)
    assert [(item.seq, item.rank) for item in follow] == [
        *[(n, 0) for n in (1, 2, 3)],
        *[(n, 1) for n in (1, 2, 3, 4)],
        (4, 0),
    ]
    for out in outs:
        kill(out)


def test_what_all_ranks_have_at_one_look_is_followed_in_order(tmp_path: Path) -> None:
    ranks(tmp_path, 5, 4)
    follow = Journal(tmp_path, rank="all").follow(stop=lambda: True, after=2)
    assert [(item.seq, item.rank) for item in follow] == [(3, 0), (3, 1), (4, 0), (4, 1), (5, 0)]


# -- where ranks part --------------------------------------------------------------------------------------


def otherwise(records: list[Transition], seq: int, **changes: Any) -> list[Transition]:
    """The same transitions, one of them with another state."""
    source, event, after = records[seq - 1]
    return [*records[: seq - 1], (source, event, attrs.evolve(after, **changes)), *records[seq:]]


def test_ranks_with_equal_states_do_not_part_whatever_their_losses(tmp_path: Path) -> None:
    assert ranks_part(ranks(tmp_path, 20, 18, 20)) is None


def test_the_first_transition_where_a_rank_parts_is_named_with_the_rank_and_both_values(tmp_path: Path) -> None:
    ranks(tmp_path, 12, 12)
    life(tmp_path, 2, otherwise(otherwise(run(12), 9, samples=7), 11, validations=9))
    found = ranks_part(tmp_path)
    there = Journal(tmp_path).seek(9).state.samples
    assert found == Divergence(9, "rank-2.state.samples", there, 7, "the one is rank 0, the other rank 2", 2)
    assert str(found).startswith(f"transition 9 of rank 2: rank-2.state.samples is {there} in the one and 7 in")


def test_another_event_is_a_parting_and_other_limits_are_not(tmp_path: Path) -> None:
    done = run(8)
    life(tmp_path, 0, done)
    life(tmp_path, 1, [(s, e, attrs.evolve(after, n_epochs=3)) for s, e, after in done])
    assert ranks_part(tmp_path) is None
    source, _, after = done[7]
    stopped = Stopped(reason="enough").fold(done[6][2], "done")
    life(tmp_path, 2, [*done[:7], (source, Stopped(reason="enough"), stopped)])
    found = ranks_part(tmp_path)
    assert found is not None
    assert (found.seq, found.field, found.a, found.b, found.rank) == (8, "rank-2.event", "Stepped", "Stopped", 2)
    assert after.seq == 8


def test_how_a_rank_failed_is_no_parting(tmp_path: Path) -> None:
    done = run(8)
    ended = [(s.state, e, e.fold(s, "exception")) for s, e in [(done[6][2], Failed(error="x", kind="ValueError"))]]
    life(tmp_path, 0, [*done[:7], *ended])
    life(tmp_path, 1, done)
    life(tmp_path, 2, otherwise(done, 8, samples=1))
    found = ranks_part(tmp_path)
    assert found is not None
    assert (found.seq, found.rank, found.cause) == (8, 2, "the one is rank 1, the other rank 2")


def test_a_rank_that_joined_is_held_against_the_others_from_there_on(tmp_path: Path) -> None:
    ranks(tmp_path, 9)
    resumed(tmp_path, 6, 12, 0)
    life(tmp_path, 1, otherwise(run(12), 10, samples=1)[6:], 1, joined(tmp_path, 6))
    found = ranks_part(tmp_path)
    assert found is not None
    assert (found.seq, found.field) == (10, "rank-1.state.samples")


def test_the_search_for_a_parting_needs_memory_that_does_not_grow_with_the_journals(tmp_path: Path) -> None:
    def peak(run_dir: Path) -> int:
        tracemalloc.start()
        assert ranks_part(run_dir) is None
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    short, long = ranks(tmp_path / "short", 2_000, 2_000), ranks(tmp_path / "long", 8_000, 8_000)
    peak(short)
    assert peak(long) < 1.5 * peak(short)


# -- runs compared -----------------------------------------------------------------------------------------


def with_loss(records: list[Transition], seq: int, loss: float) -> list[Transition]:
    source, event, after = records[seq - 1]
    assert isinstance(event, Stepped)
    return [*records[: seq - 1], (source, attrs.evolve(event, loss=loss), after), *records[seq:]]


STEPS = [after.seq for _, event, after in run(20) if isinstance(event, Stepped)]


def test_equal_runs_of_several_ranks_do_not_differ_and_neither_do_beginnings(tmp_path: Path) -> None:
    a, b = ranks(tmp_path / "a", 15, 15), ranks(tmp_path / "b", 15, 12)
    assert diff(a, b) is None
    assert diff(a, b, rank=1) is None


def test_a_difference_on_any_rank_is_found_with_the_rank(tmp_path: Path) -> None:
    a, b = ranks(tmp_path / "a", 15, 15, 15), ranks(tmp_path / "b", 15)
    life(b, 1, with_loss(run(15), STEPS[2], 50.0))
    life(b, 2, with_loss(run(15), STEPS[1], 60.0))
    found = diff(a, b)
    assert found is not None
    assert (found.seq, found.field, found.b, found.rank) == (STEPS[1], "data.loss", 62.0, 2)
    assert f"transition {STEPS[1]} of rank 2: data.loss is " in str(found)
    one = diff(a, b, rank=1)
    assert one is not None
    assert (one.seq, one.rank) == (STEPS[2], 1)
    assert diff(a, b, rank=0) is None


def test_of_ranks_that_differ_at_one_transition_the_lowest_is_named(tmp_path: Path) -> None:
    a, b = ranks(tmp_path / "a", 9, 9, 9), ranks(tmp_path / "b", 9)
    for rank in (1, 2):
        life(b, rank, with_loss(run(9), STEPS[1], 5.0))
    found = diff(a, b)
    assert found is not None
    assert (found.seq, found.rank) == (STEPS[1], 1)


def test_runs_of_different_numbers_of_ranks_are_compared_by_their_states(tmp_path: Path) -> None:
    a, b = ranks(tmp_path / "a", 15, 15), tmp_path / "b"
    life(b, 0, with_loss(run(15), STEPS[0], 9.0))
    assert diff(a, b) is None
    c = tmp_path / "c"
    life(c, 0, otherwise(with_loss(run(15), STEPS[0], 9.0), STEPS[2], optimizer_steps=77))
    found = diff(a, c)
    assert found is not None
    assert (found.seq, found.field, found.b, found.rank) == (STEPS[2], "state.optimizer_steps", 77, 0)
    assert found.cause == "the runs have 2 and 1 ranks here, so only their states are compared"


def test_a_run_that_went_on_with_fewer_ranks_is_compared_by_everything_up_to_there(tmp_path: Path) -> None:
    a, b, c = ranks(tmp_path / "a", 15, 15), ranks(tmp_path / "b", 8, 8), ranks(tmp_path / "c", 4, 4)
    life(b, 0, with_loss(run(15), STEPS[3], 9.0)[7:], 1, at(b, 0, 7))
    assert diff(a, b) is None, "past the resume only states are compared, which are equal"
    life(c, 0, with_loss(run(15), STEPS[1], 9.0)[4:], 1, at(c, 0, 4))
    assert diff(a, c) is None
    changed = with_loss(run(15), STEPS[0], 9.0)[:8]
    d = tmp_path / "d"
    for rank in (0, 1):
        life(d, rank, changed)
    life(d, 0, run(15)[7:], 1, at(d, 0, 7))
    found = diff(a, d)
    assert found is not None
    assert (found.seq, found.field) == (STEPS[0], "data.loss")


def test_a_rank_that_joined_is_compared_with_one_that_was_there_from_the_start(tmp_path: Path) -> None:
    a, b = ranks(tmp_path / "a", 15, 15), ranks(tmp_path / "b", 8)
    life(b, 0, run(15)[7:], 1, at(b, 0, 7))
    life(b, 1, run(15)[7:], 1, joined(b, 7))
    assert diff(a, b, rank=1) is None, "its chain tells of another past, its records don't"
    c = ranks(tmp_path / "c", 8)
    life(c, 0, run(15)[7:], 1, at(c, 0, 7))
    life(c, 1, with_loss(run(15), STEPS[3], 9.0)[7:], 1, joined(c, 7))
    found = diff(a, c, rank=1)
    assert found is not None
    assert (found.seq, found.field, found.rank) == (STEPS[3], "data.loss", 1)


def test_runs_without_a_rank_in_common_are_refused_and_so_is_a_rank_that_is_not_there(tmp_path: Path) -> None:
    a, b = ranks(tmp_path / "a", 3, 3), ranks(tmp_path / "b", 3, 3)
    with pytest.raises(JournalError, match="has no journal of rank 5, but of 0, 1"):
        diff(a, b, rank=5)
    shutil.rmtree(rank_directory(a, 0))
    shutil.rmtree(rank_directory(b, 1))
    with pytest.raises(CallerError, match=r"have no rank in common: \[1\] and \[0\]"):
        diff(a, b)


# -- replayed ----------------------------------------------------------------------------------------------


def test_the_journal_of_any_rank_can_be_replayed(tmp_path: Path) -> None:
    ranks(tmp_path, 8, 8)
    losses: list[list[float]] = [[], []]
    for rank in (0, 1):
        replay(tmp_path, rank=rank).on(Stepped, lambda r, of=rank: losses[of].append(r.last_loss)).run()
    own = [[r.data["loss"] for r in Journal(tmp_path, rank=rank) if r.event == "Stepped"] for rank in (0, 1)]
    assert losses == own
    assert [round(b - a, 9) for a, b in zip(*losses, strict=True)] == [1.0] * len(own[0])

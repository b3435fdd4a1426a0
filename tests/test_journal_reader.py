"""Reading: incarnations, superseded records, what a resumed run is held against, ranks, seeking, following."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import tracemalloc
from pathlib import Path

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tachograph.engine.journal import Journal, JournalCorrupt, JournalError, JournalLock, Position, recover
from tachograph.engine.journal.segments import BLOCK
from tachograph.states import Failed, Fetched, Stepped, Stopped, TrainerState
from tests.test_journal_support import Quick, Transition, folder, kill, only_file, run, same, states_of, writer, written


def live(
    run_dir: Path,
    number: int,
    after: tuple[int, int] | None,
    records: list[Transition],
    *sides: str,
    **settings: object,
) -> None:
    """Write one incarnation that went on from (incarnation, seq), and leave it as a kill would."""
    lock = JournalLock(run_dir)
    recover(run_dir, files=Quick())
    parent = None
    if after is not None:
        told_before = Journal(run_dir, history="all")
        found = next((r for r in told_before if (r.incarnation, r.seq) == after), None)
        parent = Position(*after, found.chain if found else "0" * 16)
    out = writer(run_dir, incarnation=number, parent=parent, lock=lock, files=Quick(), **settings)
    for transition in records:
        out.append(*transition)
    for kind in sides:
        out.side(kind)
    kill(out)


def otherwise(records: list[Transition]) -> list[Transition]:
    """The same transitions with other losses."""
    return [(s, attrs.evolve(e, loss=9.5) if isinstance(e, Stepped) else e, after) for s, e, after in records]


def told(run_dir: Path, **settings: object) -> list[tuple[int, int]]:
    return [(r.incarnation, r.seq) for r in Journal(run_dir, **settings)]  # type: ignore[arg-type]


def test_the_live_history_leaves_out_what_a_resume_superseded(tmp_path: Path) -> None:
    done = run(20)
    live(tmp_path, 0, None, done[:10])
    live(tmp_path, 1, (0, 6), done[6:12])
    live(tmp_path, 2, (1, 9), done[9:20], seal_records=4)
    assert told(tmp_path) == [(0, n) for n in range(1, 7)] + [(1, n) for n in range(7, 10)] + [
        (2, n) for n in range(10, 21)
    ]
    assert same(list(Journal(tmp_path)), done)
    assert told(tmp_path, history="all") == [(0, n) for n in range(1, 11)] + [(1, n) for n in range(7, 13)] + [
        (2, n) for n in range(10, 21)
    ]
    assert (len(Journal(tmp_path)), len(Journal(tmp_path, history="all"))) == (20, 27)
    assert [Journal(tmp_path).seek(n).incarnation for n in (6, 7, 9, 10)] == [0, 1, 1, 2]


def test_the_incarnations_are_listed_with_where_they_began_and_ended(tmp_path: Path) -> None:
    done = run(12)
    live(tmp_path, 0, None, done[:10])
    lock = JournalLock(tmp_path)
    chain = Journal(tmp_path).seek(6).chain
    out = writer(tmp_path, incarnation=1, parent=Position(0, 6, chain), lock=lock, machine="m2")
    out.append(*done[6])
    out.close()
    first, second = Journal(tmp_path).incarnations
    assert (first.number, first.parent, first.first_seq, first.last_seq, first.closed) == (0, None, 1, 10, False)
    assert (second.parent, second.first_seq, second.last_seq, second.closed) == (Position(0, 6, chain), 7, 7, True)
    assert second.chain == Journal(tmp_path).chain
    assert second.machine == "m2"
    assert second.opened == 1796081234.25
    assert [p.name for p in second.files] == ["000000000007.i1.jsonl"]


def test_an_incarnation_without_a_record_ends_where_its_parent_was(tmp_path: Path) -> None:
    done = run(5)
    live(tmp_path, 0, None, done)
    live(tmp_path, 1, (0, 3), [])
    journal = Journal(tmp_path)
    assert states_of(tmp_path) == [1, 2, 3]
    assert journal.chain == journal.seek(3).chain
    assert journal.last is not None
    assert journal.last.seq == len(journal) == 3
    assert recover(tmp_path).end == Position(1, 3, journal.chain)


def test_a_second_resume_from_the_same_snapshot_leaves_the_first_one_out(tmp_path: Path) -> None:
    done = run(12)
    live(tmp_path, 0, None, done[:8])
    live(tmp_path, 1, (0, 4), done[4:6])
    live(tmp_path, 2, (0, 4), done[4:12])
    assert told(tmp_path) == [(0, n) for n in range(1, 5)] + [(2, n) for n in range(5, 13)]


def test_a_resume_from_before_the_first_transition_starts_over(tmp_path: Path) -> None:
    done = run(6)
    live(tmp_path, 0, None, done[:5])
    live(tmp_path, 1, (0, 0), done)
    assert told(tmp_path) == [(1, n) for n in range(1, 7)]
    assert sorted(Journal(tmp_path).expected_after(0, 0)) == list(range(1, 7))


def accounts(run_dir: Path, incarnation: int, seq: int) -> dict[int, int]:
    return {n: r.incarnation for n, r in Journal(run_dir).expected_after(incarnation, seq).items()}


def test_of_several_accounts_past_a_snapshot_the_newest_is_expected(tmp_path: Path) -> None:
    done = run(20)
    live(tmp_path, 0, None, done[:12])
    live(tmp_path, 1, (0, 6), done[6:9])
    assert accounts(tmp_path, 0, 6) == {7: 1, 8: 1, 9: 1, 10: 0, 11: 0, 12: 0}
    assert accounts(tmp_path, 0, 8) == {9: 0, 10: 0, 11: 0, 12: 0}
    assert accounts(tmp_path, 1, 8) == {9: 1}
    assert accounts(tmp_path, 1, 6) == {7: 1, 8: 1, 9: 1, 10: 0, 11: 0, 12: 0}
    assert accounts(tmp_path, 0, 12) == {}


def test_accounts_older_than_a_divergence_do_not_count_past_its_end(tmp_path: Path) -> None:
    done = run(20)
    live(tmp_path, 0, None, done[:12])
    live(tmp_path, 1, (0, 6), otherwise(done[6:9]), "diverged")
    assert accounts(tmp_path, 0, 6) == {7: 1, 8: 1, 9: 1}
    live(tmp_path, 2, (1, 8), otherwise(done[8:11]))
    assert accounts(tmp_path, 0, 6) == {7: 1, 8: 1, 9: 2, 10: 2, 11: 2}


def test_an_end_is_not_expected_again(tmp_path: Path) -> None:
    done = run(6)
    state = done[-1][2]
    for number, event in enumerate((Stopped(reason="limit"), Failed(error="x"))):
        run_dir = tmp_path / str(number)
        dest = "done" if isinstance(event, Stopped) else "exception"
        live(run_dir, 0, None, [*done, (state.state, event, event.fold(state, dest))])
        assert sorted(Journal(run_dir).expected_after(0, 4)) == [5, 6]


def test_expecting_after_an_unknown_incarnation_is_an_error(tmp_path: Path) -> None:
    live(tmp_path, 0, None, run(3))
    with pytest.raises(JournalError, match="has no incarnation 3"):
        Journal(tmp_path).expected_after(3, 1)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_tree_of_resumes_reads_as_one_straight_run(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    run_dir, done = tmp_path_factory.mktemp("run"), run(40)
    ends: list[int] = []
    for number in range(data.draw(st.integers(1, 5))):
        if number:
            parent = data.draw(st.integers(0, number - 1))
            reached = [s for i, s in told(run_dir, history="all") if i == parent] or [0]
            after = (parent, data.draw(st.sampled_from(reached)))
        else:
            after = None
        start = after[1] if after else 0
        end = data.draw(st.integers(start, 40))
        live(run_dir, number, after, done[start:end], seal_records=data.draw(st.integers(2, 9)))
        ends.append(end)
    journal = Journal(run_dir)
    records = list(journal)
    assert same(records, done[: ends[-1]])
    assert len(journal) == ends[-1]
    assert [journal.seek(r.seq).line for r in records] == [r.line for r in records]
    assert journal.verify_chain() == journal.chain
    assert [i.last_seq for i in journal.incarnations] == ends


def test_side_records_stand_between_the_transitions_they_followed(tmp_path: Path) -> None:
    done = run(3)
    with writer(tmp_path) as out:
        out.append(*done[0])
        out.side("saved", path="snapshots/1", size=float("inf"))
        out.append(*done[1])
    kinds = [item.event if hasattr(item, "event") else item.kind for item in Journal(tmp_path).everything()]
    assert kinds == ["opened", "Started", "saved", "EpochBegan", "closed"]
    (saved,) = Journal(tmp_path).sides("saved")
    assert (saved.seq, saved.data, saved.incarnation) == (1, {"path": "snapshots/1", "size": float("inf")}, 0)
    assert saved.meta == {"time": 1796081235.0 - 0.25}


def test_ranks_are_merged_by_seq(tmp_path: Path) -> None:
    done = run(4)
    for rank in (2, 0, 1):
        with writer(tmp_path, rank=rank) as out:
            for transition in done:
                out.append(*transition)
    assert [(r.seq, r.rank) for r in Journal(tmp_path, rank="all")] == [(n, k) for n in range(1, 5) for k in range(3)]
    assert [r.rank for r in Journal(tmp_path, rank=2)] == [2] * 4
    assert len(Journal(tmp_path, rank="all")) == 12
    with pytest.raises(JournalError, match="no journal of rank 7, but of 0, 1, 2"):
        Journal(tmp_path, rank=7)


def test_a_seq_that_is_not_there_is_answered_with_the_range(tmp_path: Path) -> None:
    written(tmp_path, 5)
    for seq in (0, 6, -1):
        with pytest.raises(JournalError, match=f"has no transition {seq}: it holds 1 to 5"):
            Journal(tmp_path).seek(seq)


def test_a_folder_that_is_no_run_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="isn't a run directory: it has no journal/rank-0"):
        Journal(tmp_path)
    with pytest.raises(JournalError, match="isn't a run directory"):
        Journal(tmp_path / "nowhere")


def test_an_empty_journal_has_an_end_before_the_first_transition(tmp_path: Path) -> None:
    written(tmp_path, 0)
    journal = Journal(tmp_path)
    assert (list(journal), len(journal), journal.last, journal.chain) == ([], 0, None, "0" * 16)
    assert journal.verify_chain() == "0" * 16
    with pytest.raises(JournalError, match="it is empty"):
        journal.seek(1)


def test_salvage_reads_what_is_right_and_lists_what_it_passed_over(tmp_path: Path) -> None:
    written(tmp_path, 9)
    path = only_file(tmp_path)
    lines = path.read_bytes().splitlines(keepends=True)
    offset = sum(map(len, lines[:4]))
    path.write_bytes(b"".join([*lines[:4], b"x" + lines[4][1:], *lines[5:]]))
    with pytest.raises(JournalCorrupt) as caught:
        states_of(tmp_path)
    assert (caught.value.file, caught.value.offset) == (path, offset)
    journal = Journal(tmp_path, salvage=True)
    assert [r.seq for r in journal] == [1, 2, 3, 5, 6, 7, 8, 9]
    (damage,) = journal.damage
    assert (damage.file, damage.offset, damage.bytes) == (path, offset, len(lines[4]))
    assert damage.reason == "a line that isn't JSON"


def test_salvage_reads_on_after_a_zeroed_stretch_and_without_a_header(tmp_path: Path) -> None:
    written(tmp_path, 30, seal_records=20)
    (packed,) = folder(tmp_path).glob("*.gz")
    lines = gzip.decompress(packed.read_bytes()).splitlines(keepends=True)
    hole = b"".join(lines[5:8])
    packed.unlink()
    packed.with_suffix("").write_bytes(b"".join([b"{}\n", *lines[1:5], bytes(len(hole)), *lines[8:]]))
    journal = Journal(tmp_path, salvage=True)
    # the record after a hole can't be checked: what it follows is gone
    assert [r.seq for r in journal] == [*range(2, 5), *range(9, 31)]
    assert [d.bytes for d in journal.damage if d.offset][-1] == len(hole) + len(lines[8])
    assert next(iter(journal)).state.seq == 2


def test_salvage_reads_a_compressed_segment_up_to_where_it_is_torn(tmp_path: Path) -> None:
    written(tmp_path, 400, seal_records=300)
    (packed,) = folder(tmp_path).glob("*.gz")
    packed.write_bytes(packed.read_bytes()[:-200])
    read = states_of(tmp_path, salvage=True)
    assert read[-100:] == list(range(301, 401))
    assert read == sorted(read)


@pytest.mark.parametrize("at", [0, 5, 9])
def test_a_changed_record_under_right_checksums_is_found_by_its_chain(tmp_path: Path, at: int) -> None:
    from tachograph.engine.journal.codec import sealed

    written(tmp_path, 10, close=False)
    path, crc, out = only_file(tmp_path), 0, []
    for number, line in enumerate(path.read_bytes().splitlines()):
        body = line.rpartition(b',"crc"')[0]
        if number == at + 1:
            body = body.replace(b'"validations":', b'"validations":9')
        line, crc = sealed(body, crc)
        out.append(line)
    path.write_bytes(b"".join(out))
    (folder(tmp_path) / "durable.json").unlink()
    assert len(states_of(tmp_path)) == 10
    with pytest.raises(JournalCorrupt, match=f"the chain of seq {at + 1} should be"):
        Journal(tmp_path).verify_chain()


def test_following_gives_every_record_once_and_never_half_a_line(tmp_path: Path) -> None:
    written(tmp_path, 6, close=False)
    path = only_file(tmp_path)
    header, *lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(header)
    (folder(tmp_path) / "durable.json").unlink()
    pieces = [piece for line in lines for piece in (line[:1], line[1:200], line[200:-1], line[-1:])]

    def one_piece_more() -> bool:
        if not pieces:
            return True
        with path.open("ab") as file:
            file.write(pieces.pop(0))
        return False

    seen = list(Journal(tmp_path).follow(stop=one_piece_more, sleep=lambda _: None))
    assert [record.line + b"\n" for record in seen] == lines


def test_following_can_begin_later_and_take_side_records_along(tmp_path: Path) -> None:
    done = run(4)
    with writer(tmp_path) as out:
        for transition in done:
            out.append(*transition)
            out.side("noted", n=transition[2].seq)
    journal = Journal(tmp_path)
    seen = list(journal.follow(stop=lambda: True, after=2, sides=True))
    assert [getattr(i, "kind", i.seq) for i in seen] == ["noted", 3, "noted", 4, "noted", "closed"]


@pytest.mark.parametrize("after", range(21))
def test_following_from_anywhere_gives_what_is_live_from_there_on(tmp_path: Path, after: int) -> None:
    done = run(20)
    live(tmp_path, 0, None, done[:13], seal_records=3)
    live(tmp_path, 1, (0, 11), done[11:20], seal_records=4)
    seen = list(Journal(tmp_path).follow(stop=lambda: True, after=after))
    assert [(r.incarnation, r.seq) for r in seen] == [x for x in told(tmp_path) if x[1] > after]
    expected = Journal(tmp_path).expected_after(0, min(after, 11))
    assert [(r.incarnation, n) for n, r in expected.items()] == [x for x in told(tmp_path) if x[1] > min(after, 11)]


def test_following_refuses_damage(tmp_path: Path) -> None:
    written(tmp_path, 4, close=False)
    path = only_file(tmp_path)
    path.write_bytes(path.read_bytes().replace(b'"seq":3', b'"seq":4'))
    with pytest.raises(JournalCorrupt):
        list(Journal(tmp_path).follow(stop=lambda: True))


def test_the_end_of_a_long_torn_segment_is_found(tmp_path: Path) -> None:
    written(tmp_path, 300, close=False)
    with only_file(tmp_path).open("ab") as file:
        file.write(bytes(3 * BLOCK))
    journal = Journal(tmp_path)
    assert len(journal) == 300
    assert journal.last is not None
    assert journal.last.seq == 300


def test_memory_stays_flat_while_writing_and_reading(tmp_path: Path) -> None:
    out = writer(tmp_path)
    fetched, stepped = Fetched(ids="0" * 16), Stepped(loss=0.5, lr=[0.1], samples=16)
    state = TrainerState(state="fetch")

    def steps(n: int) -> None:
        nonlocal state
        for _ in range(n):
            state = fetched.fold(state, "step")
            out.append("fetch", fetched, state)
            state = stepped.fold(state, "fetch")
            out.append("step", stepped, state)

    steps(100)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        steps(5000)
        assert tracemalloc.get_traced_memory()[0] - before < 16_384
        out.close()
        tracemalloc.reset_peak()
        assert sum(1 for _ in Journal(tmp_path)) == 10_200
        assert tracemalloc.get_traced_memory()[1] - before < 12 * BLOCK
    finally:
        tracemalloc.stop()


def test_reading_needs_no_torch() -> None:
    code = "import sys, json, tachograph.engine.journal; print(json.dumps('torch' in sys.modules))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert json.loads(said) is False

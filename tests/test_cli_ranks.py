"""`tachograph show` of a run of several ranks: side by side, merged, followed; who waits for whom, who failed first."""

from __future__ import annotations

import json
import re
import subprocess
import tracemalloc
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import attrs
import pytest

from tachograph.drivers.ranks import RankFailed
from tachograph.engine import recording
from tachograph.engine.cli.ranks import Abreast
from tachograph.engine.cli.screen import Screen
from tachograph.engine.journal import Journal, JournalWriter, Position, rank_directory
from tachograph.states import Failed
from tests.test_cli_start import LOADED
from tests.test_cli_support import PROGRAM, Said, cli, in_a_process
from tests.test_journal_ranks import of_rank
from tests.test_journal_support import Quick, Transition
from tests.test_journal_support import run as transitions
from tests.toys import stub

START = 1796081234.0
STEP = 0.02
Delay = Callable[[int, str], float]


def none(rank: int, source: str) -> float:
    return 0.0


class Run:
    """A run of several ranks, written by this process as if by many.

    Args:
        run_dir: where.
        world: how many ranks `run.json` names.
        delay: seconds by which a rank leaves a state late.
    """

    def __init__(self, run_dir: Path, world: int, delay: Delay = none) -> None:
        self.path, self.delay = run_dir, delay
        self.about = {**recording.create(run_dir, {}, {}), "world": world}
        recording.write_json(run_dir / "run.json", self.about)

    def rank(
        self,
        rank: int,
        records: Iterable[Transition],
        error: tuple[str, str, float] | None = None,
        number: int = 0,
        parent: Position | None = None,
        close: bool = False,
    ) -> JournalWriter:
        """Write a rank's records, and the (kind, text, delay) of what it failed of; leave it as it is, or close it."""
        now = [START + 100 * number]
        out = JournalWriter.create(
            self.path, run_id=self.about["run"], rank=rank, incarnation=number, parent=parent, files=Quick(),
            clock=lambda: now[0], sync_every=3600.0,
        )  # fmt: skip
        after: Any = None
        for source, event, after in of_rank(list(records), rank):
            now[0] = START + 100 * number + after.seq * STEP + self.delay(rank, source)
            out.append(source, event, after)
        if error is not None:
            failed = Failed(error=error[1], kind=error[0])
            now[0] += error[2]
            out.append(after.state, failed, failed.fold(after, "exception"))
        if close:
            out.close()
        return out

    def show(self, *options: str) -> Said:
        return cli("show", self.path, *options)

    def json(self) -> Any:
        return self.show("--json").json()["ranks"]

    def dead(self, *ranks: int) -> None:
        """Have it that the processes of ranks are gone."""
        process = subprocess.Popen(["true"])
        process.wait()
        for rank in ranks:
            lock = rank_directory(self.path, rank) / "lock"
            lock.write_text(json.dumps({**json.loads(lock.read_text()), "pid": process.pid}))


def sentences(said: Said) -> list[str]:
    """What is said below the table of the ranks."""
    return [line for line in said.section("Ranks") if re.match("(Rank|The|Which)", line)]


def table(said: Said) -> list[list[str]]:
    return [re.split(r"\s{2,}", line) for line in said.section("Ranks") if re.match(r"\d", line)]


# -- the table ---------------------------------------------------------------------------------------------


def test_a_run_of_one_rank_has_no_such_section(run_dir: Path) -> None:
    stub(run_dir=run_dir).run()
    said = cli("show", run_dir)
    assert "Ranks" not in said.out
    assert cli("show", run_dir, "--json").json()["ranks"] is None


def test_every_rank_is_listed_with_where_it_stands(run_dir: Path) -> None:
    run = Run(run_dir, 4)
    done = transitions(12)
    held = [run.rank(0, done), run.rank(1, done[:10]), run.rank(3, done, close=True)]
    run.dead(1)
    said = run.show()
    assert [(row[:3], row[-1]) for row in table(said)] == [
        (["0", "fetch", "12"], "still running"),
        (["1", "epoch_end", "10"], "killed"),
        (["3", "fetch", "12"], "fetch"),
        (["2", "it has no journal"], "it has no journal"),
    ]
    assert table(said)[1][3] == "2", "behind"
    found = run.json()
    assert [(row["rank"], row["seq"], row["behind"], row["ended"]) for row in found["rows"]] == [
        (0, 12, 0, "running"), (1, 10, 2, "killed"), (3, 12, 0, "closed")
    ]  # fmt: skip
    assert [row["time"] for row in found["rows"]] == [pytest.approx(START + n * STEP) for n in (12, 10, 12)]
    assert (found["missing"], found["machines"]) == ([2], 1)
    assert len(held) == 3


def test_without_rank_0_the_lowest_rank_stands_for_the_run(run_dir: Path) -> None:
    run = Run(run_dir, 2)
    run.rank(1, transitions(9), close=True)
    said = run.show()
    assert said.status == 0
    assert "Stands in" in said.out
    assert table(said)[-1] == ["0", "it has no journal"]
    assert "no journal of rank 0, but of 1" in run.show("--rank", "0").err


def test_one_rank_that_is_asked_for_is_shown_alone(run_dir: Path) -> None:
    run = Run(run_dir, 2)
    run.rank(0, transitions(9), close=True)
    run.rank(1, transitions(8), close=True)
    said = run.show("--rank", "1")
    assert "after transition 8," in said.out
    assert "Ranks" not in said.out
    for wrong in ("some", "-1", "1.0"):
        said = run.show(f"--rank={wrong}")
        assert (said.status, said.out) == (2, "")
        assert f"{wrong!r} isn't the number of a rank, nor 'all'" in said.err


def test_a_rank_that_was_left_out_at_a_resume_and_one_that_joined_are_said_to_be(run_dir: Path) -> None:
    run = Run(run_dir, 2)
    done = transitions(14)
    for rank in (0, 1):
        run.rank(rank, done[:9]).abandon()
    chain = Journal(run_dir).seek(6).chain
    run.rank(0, done[6:], number=1, parent=Position(0, 6, chain), close=True)
    run.rank(2, done[6:13], number=1, parent=Position(-1, 6, chain), close=True)
    said = run.show()
    assert [(row[0], row[2], row[-1]) for row in table(said)] == [
        ("0", "14", "fetch"), ("1", "6", "no more part of the run"), ("2", "13", "step")
    ]  # fmt: skip
    assert run.json()["waits_for"] == {"ranks": [2], "by": "transition", "behind": 1}
    assert " joined at 6 " in run.show("--rank", "2").section("Incarnations")[0]
    left = run.show("--rank", "1")
    assert " to 6 " in left.section("Incarnations")[0]
    assert "after transition 6," in left.out
    assert sum(state["visits"] for state in run.show("--rank", "1", "--json").json()["states"]) == 6


# -- who waits for whom ------------------------------------------------------------------------------------


def test_the_others_wait_for_the_rank_that_has_come_least_far(run_dir: Path) -> None:
    run = Run(run_dir, 3)
    done = transitions(12)
    held = [run.rank(0, done), run.rank(1, done[:10]), run.rank(2, done)]
    assert run.json()["waits_for"] == {"ranks": [1], "by": "transition", "behind": 2}
    said = sentences(run.show())[0]
    assert re.fullmatch("The others wait for rank 1, in epoch_end, since .*: 2 transitions behind the furthest", said)
    for out in held:
        out.close()
    assert sentences(run.show())[0] == "Rank 1 had come least far, to epoch_end: 2 transitions behind the furthest"


def test_several_ranks_that_the_others_wait_for_are_all_named(run_dir: Path) -> None:
    run = Run(run_dir, 3)
    run.rank(0, transitions(5), close=True)
    run.rank(1, transitions(4), close=True)
    run.rank(2, transitions(4), close=True)
    assert sentences(run.show())[0] == "Ranks 1 and 2 had come least far, to fetch: 1 transition behind the furthest"


def slow_in_fetch(rank: int, source: str) -> float:
    """Rank 2 leaves fetch late; it is back in step when all have stepped together."""
    return 0.012 if (rank, source) == (2, "fetch") else 0.0001 * rank


def test_of_ranks_that_have_come_equally_far_the_slowest_is_named_from_the_records_times(run_dir: Path) -> None:
    run = Run(run_dir, 3, slow_in_fetch)
    for rank in range(3):
        run.rank(rank, transitions(60), close=True)
    found = run.json()
    assert found["waits_for"] == {"ranks": [2], "by": "time", "behind": 0}
    slowest = found["slowest"]
    assert (slowest["rank"], slowest["state"], slowest["others_wait_in"]) == (2, "fetch", "step")
    assert slowest["seconds"] == pytest.approx(0.012, abs=1e-5)
    late = found["rows"][2]["late_by_state"]
    assert (late["fetch"], late["step"]) == (pytest.approx(0.012, abs=1e-5), pytest.approx(2e-4, abs=1e-5))
    assert found["rows"][0]["late"] == 0.0
    (said,) = sentences(run.show())
    assert said.startswith("Rank 2 is the slowest: it leaves fetch 12 ms after the first rank, at the median; ")
    assert said.endswith("; the others wait for it in step")
    assert table(run.show())[2][3] == "12 ms in fetch"


def test_a_rare_state_makes_no_rank_the_slowest(run_dir: Path) -> None:
    def delay(rank: int, source: str) -> float:
        return 0.015 if (rank, source) == (0, "validate") else slow_in_fetch(rank, source)

    run = Run(run_dir, 3, delay)
    for rank in range(3):
        run.rank(rank, transitions(90), close=True)
    assert (run.json()["slowest"]["rank"], run.json()["slowest"]["state"]) == (2, "fetch")


def test_of_the_states_that_a_rank_leaves_late_the_one_that_costs_most_is_named(run_dir: Path) -> None:
    run = Run(run_dir, 2, lambda rank, source: rank * {"fetch": 0.012, "validate": 0.015}.get(source, 0.0))
    for rank in range(2):
        run.rank(rank, transitions(90), close=True)
    found = run.json()
    assert found["rows"][1]["late_by_state"]["validate"] == pytest.approx(0.015, abs=1e-5)
    assert found["slowest"]["state"] == found["rows"][1]["latest"]["state"] == "fetch"


def test_ranks_that_keep_in_step_are_said_to(run_dir: Path) -> None:
    run = Run(run_dir, 2, lambda rank, source: rank * 2e-4)
    for rank in range(2):
        run.rank(rank, transitions(20), close=True)
    said = "The ranks keep in step: at the median, none leaves a state more than 200 us after the first"
    assert sentences(run.show()) == [said]


def test_the_last_thousand_transitions_that_all_have_count_and_no_pause_between_lives(run_dir: Path) -> None:
    done = transitions(1500)

    def delay(rank: int, source: str) -> float:
        return 5.0 if rank and source == "init" else 0.0

    run = Run(run_dir, 2, delay)
    run.rank(0, done[:1200]).abandon()
    run.rank(1, done[:1200]).abandon()
    for rank in (0, 1):
        run.rank(rank, done[1100:1400], number=1, parent=position(run_dir, rank, 1100), close=True)
    found = run.json()
    assert found["measured"] == 1000
    assert found["slowest"]["seconds"] == 0.0
    passings = Abreast(Journal(run_dir, rank="all"), since=1000).passings([0, 1])
    assert [n for n, passing in enumerate(passings, 1000) if not passing.dwells] == [1101]


def position(run_dir: Path, rank: int, seq: int) -> Position:
    return Position(0, seq, Journal(run_dir, rank=rank).seek(seq).chain)


def test_clocks_of_several_machines_are_remarked_on(run_dir: Path) -> None:
    run = Run(run_dir, 2)
    for rank in range(2):
        run.rank(rank, transitions(6), close=True)
    lock = rank_directory(run_dir, 1) / "lock"
    lock.write_text(json.dumps({**json.loads(lock.read_text()), "host": "elsewhere.example"}))
    assert run.json()["machines"] == 2
    assert "by the clocks of 2 machines" in run.show().out


# -- who failed first --------------------------------------------------------------------------------------

BY_ANOTHER = RankFailed.__name__


def test_the_rank_that_failed_first_is_named_with_its_error_and_those_that_ended_because_of_it(run_dir: Path) -> None:
    """R17."""
    run = Run(run_dir, 3)
    done = transitions(13)
    run.rank(0, done, (BY_ANOTHER, "rank 1 failed", 0.2), close=True)
    run.rank(1, done[:12], ("ValueError", "a broken\nsample", 0.01), close=True)
    run.rank(2, done, (BY_ANOTHER, "rank 1 failed", 0.2), close=True)
    said = run.show()
    first, others, *_ = sentences(said)
    where = "Rank 1 failed first, in fetch, at transition 13"
    assert re.fullmatch(rf"{where}, [\d:.]+: ValueError: a broken\\nsample", first)
    assert others == "Ranks 0 and 2 ended because of it"
    assert [row[-1] for row in table(said)] == ["failed: RankFailed", "failed: ValueError", "failed: RankFailed"]
    failure = run.json()["failure"]
    assert (failure["rank"], failure["state"], failure["seq"]) == (1, "fetch", 13)
    assert (failure["kind"], failure["error"]) == ("ValueError", "a broken\nsample")
    assert (failure["because"], failure["as_well"]) == ([0, 2], [])
    assert run.json()["parting"] is None, "another end is no parting"


def test_of_several_ranks_that_failed_by_themselves_the_first_in_time_is_named(run_dir: Path) -> None:
    run = Run(run_dir, 3)
    run.rank(0, transitions(9), ("KeyError", "x", 0.5), close=True)
    run.rank(1, transitions(9), (BY_ANOTHER, "", 0.6), close=True)
    run.rank(2, transitions(9), ("OSError", "disk", 0.1), close=True)
    first, as_well, others, *_ = sentences(run.show())
    assert first.startswith("Rank 2 failed first")
    assert as_well == "Rank 0 failed as well, of an error of its own"
    assert others == "Rank 1 ended because of it"


def test_a_rank_that_was_killed_is_what_the_others_ended_of(run_dir: Path) -> None:
    run = Run(run_dir, 2)
    run.rank(0, transitions(9), (BY_ANOTHER, "rank 1 is gone", 0.1), close=True)
    run.rank(1, transitions(8)).abandon()
    run.dead(1)
    said = sentences(run.show())
    assert said[:2] == ["Rank 1 left no record of its end", "Rank 0 ended because of it"]
    assert run.json()["failure"]["gone"] == [1]


def test_where_no_journal_tells_who_failed_first_that_is_said(run_dir: Path) -> None:
    run = Run(run_dir, 3)
    for rank in (0, 1):
        run.rank(rank, transitions(9), (BY_ANOTHER, "rank 2 is gone", 0.1), close=True)
    assert sentences(run.show())[0] == "Which rank failed first is in no journal here"


# -- ranks that part ---------------------------------------------------------------------------------------


def parted(run_dir: Path) -> Run:
    run = Run(run_dir, 2)
    done = transitions(12)
    run.rank(0, done, close=True)
    source, event, after = done[8]
    run.rank(1, [*done[:8], (source, event, attrs.evolve(after, samples=7)), *done[9:]], close=True)
    return run


def test_ranks_that_part_are_said_to_loudly(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = parted(run_dir)
    line = next(line for line in run.show().lines if "PART" in line)
    samples = Journal(run_dir).seek(9).state.samples
    assert line == (
        f"  THE RANKS PART at transition 9: state.samples is {samples} and 7 (the one is rank 0, the other rank 1). "
        "They don't train one model any more"
    )
    found = run.json()["parting"]
    assert (found["seq"], found["rank"], found["field"], found["a"], found["b"]) == (
        9, 1, "rank-1.state.samples", samples, 7
    )  # fmt: skip
    monkeypatch.setattr(Screen, "style", lambda screen, text, name: f"<{name}>{text}")
    assert "<red>  THE RANKS PART" in run.show().out


def test_ranks_that_do_not_part_are_not_said_to(run_dir: Path) -> None:
    run = Run(run_dir, 2)
    for rank in range(2):
        run.rank(rank, transitions(12), close=True)
    assert "PART" not in run.show().out


# -- all records, merged -----------------------------------------------------------------------------------


def both(run_dir: Path) -> Run:
    run = Run(run_dir, 2)
    run.rank(0, transitions(6), close=True)
    run.rank(1, transitions(5), close=True)
    return run


def test_the_records_of_all_ranks_are_listed_merged_with_their_rank(run_dir: Path) -> None:
    said = both(run_dir).show("--rank", "all")
    assert [line.split()[:3] for line in said.lines] == [
        [str(seq), "rank", str(rank)] for seq in range(1, 7) for rank in (0, 1) if seq + rank < 7
    ]
    assert said.lines[-1].split()[4:8] == ["Stepped", "step", "->", "fetch"]
    records = cli("show", run_dir, "--rank", "all", "--json").json_lines()
    assert [(r["seq"], r["rank"]) for r in records if "event" in r] == [
        (seq, rank) for seq in range(1, 7) for rank in (0, 1) if seq + rank < 7
    ]


def test_what_matches_is_searched_for_on_all_ranks(run_dir: Path) -> None:
    said = both(run_dir).show("--rank", "all", "--grep", "Stepped")
    assert [line.split()[:3] for line in said.lines] == [["4", "rank", "0"], ["4", "rank", "1"], ["6", "rank", "0"]]
    assert cli("show", run_dir, "--rank", "all", "--grep", "no such thing").status == 1
    assert "rank 0" not in cli("show", run_dir, "--grep", "Stepped").out, "of one rank, it isn't said"


def test_one_transition_is_printed_as_each_rank_has_it(run_dir: Path) -> None:
    said = both(run_dir).show("--rank", "all", "--at", "4")
    losses = [line.split()[-1] for line in said.lines if line.strip().startswith("loss")]
    assert losses == ["1.0", "2.0"]
    assert [line.split(maxsplit=1)[1] for line in said.lines if "incarnation" in line] == ["0", "0, rank 1"]
    assert sum("(was fetch)" in line or "(was step)" in line for line in said.lines) == 2
    assert [r["rank"] for r in cli("show", run_dir, "--rank", "all", "--at", "6", "--json").json_lines()] == [0]
    assert "has no transition 9" in cli("show", run_dir, "--rank", "all", "--at", "9").err


def test_a_run_without_a_record_lists_nothing(run_dir: Path) -> None:
    run = Run(run_dir, 2)
    for rank in range(2):
        run.rank(rank, [], close=True)
    said = run.show("--rank", "all")
    assert (said.status, said.out, said.err) == (1, "", "there is no record\n")
    assert [row[-1] for row in table(run.show())] == ["closed", "closed"]


# -- live --------------------------------------------------------------------------------------------------


def test_all_ranks_are_followed_until_all_are_closed(run_dir: Path) -> None:
    run, done = Run(run_dir, 2), transitions(8)
    outs = [run.rank(rank, done[:4]) for rank in range(2)]
    command = [*PROGRAM, "show", str(run_dir), "--follow", "--rank", "all"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        seen = [reader.stdout.readline().split()[:3] for _ in range(2)]
        assert seen == [["4", "rank", "0"], ["4", "rank", "1"]], "the last transition of each"
        outs[1].append(*of_rank(done[4:5], 1)[0])
        assert reader.stdout.readline().split()[:3] == ["5", "rank", "1"]
        outs[1].close()
        outs[0].append(*done[4])
        assert reader.stdout.readline().split()[:3] == ["5", "rank", "0"], "it goes on while one rank does"
        outs[0].close()
        rest, err = reader.communicate(timeout=60)
        assert (rest, err, reader.returncode) == ("", "", 0)


def test_a_rank_that_comes_while_the_run_is_followed_is_waited_for_as_well(run_dir: Path) -> None:
    run, done = Run(run_dir, 2), transitions(8)
    first = run.rank(0, done[:4])
    command = [*PROGRAM, "show", str(run_dir), "--follow", "--rank", "all"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline().split()[:3] == ["4", "rank", "0"]
        later = run.rank(1, done[:4])
        assert reader.stdout.readline().split()[:3] == ["4", "rank", "1"]
        first.close()
        for transition in of_rank(done[4:8], 1):  # one after the other, so that the end of rank 0 is read meanwhile
            later.append(*transition)
            assert reader.stdout.readline().split()[1:3] == ["rank", "1"]
        later.close()
        rest, err = reader.communicate(timeout=60)
        assert (rest, err, reader.returncode) == ("", "", 0)


def test_following_ends_when_every_rank_is_closed_or_gone_and_names_those_that_are_gone(run_dir: Path) -> None:
    run = Run(run_dir, 2)
    run.rank(0, transitions(6), close=True)
    run.rank(1, transitions(5)).abandon()
    run.dead(1)
    said = run.show("--follow", "--rank", "all")
    assert said.status == 0
    assert [line.split()[:3] for line in said.lines][-1] == ["6", "rank", "0"]
    assert said.err == "rank 1 of the run was killed after transition 5: its process is gone\n"


# -- what goes wrong ---------------------------------------------------------------------------------------


def damaged(run_dir: Path) -> tuple[Run, Path]:
    run = both(run_dir)
    path = next(rank_directory(run_dir, 1).glob("*.jsonl"))
    path.write_bytes(path.read_bytes().replace(b'"seq":3,', b'"seq":8,', 1))
    return run, path


def test_a_damaged_rank_is_one_sentence_that_names_the_file_and_the_way(run_dir: Path) -> None:
    run, path = damaged(run_dir)
    for options in ([], ["--json"], ["--rank", "all"], ["--rank", "1"]):
        said = run.show(*options)
        assert said.status == 2
        assert len(said.err.splitlines()) == 1
        assert f"{path} is damaged at byte " in said.err
        assert "--salvage" in said.err
    assert run.show("--rank", "0").status == 0
    said = run.show("--salvage")
    assert said.status == 0
    assert [row[:3] for row in table(said)] == [["0", "fetch", "6"], ["1", "step", "5"]]
    assert path.name in said.section("Damage")[0]
    assert [d["file"] for d in run.show("--salvage", "--json").json()["damage"]] == [str(path)]


def test_no_torch_is_imported_and_rich_for_the_tables_only(run_dir: Path) -> None:
    both(run_dir)
    for options in ([], ["--rank", "all"], ["--follow", "--rank", "all"], ["--json"]):
        loaded = in_a_process(LOADED, "show", run_dir, *options).stderr.split()
        assert "tachograph.engine.journal" in loaded
        assert not {"torch", "tachograph.engine.trainer"} & set(loaded)
        assert ("rich" in loaded) == (options == [])


def test_memory_does_not_grow_with_the_journals(tmp_path: Path) -> None:
    def peak(run: Run) -> int:
        tracemalloc.start()
        assert run.show("--json", "--rows", "5").status == 0
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    runs = []
    for name, length in (("short", 2_000), ("long", 8_000)):
        runs.append(Run(tmp_path / name, 2))
        for rank in range(2):
            runs[-1].rank(rank, transitions(length), close=True)
    short, long = runs
    peak(short)
    assert peak(long) < 1.5 * peak(short)


def test_nothing_in_the_run_directory_changes(run_dir: Path) -> None:
    def tree() -> dict[Path, tuple[int, bytes]]:
        return {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in run_dir.rglob("*") if p.is_file()}

    run = both(run_dir)
    before = tree()
    for options in ("", "--json", "--rank all", "--rank all --follow", "--rank 1", "--rank all --all", "--salvage"):
        run.show(*options.split())
    assert tree() == before

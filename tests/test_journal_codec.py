"""One line: what goes in comes out, and the chain covers what must be equal and nothing else."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any
from zlib import crc32

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tachograph.engine.journal import Journal, JournalError
from tachograph.engine.journal.codec import GENESIS, chained, defaults_of, encoder, next_chain, stored_crc
from tachograph.states import CallerError, Event, Failed, StateFault, Stepped, Stopped, TrainerState
from tachograph.states.trainer_state import LIMITS
from tests.test_journal_support import run, same, ticking, writer, written

DOCS = Path(__file__).parent.parent / "docs" / "journal.md"

numbers = st.integers(-(2**63), 2**63 - 1) | st.floats()
leaves = st.none() | st.booleans() | numbers | st.text().filter(lambda t: t not in ("nan", "inf", "-inf"))
plain = st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)


@attrs.frozen(kw_only=True)
class Learnt(Event):
    what: Any = None
    note: str = ""


@attrs.frozen(kw_only=True)
class Rollout:
    state: str = "collect"
    seq: int = 0
    episodes: int = 0
    best: dict[str, float] = attrs.field(factory=dict)
    budget: int = 10
    LIMITS = ("budget",)


def same_bits(a: Any, b: Any) -> bool:
    return repr(a) == repr(b)  # tells -0.0 from 0, 1 from 1.0, and takes NaN for NaN


@given(what=plain, note=st.text())
def test_any_plain_data_comes_back_as_it_went_in(
    tmp_path_factory: pytest.TempPathFactory, what: Any, note: str
) -> None:
    run_dir = tmp_path_factory.mktemp("run")
    event = Learnt(what=what, note=note)
    with writer(run_dir) as out:
        out.append("init", event, event.fold(TrainerState(), "epoch_begin"))
    (record,) = Journal(run_dir)
    note = note if note not in ("nan", "inf", "-inf") else float(note)  # type: ignore[assignment]
    assert same_bits(record.data["what"], what)
    assert same_bits(record.data["note"], note)


def test_a_whole_run_comes_back_with_its_states_nan_and_infinity_included(tmp_path: Path) -> None:
    done = written(tmp_path, 60)
    records = list(Journal(tmp_path))
    assert same(records, done)
    assert [r.seq for r in records] == list(range(1, 61))
    losses = [r.data["loss"] for r in records if r.event == "Stepped"]
    assert losses[3] == 0.1 + 0.2
    assert math.isnan(losses[4])
    assert losses[5] == -math.inf
    assert records[-1].state.results["worst"] == math.inf


def test_a_record_gives_every_field_of_its_event_also_those_that_the_line_leaves_out(tmp_path: Path) -> None:
    written(tmp_path, 4)
    record = Journal(tmp_path).seek(4)
    assert "skipped" not in json.loads(record.line)["data"]
    assert "results" not in json.loads(record.line)["state"]
    assert record.state.results == {}
    assert record.data["skipped"] is False
    assert record.data["lr"] == [1e-3, 3e-4]
    assert set(record.data) == {a.name for a in attrs.fields(Stepped)}


def test_a_number_is_never_left_out_since_zeros_have_signs() -> None:
    @attrs.frozen
    class Zero(Event):
        x: float = 0.0
        on: bool = False

    assert defaults_of([Zero]) == {"Zero": {"on": False}}


def test_a_string_that_says_null_and_a_none_beside_a_nan_are_told_apart(tmp_path: Path) -> None:
    told = [Learnt(what="null", note="null"), Learnt(what=[None, math.nan]), Learnt(what={"a": None}), Learnt()]
    state = TrainerState()
    with writer(tmp_path) as out:
        for event in told:
            state = event.fold(state, "fetch")
            out.append("fetch", event, state)
    read = [r.data["what"] for r in Journal(tmp_path)]
    assert repr(read) == "['null', [None, nan], {'a': None}, None]"


def test_text_that_utf8_cannot_hold_is_escaped_rather_than_lost(tmp_path: Path) -> None:
    event = Failed(error="bad \udcff byte", kind="ValueError")
    with writer(tmp_path) as out:
        out.append("init", event, event.fold(TrainerState(), "exception"))
    assert Journal(tmp_path).seek(1).data["error"] == "bad \\udcff byte"


def test_what_a_record_cannot_hold_is_refused_by_name_and_the_writer_goes_on(tmp_path: Path) -> None:
    bad = Learnt(what=object())
    good = Stopped(reason="enough")
    with writer(tmp_path) as out:
        with pytest.raises(JournalError, match="Learnt at seq 1 holds what a record can't"):
            out.append("init", bad, bad.fold(TrainerState(), "done"))
        out.append("init", good, good.fold(TrainerState(), "done"))
    assert [r.event for r in Journal(tmp_path)] == ["Stopped"]


def test_a_side_record_that_holds_what_json_cannot_is_refused_by_name(tmp_path: Path) -> None:
    with writer(tmp_path) as out, pytest.raises(JournalError, match="a 'noted' record after seq 0 holds what it can't"):
        out.side("noted", what=object())


def test_a_transition_out_of_order_is_refused(tmp_path: Path) -> None:
    first, second = run(2)
    with writer(tmp_path) as out:
        with pytest.raises(JournalError, match="transition 2 can't follow 0"):
            out.append(*second)
        out.append(*first)
        with pytest.raises(JournalError, match="transition 1 can't follow 1"):
            out.append(*first)


def test_the_chain_is_the_same_at_other_times_and_with_other_limits(tmp_path: Path) -> None:
    written(tmp_path / "a", 40)
    longer = run(40, TrainerState(n_epochs=7, total_batches=12345))
    with writer(tmp_path / "b", clock=ticking(5.0), seal_records=7) as out:
        for n, transition in enumerate(longer):
            out.append(*transition)
            out.side("noted", text=str(n))
    assert Journal(tmp_path / "a").chain == Journal(tmp_path / "b").chain


def test_the_chain_is_the_same_wherever_a_run_was_broken_and_resumed(tmp_path: Path) -> None:
    from tachograph.engine.journal import JournalLock, recover

    done = run(30)
    written(tmp_path / "straight", 30)
    for number, upto in enumerate((11, 12, 30)):
        lock = JournalLock(tmp_path / "broken")
        end = recover(tmp_path / "broken").end
        parent = None if end.incarnation < 0 else end
        out = writer(tmp_path / "broken", incarnation=number, parent=parent, lock=lock)
        for transition in done[end.seq : upto]:
            out.append(*transition)
        out.abandon()
    assert states_equal(tmp_path / "straight", tmp_path / "broken")


def states_equal(a: Path, b: Path) -> bool:
    chains = [[(r.seq, r.chain) for r in Journal(path)] for path in (a, b)]
    return chains[0] == chains[1] and Journal(a).verify_chain() == Journal(b).verify_chain()


@pytest.mark.parametrize("change", ["loss", "source", "dest", "seq", "state"])
def test_the_chain_moves_with_everything_that_must_be_equal(change: str) -> None:
    encode = encoder(TrainerState)
    event, source, state = Stepped(loss=1.0), "step", TrainerState(state="fetch", seq=5)
    _, before, _ = encode(source, event, state, GENESIS, 0, 1.0)
    if change == "loss":
        event = Stepped(loss=math.nextafter(1.0, 2.0))
    elif change == "source":
        source = "fetch"
    else:
        value: Any = {"dest": "validate", "seq": 6, "state": 1}[change]
        state = attrs.evolve(state, **{{"dest": "state", "seq": "seq", "state": "samples"}[change]: value})
    assert encode(source, event, state, GENESIS, 0, 1.0)[1] != before


def test_chain_and_checksum_follow_from_the_stored_bytes_alone(tmp_path: Path) -> None:
    written(tmp_path, 20)
    chain, crc = GENESIS, 0
    for item in Journal(tmp_path).everything():
        body, _, rest = item.line.rpartition(b',"crc":')
        crc = crc32(body, crc)
        assert rest == b'"%08x"}' % crc
        if item.line.startswith(b'{"seq"'):
            found = re.fullmatch(rb'(.*),"n_epochs":[^,]*,"total_batches":[^,]*\},"meta":.*,"chain":"(\w{16})"', body)
            assert found is not None
            chain = next_chain(chain, found[1])
            assert chain.hex().encode() == found[2]
            assert chained(item.line, ("n_epochs", "total_batches")) == found[1]


def test_a_checksum_is_compared_as_bytes() -> None:
    assert stored_crc(b'{"a":1,"crc":"0000abcd"}') == 0xABCD
    for wrong in (b"0000ABCD", b"0x00abcd", b" 000abcd", b"0000_bcd", b"+000abcd"):
        assert stored_crc(b'{"a":1,"crc":"%b"}' % wrong) is None


def test_another_state_class_is_read_as_a_plain_dict_and_its_limits_leave_the_chain_alone(tmp_path: Path) -> None:
    chains = []
    for budget in (10, 99):
        run_dir = tmp_path / str(budget)
        with writer(run_dir, state_class=Rollout, events=[Learnt]) as out:
            out.append("collect", Learnt(what=1), Rollout(state="learn", seq=1, best={"r": math.nan}, budget=budget))
        record = Journal(run_dir).seek(1)
        read = record.state
        assert math.isnan(read.pop("best")["r"])
        assert read == {"state": "learn", "seq": 1, "episodes": 0, "budget": budget}
        chains.append(Journal(run_dir).verify_chain())
    assert chains[0] == chains[1]


def test_limits_that_are_not_the_last_fields_are_refused() -> None:
    with pytest.raises(CallerError, match="must be the last fields of Rollout"):
        encoder(Rollout, ("episodes",))


def test_a_state_with_a_field_too_many_is_refused_on_reading(tmp_path: Path) -> None:
    @attrs.frozen(kw_only=True)
    class Other:
        state: str = "a"
        seq: int = 0
        colour: str = "red"

    Other.__name__ = "TrainerState"
    with writer(tmp_path, state_class=Other) as out:
        out.append("a", Learnt(), Other(seq=1))
    with pytest.raises(StateFault, match="unknown field 'colour'"):
        Journal(tmp_path).seek(1).state


def test_the_record_of_a_training_step_takes_450_bytes_at_most(tmp_path: Path) -> None:
    event = Stepped(loss=0.6931471824645996, lr=[0.001], samples=32, rng=0x884C7D65)
    state = TrainerState(
        state="fetch", seq=199999, num_batches_per_epoch=1000, cur_epoch_idx=9, batch_idx_in_epoch=999,
        global_forward_batches=99999, optimizer_steps=99999, samples=3199968, place=31968,
        n_epochs=10, total_batches=100000,
    )  # fmt: skip
    with writer(tmp_path, first_seq=199999) as out:
        out.append("step", event, state)
    (record,) = Journal(tmp_path, history="all", salvage=True)
    assert len(record.line) + 1 <= 450


def test_the_documented_line_is_what_is_written() -> None:
    event = Stepped(loss=0.6931471824645996, lr=[0.001], samples=32, rng=0x884C7D65)
    state = TrainerState(
        state="fetch", seq=257, num_batches_per_epoch=100, cur_epoch_idx=1, batch_idx_in_epoch=27,
        global_forward_batches=127, optimizer_steps=127, samples=4064, place=864, n_epochs=20,
    )  # fmt: skip
    encode = encoder(TrainerState, defaults=defaults_of([TrainerState, Stepped], LIMITS))
    line, _, _ = encode("step", event, state, GENESIS, 0, 1796081234.123456)
    assert line.decode().rstrip("\n") in DOCS.read_text()

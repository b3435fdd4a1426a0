"""Which snapshots are kept: the rules as such, and runs that obey them whatever happens to them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from tachograph.engine.retention import Entry, Keep, superfluous
from tachograph.states import TrainerState
from tachograph.states.errors import CallerError

# -- the rules ---------------------------------------------------------------------------------------------


def entry(seq: int, score: float | None = None, *, life: int = 0, exact: bool = True, live: bool = True) -> Entry:
    """A snapshot after batch `seq`, in epoch `seq // 10`, whose last validation was the one after batch `seq`."""
    results = {} if score is None else {"acc#val": score}
    state = {"results": results, "validations": seq, "global_forward_batches": seq, "cur_epoch_idx": seq // 10}
    return Entry(Path(f"{seq}.i{life}"), life, seq, exact, live, state)


def left(entries: list[Entry], keep: Keep, protected: tuple[Path, ...] = ()) -> list[str]:
    gone = superfluous(entries, keep, protected)
    assert gone == sorted(gone, key=lambda e: (e.incarnation, e.seq)), "the oldest goes first"
    return [str(e.path) for e in entries if e not in gone]


def test_the_last_so_many_are_those_that_were_taken_last() -> None:
    held = [entry(seq) for seq in (1, 2, 3, 4)]
    assert left(held, Keep(last=2)) == ["3.i0", "4.i0"]
    assert left(held, Keep(last=9)) == ["1.i0", "2.i0", "3.i0", "4.i0"]
    assert left([], Keep(last=1)) == []


def test_the_best_are_those_with_the_best_results_and_of_equal_ones_the_earlier() -> None:
    held = [entry(1, 0.5), entry(2, 0.9), entry(3, 0.7), entry(4, 0.9), entry(5, 0.1), entry(6)]
    assert left(held, Keep(best=1, monitor="acc#val")) == ["2.i0", "6.i0"]
    assert left(held, Keep(best=3, monitor="acc")) == ["2.i0", "3.i0", "4.i0", "6.i0"]
    assert left(held, Keep(best=2, monitor="acc", larger_better=False)) == ["1.i0", "5.i0", "6.i0"]


def test_what_is_not_a_number_is_never_among_the_best() -> None:
    held = [entry(1, math.nan), entry(2, 0.1), entry(3, math.nan), entry(4)]
    for larger in (True, False):
        assert left(held, Keep(best=2, monitor="acc", larger_better=larger)) == ["2.i0", "4.i0"]
    held = [entry(1, math.inf), entry(2, -math.inf), entry(3)]
    assert left(held, Keep(best=1, monitor="acc")) == ["1.i0", "3.i0"]


def test_of_one_validation_the_first_snapshot_is_kept_and_takes_one_place() -> None:
    def between(seq: int, score: float, validations: int) -> Entry:
        state = {"results": {"acc#val": score}, "validations": validations}
        return Entry(Path(f"{seq}.i0"), 0, seq, True, True, state)

    held = [between(1, 0.9, 1), between(2, 0.9, 1), between(3, 0.9, 1), between(4, 0.4, 2), between(5, 0.4, 2)]
    assert left(held, Keep(best=2, monitor="acc")) == ["1.i0", "4.i0", "5.i0"]


def test_an_earlier_life_with_other_metrics_is_no_error() -> None:
    other = Entry(Path("1.i0"), 0, 1, True, True, {"results": {"loss#val": 9.0}, "validations": 1})
    broken = Entry(Path("2.i0"), 0, 2, True, True, {})
    held = [other, broken, entry(3, 0.5), entry(4)]
    assert left(held, Keep(best=3, monitor="acc")) == ["3.i0", "4.i0"]


def test_every_n_batches_or_epochs_the_first_snapshot_from_there_on_is_kept() -> None:
    held = [entry(seq) for seq in (3, 7, 11, 14, 21, 28, 35, 36)]
    assert left(held, Keep(every=7)) == ["7.i0", "14.i0", "21.i0", "28.i0", "35.i0", "36.i0"]
    assert left(held, Keep(every=10)) == ["11.i0", "21.i0", "35.i0", "36.i0"]
    assert left(held, Keep(every=-1)) == ["11.i0", "21.i0", "35.i0", "36.i0"]
    assert left(held, Keep(every=-2)) == ["21.i0", "36.i0"]


def test_the_rules_add_up() -> None:
    held = [entry(seq, score) for seq, score in ((5, 0.9), (10, 0.1), (15, 0.2), (20, 0.3), (25, 0.4))]
    assert left(held, Keep(last=2, best=1, monitor="acc", every=10)) == ["5.i0", "10.i0", "20.i0", "25.i0"]


def test_inexact_ones_count_apart_and_go_when_an_exact_one_follows() -> None:
    exact, inexact = [entry(seq) for seq in (1, 2, 3)], [entry(seq, exact=False) for seq in (4, 5)]
    assert left([*exact, *inexact], Keep(last=2)) == ["2.i0", "3.i0", "5.i0"]
    later = entry(4, life=1)
    assert left([*exact, *inexact, later], Keep(last=2)) == ["3.i0", "4.i1"]


def test_what_was_superseded_stays_while_it_is_among_the_last_and_is_never_among_the_best() -> None:
    """Resumed from 2: what came after it in the first life is off the history that goes on."""
    old = [entry(1, 0.1), entry(2, 0.2), entry(3, 0.99, live=False), entry(4, 0.3, live=False)]
    keep = Keep(last=2, best=1, monitor="acc")
    assert left([*old, entry(3, 0.25, life=1)], keep) == ["4.i0", "3.i1"]
    assert left([*old, entry(3, 0.15, life=1)], keep) == ["2.i0", "4.i0", "3.i1"]
    assert left([*old, entry(3, 0.25, life=1), entry(4, 0.1, life=1)], keep) == ["3.i1", "4.i1"]
    assert left(old[:2] + [entry(3, 0.9, live=False), entry(3, 0.9, life=1)], Keep(every=1)) == ["1.i0", "2.i0", "3.i1"]


def test_what_is_protected_stays() -> None:
    held = [entry(seq) for seq in (1, 2, 3)]
    assert left(held, Keep(last=1), (held[0].path,)) == ["1.i0", "3.i0"]


# -- what is given -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"last": 0}, "last must be an integer >= 1, not 0"),
        ({"last": True}, "last must be an integer >= 1, not True"),
        ({"last": 2.0}, "last must be an integer >= 1"),
        ({"best": -1, "monitor": "acc"}, "best must be an integer >= 0, not -1"),
        ({"best": 1}, "best and monitor belong together: monitor is missing"),
        ({"monitor": "acc"}, "best and monitor belong together: best is missing"),
        ({"best": 1, "monitor": len}, "monitor must be a key of the results"),
        ({"every": 0}, r"every must be n > 0 \(batches\), -n \(epochs\) or None, not 0"),
        ({"every": "epoch"}, "every must be n > 0"),
        ({"larger_better": 1}, "larger_better must be True or False"),
    ],
)
def test_rules_that_make_no_sense_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(CallerError, match=f"Keep: {said}"):
        Keep(**given)


@pytest.mark.parametrize("given", [0, -1, True, 2.0, "3", [2]])
def test_what_is_no_rule_is_refused(given: Any) -> None:
    with pytest.raises(CallerError, match=r"keep_snapshots must be None \(all\), an integer >= 1 or a Keep\(...\)"):
        Keep.of(given)


def test_a_rule_is_a_setting_in_plain_data() -> None:
    assert Keep.of(None) is None
    assert Keep.of(3) == Keep(last=3)
    assert Keep.of(Keep(last=3)).plain() == 3  # type: ignore[union-attr]
    assert Keep(best=2, monitor="acc", every=-5).plain() == {"last": 1, "best": 2, "monitor": "acc", "every": -5}


def test_a_state_that_cannot_answer_is_refused_by_the_field_that_it_lacks() -> None:
    class Own:
        cur_epoch_idx = 0

    Keep(last=3).check_state(Own())
    Keep(every=-1).check_state(Own())
    Keep(best=1, monitor="acc", every=4).check_state(TrainerState())
    with pytest.raises(CallerError, match="Keep: every looks at global_forward_batches, which Own doesn't have"):
        Keep(every=1).check_state(Own())
    with pytest.raises(CallerError, match="Keep: best looks at results, which Own doesn't have"):
        Keep(best=1, monitor="acc").check_state(Own())

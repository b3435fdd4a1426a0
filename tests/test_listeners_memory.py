"""What listeners remember: over a resume at any transition, over a second run, and apart from each other."""

from __future__ import annotations

import contextlib
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tachograph.drivers import StubDriver
from tachograph.engine import Callback, EarlyStopping, Events, Filter, Trainer
from tachograph.states.errors import CallerError
from tests.toys import Counts, Sum, stub, validated


class Crash(Exception):
    pass


MOMENTS = (
    *("on_train_batch_begin", "on_before_backward", "on_after_backward", "on_before_optimizer_step"),
    *("on_after_optimizer_step", "on_before_zero_grad", "on_after_zero_grad", "on_train_batch_end"),
    *("on_fetch_data_begin", "on_fetch_data_end", "on_train_epoch_begin", "on_train_epoch_end"),
    *("on_validate_begin", "on_validate_end", "on_validate_batch_begin", "on_sanity_check_end"),
)
OTHERS = ("step -> fetch", "epoch_end -> epoch_begin", "Stepped", "Fetched", "Exhausted", "fetch", "step", "validate")


def by_counts(filter: Filter, trainer: Any) -> bool:
    return filter.num_called % 3 == filter.num_executed % 2


FILTERS: dict[str, dict[str, Any]] = {
    "every": {"every": 3},
    "once": {"once": 4},
    "once of several": {"once": [1, 2, 5, 8, 9]},
    "before": {"before": 4},
    "after": {"after": 3},
    "between": {"after": 2, "before": 7},
    "function": {"filter_fn": by_counts},
}


def listening(run_dir: Path, filters: list[tuple[str, dict[str, Any]]], **about: Any) -> tuple[Trainer, list[Any]]:
    """A run with windows, validations and an open tail; and what its filtered listeners heard, by transition."""
    heard: list[Any] = []
    crash = about.pop("crash", None)

    def strike(driver: StubDriver) -> None:
        if driver.calls.count("train_step") == crash:
            raise Crash

    trainer = stub(
        [1, 2, 3, 4, 5],
        StubDriver(known_length=about.pop("known_length", True), on={"train_step": strike}),
        n_epochs=2,
        accumulation_steps=2,
        validate_every=(2, -1),
        metrics={"m": Sum()},
        validate_dataloaders=[5, 6],
        run_dir=run_dir,
        seed=5,
        **{"snapshot_every": None, **about},
    )

    for number, (target, arguments) in enumerate(filters):

        def note(trainer: Any, *args: Any, number: int = number) -> None:
            heard.append((trainer.trainer_state.seq, number, trainer.trainer_state.global_forward_batches))

        note.__qualname__ = f"note{number}"
        if target in MOMENTS:
            trainer.on(getattr(Events, target)(**arguments), note)
        else:
            trainer.on(target, Filter(**arguments)(note))
    return trainer, heard


def stopping(trainer: Trainer, stop: int) -> Trainer:
    for name in trainer.machine.names:
        if name not in trainer.machine.final:
            trainer.on(name, lambda trainer: trainer.trainer_state.seq == stop and trainer.stop(), priority=-1)
    return trainer


EACH = [(target, arguments) for target in MOMENTS for arguments in FILTERS.values()]
EACH += [(target, arguments) for target in OTHERS for arguments in FILTERS.values()]


GROUPS = 4  # a fourth of them at each transition, in turn: subscribing to all takes longer than the runs


def group(number: int) -> list[Any]:
    return [entry for i, entry in enumerate(EACH) if i % GROUPS == number % GROUPS]


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, list[Any]]]:
    """For each group the last transition, and what is heard."""
    folder = tmp_path_factory.mktemp("straight")
    runs = [listening(folder / str(number), group(number)) for number in range(GROUPS)]
    return [(trainer.run().seq, heard) for trainer, heard in runs]


def test_every_filter_of_every_kind_fires_somewhere_in_the_straight_run(straight: list[Any]) -> None:
    silent = set()
    for number, (_, heard) in enumerate(straight):
        fired = {i for _, i, _ in heard}
        silent |= {target for i, (target, _) in enumerate(group(number)) if i not in fired}
    assert silent <= {"on_sanity_check_end", "on_train_epoch_begin", "on_train_epoch_end", *OTHERS[1:5:3]}


def test_resumed_after_any_transition_every_filter_fires_where_the_straight_run_s_does(
    tmp_path: Path, straight: list[Any]
) -> None:
    """B5, F7, R56: every moment with every kind of filter; the counts are the run's, not the process's."""
    for stop in range(1, straight[0][0]):
        run_dir = tmp_path / str(stop)
        first, before = listening(run_dir, group(stop))
        stopping(first, stop).run()
        again, after = listening(run_dir, group(stop))
        again.run(resume_from="auto")
        assert [entry for entry in before if entry[0] <= stop] + after == straight[stop % GROUPS][1], stop


filters = st.one_of(
    st.builds(lambda n: {"every": n}, st.integers(1, 6)),
    st.builds(lambda n: {"once": n}, st.integers(1, 20)),
    st.builds(lambda n: {"once": sorted(n)}, st.sets(st.integers(1, 20), min_size=1)),
    st.builds(lambda n: {"before": n}, st.integers(1, 20)),
    st.builds(lambda n: {"after": n}, st.integers(0, 20)),
    st.builds(lambda a, b: {"after": a, "before": b}, st.integers(0, 10), st.integers(1, 20)),
    st.builds(
        lambda a, b: {"filter_fn": lambda f, t: (f.num_called * a + f.num_executed) % b == 0}, *2 * [st.integers(1, 5)]
    ),
)


def expect_the_same_calls(chosen: list[Any], crashes: list[int], every: Any, known_length: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        about = {"snapshot_every": every, "known_length": known_length}
        whole, expected = listening(Path(folder) / "straight", chosen, **about)
        whole.run()
        heard: dict[Any, None] = {}
        for crash in [*crashes, None]:
            trainer, now = listening(Path(folder) / "run", chosen, crash=crash, **about)
            with contextlib.suppress(Crash):
                trainer.run(resume_from="auto")
            died = trainer.exception is not None
            heard |= dict.fromkeys(e for e in now if not died or e[0] < trainer.trainer_state.seq)
        assert sorted(heard) == sorted(set(expected))


deaths = {
    "chosen": st.lists(st.tuples(st.sampled_from(MOMENTS + OTHERS), filters), min_size=1, max_size=4),
    "crashes": st.lists(st.integers(1, 9), min_size=1, max_size=3),
    "every": st.sampled_from([1, 3, "epoch"]),
    "known_length": st.booleans(),
}


@pytest.mark.filterwarnings("ignore:.*isn't exact")
@settings(max_examples=8, deadline=None)
@given(**deaths)
def test_a_run_that_dies_again_and_again_fires_its_filters_as_the_straight_run_does(**how: Any) -> None:
    """B5: deaths inside a step, resumed from an older snapshot; what is done again is heard again."""
    expect_the_same_calls(**how)


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore:.*isn't exact")
@settings(max_examples=60, deadline=None)
@given(**deaths)
def test_many_runs_that_die_again_and_again_fire_their_filters_as_the_straight_run_does(**how: Any) -> None:
    expect_the_same_calls(**how)


# -- whose memory is whose ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "named", [[""] * 4, ["Counts#2", "", ""], ["", "Counts#2", ""], ["", "", "a", "b"], ["Counts#3", "", "", ""]]
)
def test_no_two_callbacks_share_a_key_whatever_they_call_themselves(run_dir: Path, named: list[str]) -> None:
    """N4, R42: after five snapshots as many entries as callbacks, and each gets its own latest value."""
    first = [Counts(100 * i, name) for i, name in enumerate(named)]
    trainer = stub([1] * 5, n_epochs=1, run_dir=run_dir, snapshot_every=1, callbacks=first)
    trainer.run()
    assert len(trainer.listeners.callbacks) == len(named) + 1  # the policy of snapshots is one too
    again = [Counts(name=name) for name in named]
    stub([1] * 5, n_epochs=2, run_dir=run_dir, snapshot_every=1, callbacks=again).run(resume_from="auto")
    assert [callback.n for callback in again] == [100 * i + 10 for i in range(len(named))]


@pytest.mark.parametrize("named", [["mine", "mine"], ["a", "b", "a"], ["", "Counts", "x", "x"]])
def test_equal_names_are_refused(named: list[str]) -> None:
    """N4, R42."""
    with pytest.raises(CallerError, match=r"two callbacks are named '.*': their states would overwrite each other"):
        stub(callbacks=[Counts(name=name) for name in named])


def test_one_callback_is_added_once_and_its_name_is_a_string() -> None:
    """R42."""
    one = Counts()
    with pytest.raises(CallerError, match="this Counts was added already: each callback hears a moment once"):
        stub(callbacks=[one, one])
    with pytest.raises(CallerError, match="callback_name of Counts must be a string, not 3"):
        stub(callbacks=[Counts(name=3)])  # type: ignore[arg-type]


class Keeps(Callback):
    def __init__(self, state: Any) -> None:
        self.state = state

    def state_dict(self) -> dict[str, Any]:
        return self.state  # type: ignore[no-any-return]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"lock": threading.Lock()}, r"state\['lock'\] is a lock"),
        ({"a": [{"b": (1, lambda: 0)}]}, r"state\['a'\]\[0\]\['b'\]\[1\] is a function"),
        ({"g": (i for i in ())}, r"state\['g'\] is a generator"),
        ({"s": {1, 2}}, r"state\['s'\] is a set"),
        ({"o": object()}, r"state\['o'\] is a object"),
        ({(1, 2): 3}, r"state has a key of type tuple"),
    ],
)
def test_a_callback_that_is_added_later_is_checked_as_well(run_dir: Path, state: Any, said: str) -> None:
    """R49: refused with the path of keys, and it isn't there afterwards."""
    trainer = stub(run_dir=run_dir)
    before = dict(trainer.listeners.callbacks)
    with pytest.raises(CallerError, match=f"the state of callback 'Keeps' must be plain data or tensors, but {said}"):
        trainer.add_callback(Keeps(state))
    assert trainer.listeners.callbacks == before
    trainer.listeners.add_callback(Keeps(state))
    with pytest.raises(CallerError, match=said):
        trainer.run()
    assert trainer.driver.seen == []  # type: ignore[union-attr]
    assert not run_dir.exists()


def test_a_callback_that_is_added_later_hears_and_remembers_like_any_other(run_dir: Path) -> None:
    first = stub([1, 2], n_epochs=1, run_dir=run_dir)
    first.add_callback(Counts())
    first.run()
    again = stub([1, 2], n_epochs=2, run_dir=run_dir)
    counts = Counts()
    again.add_callback(counts)
    again.run(resume_from="auto")
    assert counts.n == 4


def test_a_callback_that_is_added_later_is_introduced_to_the_trainer() -> None:
    trainer = validated([1.0, 0.5, 0.4, 0.3], monitor="score")
    trainer.add_callback(EarlyStopping(patience=1))
    assert trainer.run().validations == 2
    bare = stub()
    with pytest.raises(CallerError, match="EarlyStopping needs a monitor"):
        bare.add_callback(EarlyStopping())
    assert bare.run().state == "done"


# -- a second run ------------------------------------------------------------------------------------------

SCORES = [1.0, 2.0, 3.0, 4.0, 9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0]


def early(run_dir: Path | None, **about: Any) -> Trainer:
    return validated(SCORES, callbacks=EarlyStopping("score", patience=3), run_dir=run_dir, **about)


def test_a_second_run_has_full_patience_and_a_resumed_one_has_what_was_left(run_dir: Path) -> None:
    """R61, R13: in one object without `resume_from` it begins afresh; with it, a stopped run stays stopped."""
    trainer = early(run_dir)
    assert trainer.run().validations == 8
    assert trainer.run(resume_from="auto").validations == 8
    assert trainer.run().validations == 11
    for _ in range(2):
        assert early(run_dir).run(resume_from="auto").validations == 11


@pytest.mark.parametrize("patience", [1, 2, 3, 5])
@pytest.mark.parametrize("larger", [True, False])
@pytest.mark.parametrize("stop", range(2, 20, 3))
def test_patience_is_the_run_s_wherever_it_is_interrupted(
    tmp_path: Path, patience: int, larger: bool, stop: int
) -> None:
    """R13: the same stop, the same best value, whatever the transition; also twice."""
    scores = [3.0, 1.0, 2.0, 4.0, 2.0, 0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]

    def build(name: str) -> Trainer:
        callback = EarlyStopping("score", larger, patience=patience)
        return validated(scores, callbacks=callback, run_dir=tmp_path / name, snapshot_every=None)

    straight = build("straight")
    end = straight.run(num_eval_sanity_batch=0)
    for at in (stop, stop + 5):
        stopping(build("run"), at).run(resume_from="auto", num_eval_sanity_batch=0)
    again = build("run")
    assert again.run(resume_from="auto", num_eval_sanity_batch=0) == end
    held = [t.listeners.callbacks["EarlyStopping"].state_dict() for t in (again, straight)]
    assert held[0] == held[1]


def test_nothing_leaks_from_one_trainer_into_the_next(tmp_path: Path) -> None:
    """R61: filters of a shared function, callbacks and states begin anew with each trainer."""
    calls: list[int] = []

    @Filter(every=2)
    def shared(trainer: Any) -> None:
        calls.append(trainer.global_forward_batches)

    for name in ("a", "b"):
        trainer = stub([1, 2, 3], n_epochs=1, run_dir=tmp_path / name)
        trainer.on(Events.on_train_batch_end, shared)
        trainer.state["x"] = trainer.state.get("x", 0) + 1
        trainer.run()
        assert trainer.state == {"x": 1}
    assert calls == [2, 2]


@pytest.mark.parametrize(
    ("name", "lacks"),
    [("state_dict", "load_state_dict"), ("load_state_dict", "state_dict"), ("on_save_checkpoint", "load_state_dict")],
)
def test_half_a_memory_is_refused(name: str, lacks: str) -> None:
    """R61: it would be lost at a resume, without a word."""
    half = type("Half", (Callback,), {name: lambda self, *args: {}})
    with pytest.raises(CallerError, match=f"Half has {name} and no {lacks}.*, so its memory would be lost at a resume"):
        stub(callbacks=half())

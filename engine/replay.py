"""Dry replay: the listeners of today over a journal of last month. No torch, no data, no device.

A record is read as little as its listeners ask for: one that nobody hears is never decoded into an event or a state.
"""

from __future__ import annotations

import builtins
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs

from tachograph.drivers.ranks import ALONE, Ranks
from tachograph.states import Event, Machine, training_machine
from tachograph.states.errors import CallerError, TachographError, note

from .callbacks.callback import Callback
from .journal import Journal, Record
from .journal.codec import from_json, plain, restored
from .listeners import Give, Listeners
from .mirrored import Mirrored
from .replayable import Skipped, leave_out
from .world import World

logger = logging.getLogger("tachograph")

_WISHES = 1000  # that are kept
_LOOK_BACK = 256  # transitions that are looked through for the loss before a point that was jumped to


class NotReplayed(TachographError, AttributeError):
    """A listener asked a replay for what no journal holds; the message names the listener, the name, the transition."""


@attrs.frozen
class Wish:
    """What a replayed listener asked of the run; a replay changes nothing, so it is only noted.

    Attributes:
        seq: the transition after which it was asked for.
        what: "stop", "end_epoch" or "request_snapshot".
        reason: the reason that was given.
    """

    seq: int
    what: str
    reason: str


@attrs.frozen
class _Plan:
    """What a replay does at the transitions of one (source, event, dest)."""

    event: type[Event]
    measures: bool
    calls: tuple[tuple[Callable[..., Any], Give | None], ...]


class Replay:
    """Drives listeners from a run's journal, with the same calls and values as live, and stands at a transition of it.

    Listeners are given this object in the trainer's place. It has the counters and limits that a trainer has, and what
    stands below; `stop`, `end_epoch` and `request_snapshot` are noted in `wishes` and change nothing, `log` and `say`
    reach the listeners that are replayed, and `world` tells the time of the record. Anything else that a listener asks
    for raises `NotReplayed`.

    What lies inside a step isn't in a journal and isn't heard: see `Callback.replays`, and `skipped`.

    Args:
        run_dir: a run directory.
        machine: the machine whose run it is; None means the training machine.
        rank: whose journal.
        salvage: pass over damage in the journal.
        state: the class of the run's states, where it is one of the user's own; None gives such states as dicts.

    Attributes:
        record: the transition that is heard, or was heard last, or was moved to; None before the first.
        skipped: the listeners that were left out, and why.
        wishes: what listeners asked of the run: where `EarlyStopping` would have stopped it. The first 1,000 are kept.
        heard: how many transitions somebody heard.
        announced_until: 0: nothing was announced before.
        state: what a trainer's `state` is: a place for the user's own values; empty at first.
    """

    n_epochs = Mirrored[int | None]()
    cur_epoch_idx = Mirrored[int]()
    global_forward_batches = Mirrored[int]()
    batch_idx_in_epoch = Mirrored[int]()
    num_batches_per_epoch = Mirrored[int | None]()
    total_batches = Mirrored[int | None]()

    def __init__(
        self,
        run_dir: str | Path,
        machine: Machine | None = None,
        *,
        rank: int = 0,
        salvage: bool = False,
        state: type | None = None,
    ) -> None:
        self.run_dir = Path(run_dir)
        self.journal = Journal(run_dir, rank=rank, salvage=salvage)
        self.machine = training_machine() if machine is None else machine
        self.listeners = Listeners(self.machine)
        self.ranks: Ranks = ALONE
        self.world = World(clock=self._time, timer=self._time)
        self.record: Record | None = None
        self.announced_until = 0
        self.state = SimpleNamespace()
        self.skipped: list[Skipped] = []
        self.wishes: list[Wish] = []
        self.heard = 0
        self._salvage = salvage
        self._state_class = state
        self._ahead: Iterator[Record] | None = None
        self._plans: dict[tuple[str, str, str], _Plan] = {}
        self._known: Any = None  # the listeners that the plans were made for
        self._prepared: list[Callback] = []
        self._waiting: list[Callable[[], None]] = []
        self._decoded: tuple[Record | None, Any] = (None, None)
        self._measured: Record | float | None = None
        self._lost = False  # `_measured` isn't known here
        self._event_names = self.machine.event_classes
        self._omitted: dict[tuple[str, int], dict[str, Any]] = {}

    # -- for users -----------------------------------------------------------------------------------------

    def on(self, target: Any, fn: Callable[..., Any] | None = None, *, priority: int = 0) -> Any:
        """Subscribe a function, as `Engine.on` does.

        Returns:
            This replay, to go on with `.on(...)` or `.run()`; without `fn`, a decorator.
        """
        if fn is None:
            return lambda listener: (self.on(target, listener, priority=priority), listener)[1]
        self.listeners.add(target, fn, priority=priority)
        return self

    def add_callback(self, callback: Callback) -> Replay:
        """Subscribe a callback's moments."""
        self.listeners.add_callback(callback)
        return self

    def run(self, stop: int | Callable[[Record], bool] | None = None) -> Any:
        """Go on through the journal from where this replay stands, and let listeners hear each transition.

        Args:
            stop: the transition to stop after, or `f(record) -> bool`, asked after each; None goes to the end.

        Returns:
            The state after the last transition; None if there was none.

        Raises:
            CallerError: the journal has an event that the machine doesn't know, and there are listeners.
            JournalCorrupt: the journal is damaged there.
            NotReplayed: a listener asked for what no journal holds.
        """
        self._get_ready()
        if callable(stop):
            self._go(stop)
        elif stop is None or self._position() < stop:
            self._go(None if stop is None else lambda record: record.seq >= stop)
        self.close()
        return self.trainer_state

    def step(self) -> Record | None:
        """Let listeners hear the next transition, and return its record; None at the end of the journal.

        Call `close()` when nothing more is to be heard: `run()` does so by itself.
        """
        self._get_ready()
        record = self._next()
        if record is not None:
            self._pass(record)
        return record

    def back(self) -> Record | None:
        """Move to the transition before, and return its record; None before the first.

        Nobody hears of it: a listener's memory can't run backwards. What is stepped over again is heard again.
        """
        self._move(None if self._position() <= self._first else self.journal.seek(self._position() - 1))
        return self.record

    def jump(self, seq: int) -> Record | None:
        """Move to a transition without reading those between, and return its record. Nobody hears of it.

        Args:
            seq: its number; 0 moves before the first transition, and returns None.

        Raises:
            JournalError: there is none; it names the range there is.
        """
        self._move(self.journal.seek(seq) if seq != 0 else None)
        return self.record

    def close(self) -> None:
        """Let callbacks give back what they opened: files are closed. A replay that goes on opens them again."""
        for callback in self.listeners.callbacks.values():
            callback.replayed(self)

    def __enter__(self) -> Replay:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- what listeners see --------------------------------------------------------------------------------

    @property
    def trainer_state(self) -> Any:
        """The state after the transition at hand, read when it is asked for; None before the first."""
        record, state = self._decoded
        if record is not self.record:
            state = None if self.record is None else self.record.state
            if self._state_class is not None and isinstance(state, dict):
                state = self._state_class(**state)
            self._decoded = self.record, state
        return state

    @trainer_state.setter
    def trainer_state(self, value: Any) -> None:
        raise NotReplayed("a replay changes nothing of what was recorded, so its state can't be set")

    @property
    def last_loss(self) -> float | None:
        """The loss of the last step that was measured, as far as the record at hand; None before the first."""
        if self._lost:
            self._measured, self._lost = self._last_measured(), False
        if isinstance(self._measured, Record):
            self._measured = _loss_of(self._measured)
        return self._measured

    @property
    def lr(self) -> list[float]:
        """The learning rates that the transition at hand tells of, one per parameter group; [] if it tells none."""
        return list(self.record.data.get("lr", ())) if self.record is not None else []

    @property
    def exception(self) -> BaseException | None:
        """The error that ended the run, at its transition: of the recorded class's name, and with its message."""
        if self.record is None or self.record.event != "Failed":
            return None
        return _as_error(self.record.data)

    def stop(self, reason: str = "stop()", on_all_ranks: bool = False) -> None:
        """Note that a listener would have stopped the run here."""
        self._wish("stop", reason)

    def end_epoch(self, reason: str = "end_epoch()") -> None:
        """Note that a listener would have ended the epoch here."""
        self._wish("end_epoch", reason)

    def request_snapshot(self, on_all_ranks: bool = False) -> None:
        """Note that a listener would have had a snapshot here."""
        self._wish("request_snapshot", "")

    def log(self, values: Mapping[str, Any] | None = None, **more: Any) -> None:
        """Hand values to the loggers that are replayed."""
        self._hear_inside("on_log", {**(values or {}), **more})

    def say(self, text: str) -> None:
        """Say a sentence to the listeners of `on_notice` that are replayed, and to the log."""
        logger.info(text)
        self._hear_inside("on_notice", text)

    def later(self, act: Callable[[], None]) -> None:
        """Call a function when the transition at hand was heard."""
        self._waiting.append(act)

    def __getattr__(self, name: str) -> Any:
        at = "" if (record := self.__dict__.get("record")) is None else f" at {_said(record)}"
        raise NotReplayed(f"a replay has no {name!r}{at}: a journal holds states, events and numbers, and no more")

    def _wish(self, what: str, reason: str) -> None:
        if len(self.wishes) < _WISHES:
            self.wishes.append(Wish(self._position(), what, str(reason)))

    def _hear_inside(self, moment: str, *args: Any) -> None:
        for fn in self.listeners.inside.get(moment, ()):
            fn(self, *args)

    def _time(self) -> float:
        return 0.0 if self.record is None else float(self.record.meta["time"])

    # -- where it stands -----------------------------------------------------------------------------------

    @property
    def _first(self) -> int:
        """The number of the journal's first transition."""
        found = self.__dict__.get("_found_first")
        if found is None:
            record = next(iter(self.journal), None)
            if record is None:
                return 1
            found = self.__dict__["_found_first"] = record.seq
        return int(found)

    def _position(self) -> int:
        return 0 if self.record is None else self.record.seq

    def _move(self, record: Record | None) -> None:
        self._ahead = None
        self.record = record
        self._lost = record is not None
        self._measured = None

    def _next(self) -> Record | None:
        """Return the next record: from the stream that is open, or, where the position was moved, by a look-up."""
        if self._ahead is None and self.record is not None and not self._salvage:
            last = self.journal.last
            return self.journal.seek(self.record.seq + 1) if last is not None and last.seq > self.record.seq else None
        return next(self._stream(), None)

    def _stream(self) -> Iterator[Record]:
        if self._ahead is None:
            self._ahead = self._reading(self._position() + 1)
        return self._ahead

    def _reading(self, seq: int) -> Iterator[Record]:
        yield from self.journal if seq == 1 else self.journal.since(seq)
        self._ahead = None

    def _last_measured(self) -> Record | float | None:
        """Look for the loss before a point that was jumped to, some way back."""
        record = self.record
        for _ in range(_LOOK_BACK):
            if record is None:
                return None
            if self._plan(record).measures and (record.event == "Stepped" or _loss_of(record) is not None):
                return record
            record = self.journal.seek(record.seq - 1) if record.seq > self._first else None
        return None

    # -- hearing -------------------------------------------------------------------------------------------

    def _get_ready(self) -> None:
        """Leave out who can't be replayed, and let callbacks that are new get ready."""
        if self._known is self.listeners.inside:
            return
        skipped = leave_out(self.listeners)
        self.skipped += skipped
        if skipped:
            warnings.warn(f"not replayed: {'; '.join(map(str, skipped))}", stacklevel=4)
        for callback in list(self.listeners.callbacks.values()):
            if not any(callback is held for held in self._prepared):
                self._prepared.append(callback)
                callback.replaying(self)
        self._plans.clear()
        self._known = self.listeners.inside

    def _go(self, stop: Callable[[Record], bool] | None) -> None:
        plans = self._plans
        for record in self._stream():
            self.record = record
            plan = plans.get((record.source, record.event, record.dest)) or self._plan(record)
            if plan.measures:
                self._take_loss(record)
            if plan.calls:
                self._hear(record, plan)
            if stop is not None and stop(record):
                break

    def _pass(self, record: Record) -> None:
        self.record = record
        plan = self._plan(record)
        if plan.measures:
            self._take_loss(record)
        if plan.calls:
            self._hear(record, plan)

    def _plan(self, record: Record) -> _Plan:
        """Return what is done at this kind of transition; found out when it first occurs."""
        key = record.source, record.event, record.dest
        plan = self._plans.get(key)
        if plan is None:
            cls = self._event_names.get(record.event)
            if cls is None and self.listeners.subscriptions:
                raise self._unknown(record)
            if cls is None:  # nobody would hear it
                return _Plan(Event, False, ())
            names = {field.name for field in attrs.fields(cls)}  # type: ignore[arg-type, misc]
            calls = self.listeners.index[record.source, cls, record.dest]
            plan = self._plans[key] = _Plan(cls, not names.isdisjoint(("loss", "late")), calls)
        return plan

    def _take_loss(self, record: Record) -> None:
        if record.event == "Stepped":  # the most frequent one: it is decoded when somebody asks
            self._measured, self._lost = record, False
        else:
            loss = _loss_of(record)
            if loss is not None:
                self._measured, self._lost = loss, False

    def _hear(self, record: Record, plan: _Plan) -> None:
        self.heard += 1
        event: Event | None = None
        try:
            for fn, give in plan.calls:
                if give is None:
                    fn(self)
                else:
                    event = self._event(record, plan.event) if event is None else event
                    fn(self, *give(self, event))
        except Exception as error:
            self._explain(error, record)
            raise
        while self._waiting:
            self._waiting.pop(0)()
        if self._known is not self.listeners.inside:  # a listener came or went
            self._get_ready()

    def _explain(self, error: Exception, record: Record) -> None:
        """Add to an error where in the journal it struck, and out of which listener it came."""
        blamed = self.listeners.blamed(error)
        if isinstance(error, NotReplayed) and blamed:
            error.args = (f"{error}; it was asked for {blamed}",)
        else:
            note(error, f"while {_said(record)} of {self.run_dir} was replayed {blamed}".rstrip())

    def _event(self, record: Record, cls: type[Event]) -> Event:
        key = record.event, id(record.header)
        omitted = self._omitted.get(key)
        if omitted is None:
            omitted = self._omitted[key] = _other_defaults(record, cls)
        try:
            return cls(**{**omitted, **restored(from_json(record.raw_data))})
        except TypeError as error:
            raise self._unknown(record) from error

    def _unknown(self, record: Record) -> CallerError:
        return CallerError(
            f"transition {record.seq} of {self.run_dir} is {record.event}, which this machine doesn't know so: "
            "give replay() the machine of the run (--machine)"
        )


def _other_defaults(record: Record, cls: type[Event]) -> dict[str, Any]:
    """Return the fields that a record of this kind leaves out at another value than the class's default of today."""
    own = {field.name: field.default for field in attrs.fields(cls)}  # type: ignore[arg-type, misc]
    held = record.header.defaults_of(record.event)
    return {name: value for name, value in held.items() if not _is_default(own.get(name), value)}


def _is_default(default: Any, value: Any) -> bool:
    """Say whether a default is written as this value: a tuple is written as a list."""
    factory = getattr(default, "factory", None)
    made = plain(default if factory is None or default.takes_self else factory())
    return bool(made == value) and type(made) is type(value)


def _loss_of(record: Record) -> float | None:
    """Return the loss that a trainer stands at after a transition: what arrived late counts before its own."""
    data = from_json(record.raw_data)
    late, loss = data.get("late"), data.get("loss")
    if late:
        loss = (late[-1] if isinstance(late[-1], list) else late)[1]
    return None if loss is None else float(loss)  # which reads "nan" and "inf" as well


def _said(record: Record) -> str:
    return f"transition {record.seq} ({record.event}, {record.source} -> {record.dest})"


def _as_error(data: Mapping[str, Any]) -> BaseException:
    """Make an error of a recorded failure: by its class's name and its message it can't be told from the first one."""
    kind, text = str(data.get("kind") or "Exception"), str(data.get("error") or "")
    base = getattr(builtins, kind, Exception)
    if not (isinstance(base, type) and issubclass(base, BaseException)):
        base = Exception
    cls: type[BaseException] = type(kind, (base,), {"__str__": lambda self: text})
    return cls.__new__(cls, text)


def replay(
    run_dir: str | Path,
    machine: Machine | None = None,
    *,
    rank: int = 0,
    salvage: bool = False,
    state: type | None = None,
) -> Replay:
    """Replay a run's journal: `replay(run_dir).on("step -> validate", fn).run()`.

    Args:
        run_dir: a run directory.
        machine: the machine whose run it is; None means the training machine.
        rank: whose journal.
        salvage: pass over damage in the journal.
        state: the class of the run's states, where it is one of the user's own; None gives such states as dicts.

    Raises:
        JournalError: it isn't a run directory, has no such rank, or its format is newer.
    """
    return Replay(run_dir, machine, rank=rank, salvage=salvage, state=state)


__all__ = ["NotReplayed", "Replay", "Wish", "replay"]

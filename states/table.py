"""The table where the states meet, and the machine it builds.

`training_rows` is the whole machine of a training run on one screen. `Machine` hands the rows to the
`transitions` library, which is the authority: it validates, draws, and says what may happen. Around it
stand the checks that the library doesn't make, and a short way for the hot path that is compiled from the
library's own data (a property test holds the two equal).
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import attrs
import transitions

from . import epoch_end, fetch, init, step, validate
from .done import Stopped
from .epoch_begin import EpochBegan
from .epoch_end import EpochEnded
from .errors import IllegalEvent, MachineFault, did_you_mean
from .event import Event, is_frozen
from .exception import Failed
from .fetch import Exhausted, Fetched
from .init import Started
from .sanity_check import SanityChecked
from .step import Stepped
from .validate import Validated

Guard = Callable[[Any, Any], bool]
Way = str | Sequence[tuple[Guard | None, str]]
ANY = "*"
"""As a row's source: every state that isn't final."""
FINAL = ("done", "exception")
HEEDS_STOP = frozenset({"epoch_end"})
"""States whose own rows read `stop_asked`: a stop that is asked for there ends the run without cutting them short."""


class _Position:
    """A model for the library to move; compared by identity, since equal models would be dropped silently."""

    state: str
    trigger: Callable[..., bool]


@attrs.frozen
class Row:
    """One row of the table: in `source`, `event` leads to `dest` if `guard(state, event)` holds.

    Rows of one source and event are tried in their order; the last one usually has no guard. A guard is a
    pure function of the state before and of the event; its docstring is its label in drawings.
    """

    source: str
    event: type[Event]
    dest: str
    guard: Guard | None = None

    @property
    def label(self) -> str:
        """The guard in words; "" without one."""
        if self.guard is None:
            return ""
        return (self.guard.__doc__ or self.guard.__name__).strip().splitlines()[0]


def training_rows() -> list[Row]:
    """Return the rows of the training machine."""
    return [
        Row("init", Started, "done", init.nothing_to_train),
        Row("init", Started, "sanity_check", init.sanity_check_asked_for),
        Row("init", Started, "epoch_begin"),
        Row("sanity_check", SanityChecked, "epoch_begin"),
        Row("epoch_begin", EpochBegan, "fetch"),
        Row("fetch", Fetched, "step"),
        Row("fetch", Exhausted, "validate", fetch.validation_due),
        Row("fetch", Exhausted, "epoch_end"),
        Row("step", Stepped, "validate", step.validation_due),
        Row("step", Stepped, "fetch"),
        Row("validate", Validated, "epoch_end", validate.epoch_is_exhausted),
        Row("validate", Validated, "fetch"),
        Row("epoch_end", EpochEnded, "epoch_begin", epoch_end.epochs_left),
        Row("epoch_end", EpochEnded, "done"),
        Row(ANY, Stopped, "done"),
        Row(ANY, Failed, "exception"),
    ]


def training_machine(rows: Iterable[Row] = (), *, states: Iterable[str] = ()) -> Machine:
    """Build the machine of a training run, with a user's own states and rows if there are any.

    Args:
        rows: further rows. They stand before the built-in ones, so that a guarded row can take an event
            away from them; a row without a guard replaces all built-in rows of its source and event.
        states: names of further states; those that the rows name are known without it.

    Raises:
        MachineFault: the table contradicts itself.
    """
    own = list(rows)
    replaced = {(row.source, row.event) for row in own if row.guard is None}
    kept = [row for row in training_rows() if (row.source, row.event) not in replaced]
    return Machine([*own, *kept], initial="init", final=FINAL, states=states)


class Machine(transitions.Machine):
    """A checked table of rows, with the `transitions` library as its authority.

    The state of a run is a value (`TrainerState` or any frozen attrs value with `state` and `seq`), so the
    machine holds none: `next_state` is a pure question to the table.

    Args:
        rows: the table. A source of `ANY` stands for every state that isn't final.
        initial: the state a run begins in.
        final: the states that nothing leaves.
        states: names of states beside those that the rows name.
        heeds_stop: states that do no work, but decide whether the run ends. Their guards read the state's `stop_asked`,
            and a run that ended here can be extended: the decision is made anew.

    Attributes:
        rows: the table, `ANY` written out.
        names: all states, the final ones last.
        final: the states that nothing leaves.
        ways: (state, event class) -> the dest where one row without a guard decides, else the guards and their dests.

    Raises:
        MachineFault: a row isn't made of names, an event class and a function; an event isn't a frozen attrs value, or
            its `fold` can't be called; a state is unknown or unreachable, or a run that enters it can't end as others
            do; a row stands twice or behind one that always holds, a row leaves a final state, two events have one
            name, or a state that isn't final has no way to fail.
    """

    def __init__(
        self,
        rows: Iterable[Row],
        *,
        initial: str,
        final: Iterable[str] = FINAL,
        states: Iterable[str] = (),
        heeds_stop: Iterable[str] = HEEDS_STOP,
    ) -> None:
        self.final = frozenset(final)
        self.heeds_stop = frozenset(heeds_stop)
        given = [_checked(row) for row in rows]
        names = list(dict.fromkeys([initial, *(s for row in given for s in (row.source, row.dest)), *states]))
        self.names = [n for n in names if n != ANY and n not in self.final] + [n for n in names if n in self.final]
        self.rows = [row for wide in given for row in self._widened(wide)]
        _check(self.rows, self.names, initial, self.final)
        super().__init__(
            model=None,
            states=[transitions.State(name, final=name in self.final) for name in self.names],
            initial=initial,
            auto_transitions=False,  # else any state could be jumped to
            send_event=True,
        )
        for row in self.rows:
            conditions: Any = None if row.guard is None else [_as_condition(row.guard)]
            self.add_transition(row.event.__name__, row.source, row.dest, conditions=conditions)
        self.ways = self._compile()

    def _widened(self, row: Row) -> list[Row]:
        if row.source != ANY:
            return [row]
        return [attrs.evolve(row, source=name) for name in self.names if name not in self.final]

    def _compile(self) -> dict[tuple[str, type[Event]], Way]:
        """Read the library's transitions back into a dict: one unguarded row is its dest, else guards in order."""
        classes = {row.event.__name__: row.event for row in self.rows}
        short: dict[tuple[str, type[Event]], Way] = {}
        for name, event in self.events.items():
            for source, found in event.transitions.items():  # read by items(): indexing would insert a key
                ways: Any = [(_guard_of(t), t.dest) for t in found]
                short[source, classes[name]] = ways[0][1] if ways[0][0] is None else ways
        return short

    def next_state(self, state: Any, event: Event) -> str:
        """Say which state `event` leads to. Nothing is changed by asking.

        Args:
            state: the state before; its field `state` names the row's source.
            event: what happened.

        Raises:
            IllegalEvent: no row takes the event here, or all guards said no; it says what would be legal.
        """
        way = self.ways.get((state.state, type(event)), ())
        if isinstance(way, str):
            return way
        for guard, dest in way:
            if guard is None or guard(state, event):
                return dest
        raise IllegalEvent(state.state, type(event).__name__, self.legal(state.state), state.seq)

    def legal(self, state: str) -> list[str]:
        """Return the names of the events that the table takes in `state`; none for a final one."""
        return [name for name, event in self.events.items() if state in event.transitions]

    def by_library(self, state: Any, event: Event) -> str:
        """Ask the `transitions` library itself; the slow twin of `next_state`, for tests and for doubters.

        Raises:
            IllegalEvent: as `next_state`.
        """
        model = _Position()
        known = state.state in self.names and type(event) is self.event_classes.get(type(event).__name__)
        self.add_model(model, initial=state.state if state.state in self.names else self.initial)
        try:
            if known and model.trigger(type(event).__name__, state=state, happened=event):
                return str(model.state)
        except transitions.MachineError:
            pass
        finally:
            self.remove_model(model)
        raise IllegalEvent(state.state, type(event).__name__, self.legal(state.state), state.seq)

    @property
    def event_classes(self) -> dict[str, type[Event]]:
        """The classes of all events in the table, by their names."""
        return {row.event.__name__: row.event for row in self.rows}

    @property
    def digest(self) -> str:
        """16 hex digits that name this table: rows in order, guards by their names. A run keeps it."""
        lines = [f"{r.source} {r.event.__name__} {r.dest} {r.guard.__name__ if r.guard else ''}" for r in self.rows]
        return hashlib.blake2b("\n".join(lines).encode(), digest_size=8).hexdigest()

    def mermaid(self) -> str:
        """Draw the table as a Mermaid state diagram; rows that leave every state are folded into a note."""
        return Plan.of(self).mermaid()


@attrs.frozen
class Plan:
    """What a machine looks like, as plain data: it is drawn and written as a table without the program that built it.

    Attributes:
        initial: the state a run begins in.
        names: all states, the final ones last.
        final: those that nothing leaves.
        rows: (source, event, dest, the guard's name, the guard in words) of each row; "" where there is no guard.
        digest: the table's.
    """

    initial: str
    names: Sequence[str]
    final: Sequence[str]
    rows: Sequence[tuple[str, str, str, str, str]]
    digest: str

    @classmethod
    def of(cls, machine: Machine) -> Plan:
        """Look at a machine."""
        rows = [
            (row.source, row.event.__name__, row.dest, row.guard.__name__ if row.guard else "", row.label)
            for row in machine.rows
        ]
        final = [name for name in machine.names if name in machine.final]
        return cls(str(machine.initial), machine.names, final, rows, machine.digest)

    @classmethod
    def read(cls, told: Any) -> Plan | None:
        """Read what `plain` returned; None if it is something else."""
        try:
            rows = [(str(a), str(b), str(c), str(d), str(e)) for a, b, c, d, e in told["rows"]]
            return cls(str(told["initial"]), list(told["names"]), list(told["final"]), rows, str(told["digest"]))
        except (LookupError, TypeError, ValueError):
            return None

    def plain(self) -> dict[str, Any]:
        """Return it as `run.json` keeps it."""
        return {**attrs.asdict(self), "rows": [list(row) for row in self.rows]}

    def mermaid(self) -> str:
        """Draw it as a Mermaid state diagram; rows that leave every state are folded into a note."""
        everywhere = self._everywhere()
        lines = ["stateDiagram-v2", f"    [*] --> {self.initial}"]
        for source, event, dest, _, label in self.rows:
            if event not in everywhere:
                lines.append(f"    {source} --> {dest}: {event}" + (f" [{label}]" if label else ""))
        if everywhere:
            lines.append(f"    note right of {self.initial}")
            lines.extend(f"        any state that isn't final --> {dest}: {name}" for name, dest in everywhere.items())
            lines.append("    end note")
        lines.extend(f"    {name} --> [*]" for name in self.final)
        return "\n".join(lines) + "\n"

    def markdown(self) -> str:
        """Write it as a table; rows that leave every state are one."""
        everywhere = self._everywhere()
        guarded = {(row[0], row[1]) for row in self.rows if row[3]}
        lines = ["| source | event | guard | dest |", "|---|---|---|---|"]
        for source, event, dest, _, label in self.rows:
            if event not in everywhere:
                guard = label or ("else" if (source, event) in guarded else "")
                lines.append(f"| {source} | {event} | {f'{guard} ' if guard else ''}| {dest} |")
        lines.extend(f"| any that isn't final | {name} | | {dest} |" for name, dest in everywhere.items())
        return "\n".join(lines) + "\n"

    def _everywhere(self) -> dict[str, str]:
        """Return the events that lead from every state to the same one, without a guard, and where to."""
        found: dict[str, str] = {}
        for event in dict.fromkeys(row[1] for row in self.rows):
            rows = [row for row in self.rows if row[1] == event]
            alike = len({row[2] for row in rows}) == 1 and not any(row[3] for row in rows)
            if alike and {row[0] for row in rows} == set(self.names) - set(self.final):
                found[event] = rows[0][2]
        return found


def _as_condition(guard: Guard) -> Callable[[transitions.EventData], bool]:
    """Wrap a guard for the library: a function, never a name, since names are resolved at call time only."""

    def condition(data: transitions.EventData) -> bool:
        return guard(data.kwargs["state"], data.kwargs["happened"])

    condition.guard = guard  # type: ignore[attr-defined]
    return condition


def _checked(row: Row) -> Row:
    """Refuse a row that isn't made of names, an event class and a function."""
    for name in (row.source, row.dest):
        if not isinstance(name, str) or not name.strip() or "->" in name:
            raise MachineFault(f"a state's name must be a string without '->', not {name!r}")
    if not (isinstance(row.event, type) and issubclass(row.event, Event)):
        raise MachineFault(f"the row ({row.source}, ..., {row.dest}) needs a class of events, not {row.event!r}")
    _check_event(row.event)
    said = f"row ({row.source}, {row.event.__name__}, {row.dest})"
    if row.dest == ANY:
        raise MachineFault(f"{said} leads anywhere: name the state")
    if row.guard is not None and not (callable(row.guard) and hasattr(row.guard, "__name__")):
        raise MachineFault(f"{said} has a guard that is no function with a name: {row.guard!r}")
    return row


def _check_event(event: type[Event]) -> None:
    """Refuse a class of events that can't be recorded, or can't fold."""
    name = event.__name__
    if event is Event or not is_frozen(event):
        raise MachineFault(f"{name} is no event: decorate a subclass of Event with attrs.frozen(kw_only=True)")
    fold: Any = event.fold
    try:
        inspect.signature(fold).bind("self", "state", "dest")
    except TypeError:
        raise MachineFault(
            f"{name}.fold{inspect.signature(fold)} can't be called with a state and a dest: write "
            "def fold(self, state, dest)"
        ) from None
    if inspect.iscoroutinefunction(fold) or inspect.isgeneratorfunction(fold):
        raise MachineFault(f"{name}.fold must be a plain function, which returns the next state")


def _guard_of(transition: Any) -> Guard | None:
    return transition.conditions[0].func.guard if transition.conditions else None


def _check(rows: list[Row], names: list[str], initial: str, final: frozenset[str]) -> None:
    """Refuse a table that contradicts itself: the library would take any of these without a word."""
    sources = {row.source for row in rows}
    closed: set[tuple[str, type[Event]]] = set()
    seen: set[tuple[str, type[Event], Guard | None]] = set()
    classes: dict[str, type[Event]] = {}
    for row in rows:
        if classes.setdefault(row.event.__name__, row.event) is not row.event:
            raise MachineFault(f"two classes of events are named {row.event.__name__}: a journal can't tell them apart")
        said = f"row ({row.source}, {row.event.__name__}, {row.dest})"
        if row.source in final:
            raise MachineFault(f"{said} leaves '{row.source}', which is final")
        if (row.source, row.event, row.guard) in seen:
            raise MachineFault(f"{said} stands twice, or its guard does")
        if (row.source, row.event) in closed:
            raise MachineFault(f"{said} can't be reached: a row before it has no guard")
        seen.add((row.source, row.event, row.guard))
        if row.guard is None:
            closed.add((row.source, row.event))
    for name in names:
        if name not in final and name not in sources:
            near = did_you_mean(name, [n for n in names if n != name])
            raise MachineFault(f"state '{name}' has no way out and isn't final. {near}".rstrip())
        if name not in final and (name, Failed) not in closed:
            raise MachineFault(f"state '{name}' can't fail: it needs a row ({name}, Failed, exception)")
    lost = [name for name in names if name not in _reached([(row.source, row.dest) for row in rows], {initial})]
    if lost:
        near = did_you_mean(lost[0], [n for n in names if n != lost[0]])
        raise MachineFault(f"state '{lost[0]}' can't be reached from '{initial}'. {near}".rstrip())
    back = [(row.dest, row.source) for row in rows if row.event not in (Stopped, Failed)]
    ending = _reached(back, set(final))
    trapped = [name for name in names if name not in ending]
    if initial in ending and trapped:
        raise MachineFault(
            f"state '{trapped[0]}' is a trap: from there no row but those by Stopped and Failed leads to an end "
            f"({', '.join(sorted(final))}), as there are from '{initial}'"
        )


def _reached(ways: list[tuple[str, str]], start: set[str]) -> set[str]:
    """Return all states that ways, (source, dest) each, lead to."""
    reached, todo = set(start), list(start)
    while todo:
        here = todo.pop()
        new = {dest for source, dest in ways if source == here} - reached
        reached |= new
        todo.extend(new)
    return reached

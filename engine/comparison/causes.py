"""Why two histories part, in words, and what to type next. Pure: facts in, sentences out, no files.

A cause is looked for in the order in which one thing leads to the next: settings, code, environment, then sample ids,
the batch's content, generators, loss, gradients, the update. What can't have led to the field that differs isn't named.
"""

from __future__ import annotations

import functools
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from tachograph.states import training_machine

if TYPE_CHECKING:
    from .divergence import Divergence

PARTS = ("batch", "gradients", "parameters", "buffers", "optimizers", "scaler")
"""What a fingerprint has a number for, causes first."""
ORDER = ("event", "ids", "batch", "rng", "loss", "gradients", "lr", "parameters", "buffers", "optimizers", "scaler")
"""What can differ at a transition, causes first; "results", "counters" and "own" (a user's events) aren't in it."""
COMPUTED = frozenset({"loss", "gradients", "parameters", "buffers", "optimizers", "scaler", "results"})
"""What is made of floating-point numbers."""
Pairs = Mapping[str, tuple[Any, Any]]


@attrs.frozen(kw_only=True)
class Resume:
    """A resume that one of the runs had before they part, or its being forked, and the other hadn't there.

    Attributes:
        of: 0 for the first run, 1 for the second.
        at: the transition it stood after.
        steps: training steps between it and the parting.
        updates: closed accumulation windows between it and the parting.
        unrestored: why its generators weren't restored, where the run says so itself.
        forked: it began there, as a run of its own that goes on from another one's point.
        by_hand: what was done there that no setting tells, as the fork says itself: "learning rate set to 0.01".
    """

    of: int
    at: int
    steps: int
    updates: int
    unrestored: str = ""
    forked: bool = False
    by_hand: Sequence[str] = ()


@attrs.frozen(kw_only=True)
class Known:
    """What is known of two histories beside the field in which they part; whatever isn't known is left out.

    Attributes:
        names: what the histories are called in sentences.
        runs: the run directories that commands are to be typed with; None: the names are.
        settings: those that differ there, name -> (first, second).
        code: the user's files that differ.
        environment: libraries, threads, flags that differ, name -> (first, second).
        differ: what else differs at the same transition: names of `ORDER`.
        agree: what is known to agree there.
        before: what is known to have agreed right before it, "parameters" above all.
        resume: a resume of one of them before it.
        window: micro-batches in the accumulation window up to this one; 1: there is no window.
        ahead: of a run that fetches here what the other one fetches later: (0 or 1, that later transition).
        batches: of the batches from there to the epoch's end: (those that differ, those that were compared).
        events: what happened in each of the two.
        reasons: what those events say of themselves: an error, a reason to stop.
        lossless: which of the two, 0 or 1, made no loss in a step in which the other one did.
        deterministic: both runs used deterministic algorithms only.
        since: the last transition at which what differs is known to have agreed, if updates came between; 0: none.
        tensors: what differs in the first snapshots of both that do, by its name.
    """

    names: tuple[str, str] = ("the first run", "the second")
    runs: tuple[str, str] | None = None
    settings: Pairs = attrs.field(factory=dict)
    code: Sequence[str] = ()
    environment: Pairs = attrs.field(factory=dict)
    differ: Sequence[str] = ()
    agree: Sequence[str] = ()
    before: Sequence[str] = ()
    resume: Resume | None = None
    window: int = 1
    ahead: tuple[int, int] | None = None
    batches: tuple[int, int] = (0, 0)
    events: tuple[str, str] = ("", "")
    reasons: tuple[str, str] = ("", "")
    lossless: int | None = None
    deterministic: bool = False
    since: int = 0
    tensors: Sequence[str] = ()


Told = tuple[str, str]
"""A cause, and the command that comes next, with {a}, {b} and {seq} in it."""
_VERIFY_A = "tachograph verify {a} --trainer module:function --stop {seq}"
_VERIFY_B = "tachograph verify {b} --trainer module:function --stop {seq}"
_REPEAT = "tachograph verify {a} --trainer module:function --start {seq} --stop {seq} --repeat 3"
_SHELL = "tachograph shell {b} --at {seq} --trainer module:function"
_SHOW = "tachograph show {b}"
_SHOW_AT = "tachograph show {b} --at {seq}"
_SAMPLES = "tachograph show {b} --at {seq} --samples"


def explained(divergence: Divergence, known: Known) -> Divergence:
    """Return a divergence with its cause, as far as what is known tells it, and the command to type next.

    `diff` does it for two runs. For a run that was re-executed:

    >>> from tachograph.engine.diff import Divergence
    >>> found = Divergence(42, "data.loss", 0.25, 0.5, cause="")
    >>> names = {"names": ("the recorded run", "this one"), "runs": ("runs/a", "runs/a")}
    >>> told = explained(found, Known(**names, environment={"torch": ("2.12.0", "2.13.0")}, agree=["ids", "rng"]))
    >>> told.cause
    'another version of torch (2.12.0 in the recorded run, 2.13.0 in this one): it may compute other bits'
    >>> told.hint
    'tachograph verify runs/a --trainer module:function --stop 42'

    Args:
        divergence: the transition, the field and its two values; a cause or a hint that it has is replaced.
        known: what else is known.
    """
    cause, hint = _told(kind_of(divergence.field), known)
    a, b = map(shlex.quote, known.runs or known.names)
    return attrs.evolve(divergence, cause=cause, hint=hint.format(a=a, b=b, seq=divergence.seq))


def kind_of(field: str) -> str:
    """Return what a field of a divergence stands for: a name of `ORDER`, "results", "counters" or "own".

    >>> kind_of("data.ids"), kind_of("fingerprint.parameters"), kind_of("to"), kind_of("state.samples")
    ('ids', 'parameters', 'event', 'counters')
    """
    first, _, rest = field.partition(".")
    if first.startswith("rank-"):
        return kind_of(rest)
    name = rest.partition(".")[0]
    if first == "fingerprint":
        return name
    if first == "snapshot":
        return _IN_SNAPSHOTS.get(name, "counters")
    if first in ("event", "from", "to"):
        return "event"
    if first == "data" and name not in _IN_DATA and name not in _built_in():
        return "own"
    known = _IN_DATA if first == "data" else {"results": "results"}
    return known.get(name, "counters")


@functools.cache
def _built_in() -> frozenset[str]:
    """Return the names of the fields of the training machine's events."""
    classes: Collection[Any] = training_machine().event_classes.values()
    return frozenset(field.name for cls in classes for field in attrs.fields(cls))


_IN_SNAPSHOTS = {"model": "parameters", "generators": "rng", **{name: name for name in PARTS}}
_IN_DATA = {
    **{name: name for name in ("ids", "rng", "loss", "lr", "results")},
    **dict.fromkeys(("validate_due", "closed", "cut", "flushed", "dropped", "error", "kind", "reason"), "event"),
    "samples": "ids",
    "late": "loss",
    "skipped": "gradients",
}


def _told(kind: str, known: Known) -> Told:
    """Go through the causes in their order; what was found out about a resume is added to one that is only possible."""
    certain = _of_settings(kind, known) or _of_unrestored(kind, known)
    if certain is not None:
        return certain
    possible, resumed = _of_environment(kind, known), _of_resume(kind, known)
    if possible is not None and resumed is not None:
        return f"{possible[0]}; but {resumed[0]}{_code(known)}", possible[1]
    if possible is not None or resumed is not None:
        cause, hint = possible or resumed  # type: ignore[misc]
        return f"{cause}{_code(known)}", hint
    cause, hint = _OF_KIND.get(kind, _of_other)(known)
    more = _tensors(known), _agreed(known), _resumed_earlier(known), _machines(kind, known)
    return "; ".join(filter(None, (cause, *more))) + _code(known), hint


def _machines(kind: str, known: Known) -> str:
    """Name two machines that are alike as far as is known: that alone makes no other bits."""
    if kind not in COMPUTED or "host" not in known.environment:
        return ""
    return "they ran on two machines, {} and {}".format(*known.environment["host"])


def _tensors(known: Known) -> str:
    if not known.tensors:
        return ""
    more = len(known.tensors) - 1
    return known.tensors[0] + (f" and {more} more differ" if more else " differs") + " in the snapshots"


def _agreed(known: Known) -> str:
    return f"it came about after transition {known.since:,}, where all that was compared agrees" if known.since else ""


# -- settings, code, environment ---------------------------------------------------------------------------

_ORDERING = frozenset({"event", "results", "counters"})
_REACH: dict[str, frozenset[str]] = {
    **dict.fromkeys(("snapshot_every", "keep_snapshots", "on_snapshot_fault", "seed_given"), frozenset()),
    **dict.fromkeys(("validate_every", "validation", "sanity_batches"), _ORDERING),
    **dict.fromkeys(("n_epochs", "n_batches", "max_time"), frozenset({"event", "lr"})),
    "seed": frozenset({*ORDER, "results"}) - {"event"},
    **dict.fromkeys(("hyperparameters", "optimizers"), COMPUTED | {"lr"}),
    **dict.fromkeys(("precision", "compile"), COMPUTED),
    **dict.fromkeys(("accumulation_steps", "accumulation_tail", "loss_weight"), COMPUTED | _ORDERING | {"lr"}),
    **dict.fromkeys(
        (
            *("threads", "cpu", "platform", "host", "device", "float32_matmul_precision", "cudnn_benchmark"),
            *("cudnn_deterministic", "deterministic_algorithms", "deterministic_warn_only"),
        ),
        COMPUTED,
    ),
    "detect_anomaly": frozenset({"event"}),
}
"""By setting or part of the environment, what it can have led to; one that isn't here can have led to anything."""
_CALLED = {
    "seed": "seed",
    "hyperparameters.lr": "learning rate",
    "threads": "number of threads",
    "cpu": "processor",
    "host": "machine",
    "world": "number of ranks",
    "batch_size": "batch size",
    **{name: f"version of {name}" for name in ("torch", "python", "numpy", "tachograph")},
}
_WHY = {
    "threads": "sums that are split otherwise round otherwise",
    **dict.fromkeys(("cpu", "device", "platform", "host"), "its kernels may round otherwise"),
    **dict.fromkeys(("torch", "numpy"), "it may compute other bits"),
    **dict.fromkeys(("n_epochs", "n_batches"), "a schedule may be stretched over it"),
}
_NO_CAUSE = ("callbacks.Fingerprints",)


def relevant(pairs: Pairs, field: str) -> dict[str, tuple[Any, Any]]:
    """Return those of the settings, or parts of the environment, that can have led to a field's being another one."""
    return _able(pairs, kind_of(field))


def _reach(name: str, kind: str) -> Collection[str]:
    """Return what a setting or a part of the environment can have led to."""
    reach = COMPUTED if name.isupper() else _REACH.get(name, (kind,))  # a variable decides on kernels and threads
    return {*reach, "own"} if "loss" in reach else reach  # what a user's own event tells is mostly computed


def _able(pairs: Pairs, kind: str) -> dict[str, tuple[Any, Any]]:
    able = {n: pair for n, pair in pairs.items() if kind in _reach(n.partition(".")[0], kind)}
    return {name: pair for name, pair in able.items() if not name.startswith(_NO_CAUSE)}


def _of_settings(kind: str, known: Known) -> Told | None:
    able = _able(known.settings, kind)
    return (_another(able, known), _SHOW) if able else None


def _code(known: Known) -> str:
    """Say that code was changed, beside a cause: it may be all there is to it, or a comment."""
    if not known.code:
        return ""
    first, more = known.code[0], len(known.code) - 1
    files = f"{first} and {more} more file{'s' if more > 1 else ''}" if more else first
    return f"; {files} {'are' if more else 'is'}n't the same in {known.names[0]} and {known.names[1]}, which may be why"


def _of_environment(kind: str, known: Known) -> Told | None:
    able = _able(known.environment, kind)
    return (_another(able, known), _VERIFY_A) if able.keys() - {"host"} else None


def _another(pairs: Pairs, known: Known) -> str:
    """Say which setting is another one, with both values, and why that matters; the likeliest first."""
    ordered = sorted(pairs, key=lambda name: (name == "host", name not in _CALLED, name not in _WHY))
    (a, b), name = pairs[ordered[0]], ordered[0]
    told = f"another {_CALLED.get(name, name)} ({_said(a)} in {known.names[0]}, {_said(b)} in {known.names[1]})"
    if name in _WHY:
        told += f": {_WHY[name]}"
    if ordered[1:]:
        told += f"; as well {', '.join(ordered[1:4])}" + (f" and {len(ordered) - 4} more" if ordered[4:] else "")
    return told


def _said(value: Any) -> str:
    text = value if isinstance(value, str) else "none" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


# -- resumes -----------------------------------------------------------------------------------------------


def _of_unrestored(kind: str, known: Known) -> Told | None:
    resume = known.resume
    if resume is None or not resume.unrestored or kind in ("event", "results", "counters", "lr"):
        return None
    return f"{_resumed(resume, known)} without its generators' states: {resume.unrestored}", _SHOW


def _of_resume(kind: str, known: Known) -> Told | None:
    """Say what wasn't restored, where the parting is the first at which that could show."""
    resume = known.resume
    if resume is None:
        return None
    if resume.forked:
        if resume.updates + resume.steps > 1:
            return None
        done = ", ".join(resume.by_hand) or "a change that no setting tells: another batch, other data, other code"
        return f"{_resumed(resume, known)}: {done}", _SHOW
    look = _NOT_RESTORED.get(kind)
    lacking = "" if look is None else look(resume, known)
    return (f"{_resumed(resume, known)}, and {lacking}", _VERIFY_B) if lacking else None


def _resumed(resume: Resume, known: Known) -> str:
    how = "goes on from" if resume.forked else "was resumed at"
    return f"{known.names[resume.of]} {how} {resume.at:,}" + (" as a fork" if resume.forked else "")


def _resumed_earlier(known: Known) -> str:
    resume = known.resume
    if resume is None:
        return ""
    return f"{_resumed(resume, known)}, {resume.steps:,} step{'' if resume.steps == 1 else 's'} before this one"


def _order_not_restored(resume: Resume, known: Known) -> str:
    return "its samples don't go on where they were: the loader's place wasn't restored" if not resume.steps else ""


def _generators_not_restored(resume: Resume, known: Known) -> str:
    drawn = "its generators don't go on where they were: they weren't restored, or something drew from them since"
    return drawn if not resume.steps else ""


def _loss_not_restored(resume: Resume, known: Known) -> str:
    if not resume.steps and "parameters" not in known.before:
        return "its first loss differs: weights, buffers or the batch in hand weren't restored"
    if resume.updates == 1:
        moments = "its optimizer's state (moments, step counts) wasn't restored"
        return f"the loss differs after the first update from there: {moments}, or gradients of an open window"
    return ""


def _gradients_not_restored(resume: Resume, known: Known) -> str:
    open_then = known.window > 1 and not resume.updates and "loss" in known.agree
    return "the gradients of the window that was open there weren't restored" if open_then else ""


def _update_not_restored(resume: Resume, known: Known) -> str:
    if resume.updates or "gradients" not in known.agree:
        return ""
    moments = "its optimizer's state (moments, step counts) wasn't restored"
    return f"its first update makes something else of the same gradients: {moments}"


_NOT_RESTORED: dict[str, Callable[[Resume, Known], str]] = {
    "ids": _order_not_restored,
    "batch": _generators_not_restored,
    "rng": _generators_not_restored,
    "loss": _loss_not_restored,
    "gradients": _gradients_not_restored,
    "parameters": _update_not_restored,
    "optimizers": _update_not_restored,
}


# -- what the field itself tells ---------------------------------------------------------------------------


def _of_event(known: Known) -> Told:
    for name, event, reason in zip(known.names, known.events, known.reasons, strict=True):
        if event in _ENDS:
            return f"{name} {_ENDS[event]} here" + (f": {reason}" if reason else ""), _SHOW_AT
    for one, event in enumerate(known.events):
        if event in _ONLY_HERE and event != known.events[1 - one]:
            return _ONLY_HERE[event].format(one=known.names[one], other=known.names[1 - one]), _SHOW_AT
    return "not the same happens here, though no setting differs that decides on it: a listener, or the data", _SHOW_AT


_ENDS = {"Failed": "failed", "Stopped": "was stopped"}
_ONLY_HERE = {
    "validate": "{one} validates here and {other} doesn't: a validation was left out, or one was put in",
    "Exhausted": "the epoch of {one} ends here, and {other} has another batch: the data's length, or who cut the epoch",
    "closed": "{one} updates its weights here and {other} waits for more micro-batches: one was lost to the window",
}


def _of_ids(known: Known) -> Told:
    if known.ahead is not None:
        who, seq = known.ahead
        ahead, other = known.names[who], known.names[1 - who]
        return f"{ahead} passed over a batch: what it fetches here, {other} fetches at {seq:,}", _SAMPLES
    differ, compared = known.batches
    if differ == 1 < compared:
        return "in this batch alone, samples are swapped or another one is among them: the sampler", _SAMPLES
    if differ == 2 < compared:
        return "in this batch and one later, as if samples had been swapped between the two: the sampler", _SAMPLES
    what = "other samples, or the same in another order, though seed and settings of the data agree"
    return f"{what}: the sampler, or its state", _SAMPLES


def _of_batch(known: Known) -> Told:
    what = "the samples are the same and what is in them isn't"
    return f"{what}: a row of the dataset was changed, or what is made of it when it is read", _SAMPLES


def _of_rng(known: Known) -> Told:
    when = ""
    if "loss" in known.agree:
        when = "; the losses agree, so after the forward pass"
    elif "loss" in known.differ:
        when = "; the losses differ too, so before the forward pass's end"
    return f"the one drew other random numbers in this step than the other{when}", _SHELL


def _of_loss(known: Known) -> Told:
    if known.lossless is not None:
        lost = f"{known.names[known.lossless]} made no loss here: nothing was propagated back"
        return (
            f"{lost}, so the {'micro-batch is lost to its window' if known.window > 1 else 'batch is lost'}",
            _SHOW_AT,
        )
    if {"batch", "rng"} <= set(known.agree) and "parameters" in known.before:
        same = "samples, their content, generators and parameters agree and the loss doesn't"
        return f"{same}: the forward pass isn't the same, or {_not_deterministic(known)}", _REPEAT
    left = [what for what, at in _BEFORE_A_LOSS if what not in (known.before if at else known.agree)]
    agreed = [
        what for what in ("samples", "generators") if {"samples": "ids", "generators": "rng"}[what] in known.agree
    ]
    same = f"{' and '.join(agreed)} agree" if agreed else "the loss differs"
    named = ", ".join({"batch": "the batch's content", "parameters": "the weights before this step"}[w] for w in left)
    return f"{same}, so it is {named}{' or ' if named else ''}the forward pass", _REPEAT


_BEFORE_A_LOSS = (("batch", False), ("parameters", True))


def _of_gradients(known: Known) -> Told:
    if known.window > 1:
        what = (
            f"samples, generators and losses of the window's {known.window} micro-batches agree and its gradients don't"
        )
        return f"{what}: a micro-batch was lost to the window, or {_not_deterministic(known)}", _REPEAT
    what = "samples, generators and loss agree and the gradients don't"
    return f"{what}: what changes gradients (clipping, hooks), or {_not_deterministic(known)}", _REPEAT


def _not_deterministic(known: Known) -> str:
    if known.deterministic:
        return "an operation that isn't deterministic though only such ones were allowed: one of your own, say"
    return "an operation isn't deterministic (Trainer(deterministic=True) would refuse one)"


def _of_lr(known: Known) -> Told:
    return "another learning rate from here on, though no setting differs: a schedule, or code that sets it", _SHOW_AT


def _of_parameters(known: Known) -> Told:
    if "optimizers" in known.differ:
        if "gradients" in known.agree:
            return "the same gradients make another update: the optimizer's state differs", _SHELL
        return "the update differs; its gradients weren't recorded", _SHELL
    if "optimizers" in known.agree:
        what = "gradients and the" if "gradients" in known.agree else "the"
        told = f"{what} optimizer's state agree{'s' if what == 'the' else ''} and the weights don't"
        return f"{told}: something other than the optimizer changed weights in this step", _SHELL
    return "the weights differ from here on", _SHELL


def _of_buffers(known: Known) -> Told:
    return "the weights agree and buffers (running statistics) don't: the forward pass ran once more, or less", _SHELL


def _of_optimizers(known: Known) -> Told:
    return "the weights agree and the optimizer's state doesn't: something other than an update changed it", _SHELL


def _of_scaler(known: Known) -> Told:
    return "the gradient scaler's state differs: a window was skipped in the one only, or its options differ", _SHELL


def _of_results(known: Known) -> Told:
    what = "training agrees up to here and the validation's results don't"
    return f"{what}: its data, its metrics, or {_not_deterministic(known)}", _SHOW_AT


def _of_own(known: Known) -> Told:
    what = "an event of the machine's own tells something else, though the settings agree"
    return f"{what}: look at what its state's work reads and draws, or {_not_deterministic(known)}", _SHOW_AT


def _of_other(known: Known) -> Told:
    return "", _SHOW_AT


_OF_KIND: dict[str, Callable[[Known], Told]] = {
    "event": _of_event,
    "own": _of_own,
    "ids": _of_ids,
    "batch": _of_batch,
    "rng": _of_rng,
    "loss": _of_loss,
    "gradients": _of_gradients,
    "lr": _of_lr,
    "parameters": _of_parameters,
    "buffers": _of_buffers,
    "optimizers": _of_optimizers,
    "scaler": _of_scaler,
    "results": _of_results,
}


__all__ = ["ORDER", "PARTS", "Known", "Resume", "explained", "kind_of", "relevant"]

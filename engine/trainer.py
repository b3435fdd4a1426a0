"""`Trainer`: the engine with the training machine, put together. Each state's work is one short method here.

This module is the composition root: it checks what the caller gave, builds driver, evaluator and listeners, and knows
the settings. What is counted, decided and recorded is the machine's and the engine's.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import attrs

from tachograph.drivers import NO_BATCH, Driver, choose_driver
from tachograph.states import (
    EpochBegan,
    EpochEnded,
    Event,
    Exhausted,
    Fetched,
    Started,
    Stepped,
    Stopped,
    TrainerState,
    maker,
    training_machine,
)
from tachograph.states.errors import CallerError
from tachograph.states.step import TAILS, window_size

from . import arguments, describing, recording
from .callbacks.callback import Callback
from .checks import Perform, with_engine
from .debugging import debugging_of
from .due import Due
from .engine import Engine
from .evaluating import Evaluations
from .evaluator import Evaluator
from .finders import Finders
from .legality import STEP, Check
from .limits import Limits
from .losses import IN_A_RECORD, short
from .marked import OnDescriptor, hand_out, marked_for
from .min_epochs import min_epochs_of
from .mirrored import Mirrored
from .models import Models
from .rehearsal.rehearsals import Rehearsals
from .steps import Steps

_OUTSIDE_AN_EPOCH = ("init", "sanity_check", "epoch_begin", "epoch_end")
_BUILT_IN = frozenset({*_OUTSIDE_AN_EPOCH, "fetch", "step", "validate"})

_QUICK = {Fetched: ("fetch", "step"), Stepped: ("step", "fetch")}
"""What a trainer's own work makes twice per batch, with the states that lie on both sides; see `JournalWriter.hold`."""

_fetched = maker(Fetched, "ids")


class Trainer(Steps, Evaluations, Models, Finders, Rehearsals, Engine):
    """Trains a model.

    Args:
        model: an `nn.Module`. For a batch, its `train_step` is called if it has one, else its forward pass: a dict
            batch fills the parameters by name, any other is passed whole. It returns a dict or dataclass with `loss`.
        driver: "torch" (one process), "torch_ddp" (several, each with the whole model), "torch_fsdp" (several, each
            with a share of it), "auto" (what the launch and the devices say), or a `Driver`; see `choose_driver`.
        train_dataloader: one loader: a `DataLoader`, or anything that can be iterated over again and again.
        optimizers: one torch optimizer or a sequence of them.
        device: where to train; None: where the model's parameters are; a list: in a process on each; -1: on all GPUs.
        n_epochs: how many epochs in all; a run that is extended counts those it has done. None: no limit.
        validate_dataloaders: one loader, or a dict name -> loader; given if and only if `metrics` is.
        batch_step_fn: `f(trainer, batch)`, replaces the step: it calls `trainer.train_step`, `backward`, `step` and
            `zero_grad`.
        validate_batch_step_fn: `f(evaluator, batch)`, replaces the evaluation of a batch.
        validate_mode: "validate" or "test": which of the model's methods is looked for first.
        callbacks: one `Callback` or a sequence of them.
        metrics: a dict name -> metric; see `Evaluator`.
        validate_every: n > 0: after every n batches of the run; -n: at the end of every n-th epoch; or with a unit:
            "100 updates" (optimizer steps that were taken), "0.25 epoch", "10min"; or several of these, `(500, -1)`;
            or `f(trainer) -> bool`, asked after every batch, with the batch counted.
        input_mapping: applied to each batch; a callable, or a dict old name -> new name.
        output_mapping: applied to the model's outputs likewise.
        accumulation_steps: micro-batches in a window, >= 1. The gradient of a window is the mean over the micro-batches
            really in it; the last, shorter window of an epoch is closed at its end.
        fp16: the same as `precision="fp16"`.
        marker: takes the functions that were subscribed with `Trainer.on(..., marker=...)`.
        run_dir: where the journal and the snapshots go; "auto": `runs/<UTC time>-<short id>`; None: nothing is kept.
        seed: of the data order and of all generators; None takes torch's initial seed, and leaves the generators alone.
        precision: "fp32", "bf16" or "fp16".
        snapshot_every: "epoch", n batches, a time such as "10min", or None: only at signals and errors.
        kwargs: more, by purpose. Limits: `n_batches`, which takes the place of `n_epochs`; `max_time`, in seconds or as
            "2h"; `min_epochs`: a listener's stop waits until so many are done. Evaluation: `monitor` and
            `larger_better`, for every callback without its own; `train_fn` and `evaluate_fn`, names of the model's
            methods; `train_input_mapping` and the like, for one of the two; `model_wo_auto_param_call`: a dict batch
            is passed whole; `model_use_eval_mode`. Windows: `accumulation_tail`, what becomes of one that is open at an
            epoch's end: "flush" (it is closed with its own divisor), "carry" (the next epoch fills it up), "drop";
            `loss_weight`, what a micro-batch counts by in its window, over all ranks: "samples", the name of an output
            that holds the number of its valid targets, or `f(outputs, batch) -> number`; None: all count alike.
            Snapshots: `keep_snapshots`, an int n to keep the last n, or a `Keep(...)`; `on_snapshot_fault`, "raise" or
            "warn" when one can't be written; `requeue`, see `requeue_of`. States of your own: `rows`, further rows of
            the table (see `training_machine`), and `perform`, state name -> `f(state) -> event` or `f(trainer, state)`.
            What is shown: `progress_bar`, "auto", "rich", "plain", "json", "tqdm", a callback, or None. torch:
            `set_grad_to_none`, `torch_non_blocking`, `torch_kwargs` (these two, and `gradscaler_kwargs`).
            `overfit_batches`: n > 0: train on the first n batches of the first epoch in every epoch, and validate on
            them; -1: on all of it; 0: off.
            `fast_dev_run`: True or n: one epoch of 1 or n batches of everything; no run directory is written or read.
            `limit_train_batches`, `limit_validate_batches`: what `run()` uses of a loader where it isn't told: n > 0
            batches, a fraction > 0.0 and <= 1.0 of its length, -1 all.
            `deterministic`: True: during a run, operations without a deterministic algorithm are errors; "warn":
            warnings.
            `detect_anomaly`: True: during a run, a backward pass that makes a NaN is an error.
            `compile`: True, or a dict of `torch.compile`'s arguments: what batches are given to is compiled.
            Several processes: `processes`, how many to start where `device` isn't a list, and `output_from_new_proc`,
            "all", "only_error", "ignore" or a folder for what the others print; the rest has no effect in one:
            `torch_ddp_kwargs`, those of `DistributedDataParallel`, or `torch_kwargs={"ddp_kwargs": ..., "fsdp_kwargs":
            ...}`; `use_dist_sampler` and `use_eval_dist_sampler`: False: each rank's loader makes what that rank is to
            read; `data_device`, where batches are moved, if not to the model.
            Taken, and without effect: `check_dataloader_legality`.

    Attributes:
        state: your own values, saved with every snapshot: a dict with attributes.
        seed: the run's seed.
        monitor: what callbacks without a monitor of their own look at; None: nothing.
        larger_better: whether more of it is better.
        train_dataloader: the loader.
        batch_indices: the sample ids of the batch in hand; None where they aren't known.

    Raises:
        CallerError: an argument can't be used; the message says which, and what would be. Nothing was written.
    """

    on = OnDescriptor()  # type: ignore[assignment]
    trainer_state: TrainerState
    seed: int
    n_epochs = Mirrored[int | None]()
    cur_epoch_idx = Mirrored[int]()
    global_forward_batches = Mirrored[int]()
    batch_idx_in_epoch = Mirrored[int]()
    num_batches_per_epoch = Mirrored[int | None]()
    total_batches = Mirrored[int | None]()

    def __init__(
        self,
        model: Any,
        driver: str | Driver,
        train_dataloader: Any,
        optimizers: Any = None,
        device: Any = "cpu",
        n_epochs: int | None = 20,
        validate_dataloaders: Any = None,
        batch_step_fn: Callable[[Trainer, Any], Any] | None = None,
        validate_batch_step_fn: Callable[[Evaluator, Any], Any] | None = None,
        validate_mode: str = "validate",
        callbacks: Any = None,
        metrics: Mapping[str, Any] | None = None,
        validate_every: int | str | Sequence[int | str] | Callable[..., bool] = -1,
        input_mapping: Any = None,
        output_mapping: Any = None,
        accumulation_steps: int = 1,
        fp16: bool = False,
        marker: str | None = None,
        run_dir: str | Path | None = "auto",
        seed: int | None = None,
        precision: str | None = None,
        snapshot_every: int | str | None = "epoch",
        **kwargs: Any,
    ) -> None:
        given = arguments.known(kwargs, inspect.signature(Trainer.__init__).parameters)
        self._debug = debugging_of(given)
        n_epochs, run_dir, validate_every, snapshot_every = self._debug.shortened(
            given, n_epochs=n_epochs, run_dir=run_dir, validate_every=validate_every, snapshot_every=snapshot_every
        )
        validate_dataloaders = self._debug.evaluated(self, validate_dataloaders, metrics)
        self._auto_dir = run_dir == "auto"
        self.accumulation_steps = arguments.count(accumulation_steps, "accumulation_steps")
        n_batches = arguments.limit(given["n_batches"], "n_batches")
        max_time = arguments.duration(given["max_time"], "max_time")
        self._limits = Limits(n_batches, max_time, lambda: self.world.timer())
        self._due = Due(arguments.cadence(validate_every), lambda: self._limits.seconds)
        self._tail = arguments.one_of(given["accumulation_tail"], "accumulation_tail", TAILS)
        self._weighting = arguments.weighting(given["loss_weight"])
        self.monitor = arguments.monitor(given["monitor"])
        self.larger_better: bool = arguments.flag(given["larger_better"], "larger_better")
        if (metrics is None) != (validate_dataloaders is None):
            lacking = "metrics" if metrics is None else "validate_dataloaders"
            raise CallerError(f"metrics and validate_dataloaders belong together: {lacking} is missing")
        train = choose_driver(driver, model, device, **arguments.driver_options(driver, precision, fp16, given))
        train.set_optimizers(optimizers)
        train.set_dataloader(train_dataloader)
        self._debug.ready(train)
        if train.ranks.world_size > 1:
            self._limits.by_clock = False
            self._due.agree_by(train.ranks.agree)
        train.input_mapping = arguments.one_mapping("input", input_mapping, given["train_input_mapping"])
        self._output_mapping = arguments.one_mapping("output", output_mapping, given["train_output_mapping"])
        self.train_dataloader = train_dataloader
        self.evaluator = self._evaluator(
            train,
            model,
            validate_dataloaders,
            metrics,
            validate_batch_step_fn,
            validate_mode,
            input_mapping,
            output_mapping,
            given,
        )
        self._step_fn = self._default_step if batch_step_fn is None else arguments.step_fn(batch_step_fn)
        self.batch_indices: Any = None
        self._losses = []
        self._num_train = self._num_eval = -1
        self._went_on_at: int | None = None
        self._opened = False  # an epoch is under way
        self._fetched = -1  # the batch in hand was fetched when so many had been worked off
        self._sanity = 0
        limit = TrainerState(n_epochs=arguments.epochs(n_epochs, n_batches), total_batches=n_batches)
        perform: dict[str, Perform] = {
            "init": self._init,
            "sanity_check": self._sanity_check,
            "epoch_begin": self._epoch_begin,
            "fetch": self._fetch,
            "step": self._step,
            "validate": self._validate,
            "epoch_end": self._epoch_end,
        }
        machine, own = training_machine(given["rows"]), with_engine(self, given["perform"] or {})
        perform |= own
        self._own_states = frozenset(machine.names) - _BUILT_IN - machine.final
        if self._own_states:
            perform["fetch"] = self._noting(perform["fetch"])
        self._knows_epochs = not {"epoch_begin", "epoch_end"} & set(own)
        super().__init__(
            machine,
            perform,
            state=limit,
            driver=train,
            run_dir=run_dir,
            snapshot_every=snapshot_every,
            keep_snapshots=given["keep_snapshots"],
            on_snapshot_fault=given["on_snapshot_fault"],
            requeue=given["requeue"],
            seed=seed,
        )
        self._quick = {event: dest for event, (source, dest) in _QUICK.items() if source not in own}
        for target, fn in marked_for(marker):
            self.listeners.add(target, fn)
        self._min_epochs = min_epochs_of(given["min_epochs"], limit.n_epochs)
        held = [*arguments.with_progress(callbacks, given["progress_bar"]), *self._min_epochs]
        for callback in self._debug.heard(held):
            self.listeners.add_callback(callback)
        self._unchecked = batch_step_fn is not None
        self._own_step = batch_step_fn is not None
        self._hear_inside("on_after_trainer_initialized", train)
        self.listeners.check_plain(self, train.is_tensor)
        hand_out()

    # -- for users -----------------------------------------------------------------------------------------

    def run(  # type: ignore[override]
        self,
        num_train_batch_per_epoch: int = -1,
        num_eval_batch_per_dl: int = -1,
        num_eval_sanity_batch: int = 2,
        resume_from: str | Path | None = None,
        resume_training: bool = True,
        catch_KeyboardInterrupt: bool | None = None,
        *,
        on_divergence: str = "warn",
        strict: bool = True,
        **unknown: NoReturn,
    ) -> TrainerState:
        """Train until the limits are reached or somebody asks to stop.

        A second call goes on where the first one ended, if the limits allow it.

        Args:
            num_train_batch_per_epoch: batches to use of an epoch, > 0; -1 uses all.
            num_eval_batch_per_dl: batches to use of each validation loader, > 0; -1 uses all.
            num_eval_sanity_batch: batches for the sanity check; 0 leaves it out, -1 uses all.
            resume_from: a run directory, a snapshot, or "auto": go on if `run_dir` holds a run, else start.
            resume_training: False takes only the model and the optimizers from `resume_from`, and starts a new run.
            catch_KeyboardInterrupt: return normally after Ctrl-C; None: only in a REPL or a notebook.
            on_divergence: "warn" or "raise" when a re-executed transition differs from the recorded one.
            strict: False lets a resume go on with listeners whose saved state is missing, with a warning.
            unknown: nothing; what stands here is answered.

        Returns:
            The final state.

        Raises:
            CallerError: an argument can't be used.
            FileNotFoundError, NotARun, SnapshotFault, SettingsChanged, RestoreFault: `resume_from` can't be used.
            KeyboardInterrupt, SystemExit: a signal ended the run; the status is 128 + its number.
            BaseException: whatever the model, the data or a listener raised; the journal says where.
        """
        if unknown:
            arguments.known_to_run(unknown, *(inspect.signature(f).parameters for f in (Trainer.run, Trainer.__init__)))
        if resume_from is None and self._load_from is not None:
            resume_from, self._load_from = self._load_from, None
        resume_from = self._debug.source(resume_from)
        if resume_from == "auto" and self._auto_dir and not recording.holds_a_run(self.run_dir or Path()):
            raise CallerError(
                "resume_from='auto' looks into run_dir, and run_dir='auto' is a new one at each start: give the "
                "trainer a run_dir"
            )
        arguments.batches(num_train_batch_per_epoch, "num_train_batch_per_epoch")
        arguments.batches(num_eval_batch_per_dl, "num_eval_batch_per_dl")
        if num_eval_sanity_batch != 0:
            arguments.batches(num_eval_sanity_batch, "num_eval_sanity_batch")
        limits = self._debug.limits(
            num_train_batch_per_epoch, num_eval_batch_per_dl, num_eval_sanity_batch, self.train_dataloader
        )
        try:
            with self._at_work(*limits):
                if told := self._debug.sentence():
                    self.say(told)
                end: TrainerState = super().run(
                    resume_from=resume_from, resume_training=resume_training, on_divergence=on_divergence, strict=strict
                )
            if end.global_forward_batches == self._went_on_at and end.state == "done":
                self.say(f"{end.stop_asked or 'the limit is reached already'}: nothing was run")
            return end
        except KeyboardInterrupt:
            if not self._swallows(catch_KeyboardInterrupt):
                raise
            return self.trainer_state

    @contextmanager
    def _at_work(self, train: int, validate: int | float, sanity: int) -> Iterator[None]:
        """Run the body as training is run: with these limits in batches, watched as was asked, and with time running.

        Args:
            train: of an epoch; -1: all.
            validate: of each validation loader, likewise.
            sanity: of the sanity check; 0: none.
        """
        assert self.driver is not None
        self._num_train, self._num_eval = train, validate
        self.driver.set_dataloader(self.train_dataloader, train)
        if self._unchecked:  # not before: listeners may still have been added
            self._check, self._unchecked = Check(self, STEP, "batch_step_fn"), False
        self._sanity = sanity if self.evaluator is not None else 0
        self._measured = self.run_dir is not None
        self._went_on_at = None
        self._limits.begin()
        try:
            with self._debug.around(self.driver):
                yield
        finally:
            self._limits.end()

    def _swallows(self, asked: bool | None) -> bool:
        """Say whether a run returns normally after Ctrl-C; several processes must end, each of them."""
        if self.ranks.world_size == 1:
            return arguments.interactive() if asked is None else asked
        if asked:
            warnings.warn("catch_KeyboardInterrupt has no effect in several processes: all of them end", stacklevel=4)
        return False

    def stop(self, reason: str = "stop()", on_all_ranks: bool = False) -> None:
        """Ask the run to stop at the next transition, or when `min_epochs` are done; see `Engine.stop`."""
        if not any(least.defers(self, str(reason) or "stop()") for least in self._min_epochs):
            super().stop(reason, on_all_ranks)

    def end_epoch(self, reason: str = "end_epoch()") -> None:
        """End the epoch in work before its next batch; its validation and its end follow as usual.

        The request is part of the state, so it survives a crash, and `Exhausted.cut` keeps the reason. `stop` is the
        other verb: it ends the run where it is, and the epoch can be gone on with.

        Args:
            reason: who asks and why; not empty.

        Raises:
            CallerError: no epoch is under way.
        """
        state = self.trainer_state
        if not self._is_opened(state):
            raise CallerError(f"end_epoch: no epoch is under way in state '{state.state}'")
        if not state.epoch_exhausted:
            self._ask("epoch_cut_asked", str(reason) or "end_epoch()")

    def add_callback(self, callback: Callback) -> None:
        if self._debug.heard([callback]):
            super().add_callback(callback)

    def add_callback_fn(self, event: Any, fn: Callable[..., Any]) -> Any:
        """Subscribe a function, as `on` does; the reference trainer's name for it."""
        return self.listeners.add(event, fn)

    @property
    def n_batches(self) -> int | None:
        """The limit in batches, over all runs; None means that `n_epochs` is the limit. May be set between runs."""
        return self._limits.n_batches

    @n_batches.setter
    def n_batches(self, value: int | None) -> None:
        self._limits.n_batches = arguments.limit(value, "n_batches")

    @property
    def seconds(self) -> float:
        """How long the run has been at work, in all its lives."""
        return self._limits.seconds

    @property
    def max_time(self) -> float | None:
        """The limit in seconds, over all runs; None means none. May be set between runs, as a number or "2h"."""
        return self._limits.max_time

    @max_time.setter
    def max_time(self, value: Any) -> None:
        self._limits.max_time = arguments.duration(value, "max_time")

    # -- the work of the states ----------------------------------------------------------------------------

    def _init(self, state: TrainerState) -> Event:
        return Started(sanity_check=self._sanity != 0)

    def _epoch_begin(self, state: TrainerState) -> Event:
        driver, reached = self.driver, self._limits.reached(state)
        if reached:
            return Stopped(reason=reached)
        driver.train_mode()  # type: ignore[union-attr]
        batches = driver.open_epoch(state.cur_epoch_idx, 0, 0)  # type: ignore[union-attr]
        self._opened = True
        if self.evaluator is not None:
            self._due.check_length(batches)
        return EpochBegan(epoch=state.cur_epoch_idx, num_batches_per_epoch=batches)

    def _fetch(self, state: TrainerState) -> Event:
        if state.epoch_cut_asked:
            return self._exhausted(state, state.epoch_cut_asked)
        reached = self._limits.reached(state)
        if reached and self._more_in_epoch(state):
            return Stopped(reason=reached)
        if self._custom_loop is not None:
            self._custom_loop.run(self)
            self._losses = []
            return self._ended(self.trainer_state, Exhausted())
        driver = self.driver
        try:
            batch = driver.next_batch()  # type: ignore[union-attr]
        except BaseException:
            self.batch_indices = driver.batch_ids  # type: ignore[union-attr]
            raise
        if batch is NO_BATCH:
            return self._exhausted(state)
        if reached:  # the loader has more than it said
            return Stopped(reason=reached)
        self.batch, self.batch_indices = batch, driver.batch_ids  # type: ignore[union-attr]
        return _fetched(driver.ids_digest() if self._measured or self.listeners.hear_events else 0)  # type: ignore[union-attr]

    @staticmethod
    def _more_in_epoch(state: TrainerState) -> bool:
        return state.num_batches_per_epoch is None or state.batch_idx_in_epoch < state.num_batches_per_epoch

    def _exhausted(self, state: TrainerState, cut: str = "") -> Event:
        if state.batch_idx_in_epoch == 0 and not cut:
            raise CallerError(f"train_dataloader made no batch at all in epoch {state.cur_epoch_idx}")
        opened = 0 if self._tail == "carry" else state.accumulated
        flushed = opened > 0 and self._tail == "flush"
        self.step_skipped = False
        if opened:
            self._closes = True
            if flushed:
                self._flush(state)
            self.zero_grad()
        event = Exhausted(
            flushed=flushed,
            skipped=self.step_skipped,
            late=self._late(),
            dropped=0 if flushed else opened,
            cut=cut,
        )
        return self._ended(state, event)

    def _ended(self, state: TrainerState, event: Exhausted) -> Exhausted:
        due = self.evaluator is not None and self._due.at_epoch_end(state, event)
        return attrs.evolve(event, validate_due=due)

    def _epoch_end(self, state: TrainerState) -> Event:
        self.trainer_state = self._with_limits(state)  # an epoch may have been of another length than was known
        self._opened = False
        return EpochEnded(epoch=state.cur_epoch_idx)

    # -- what the engine asks ------------------------------------------------------------------------------

    def _prepare(self, fresh: bool = True) -> None:
        super()._prepare(fresh)
        if fresh:
            self.trainer_state = self._with_limits(self.trainer_state)

    def _settings(self) -> dict[str, Any]:
        return {
            **self._settings_of_work(),
            "accumulation_steps": self.accumulation_steps,
            "accumulation_tail": self._tail,
            "loss_weight": None if self._weighting is None else self._weighting.plain(),
            "n_epochs": self.trainer_state.n_epochs if self.n_batches is None else None,
            "n_batches": self.n_batches,
            "max_time": self.max_time,
            "num_train_batch_per_epoch": self._num_train,
            **self._debug.settings(),
            "batch_step_fn": describing.named(self._step_fn) if self._own_step else None,
            "validation": {} if self.evaluator is None else {**self.evaluator.built_with(), "batches": self._num_eval},
            "validate_every": self._due.plain(),
            "sanity_batches": self._sanity,
            **self._settings_of_snapshots(),
        }

    def adopts(self, run_dir: Path) -> bool:
        return self._auto_dir or super().adopts(run_dir)

    def _with_limits(self, state: TrainerState) -> TrainerState:
        assert self.driver is not None
        return self._limits.applied(state, self.trainer_state.n_epochs, self.driver.length())

    def _has_work(self, state: TrainerState) -> bool:
        return not self._limits.reached(state)

    def _reenter(self, state: TrainerState, batch: Any) -> None:
        self._went_on_at = state.global_forward_batches
        driver = self.driver
        assert driver is not None
        if state.state in self._own_states:
            super()._reenter(state, batch)
        if not self._is_in_epoch(state):
            return
        counts = self._is_uncounted(state)
        in_hand = counts and batch is not NO_BATCH
        place = state.place if state.place or not state.batch_idx_in_epoch else None  # a loop of one's own counts none
        if place is not None and in_hand:
            place += driver.batch_samples
        length = driver.open_epoch(state.cur_epoch_idx, state.batch_idx_in_epoch + in_hand, place)
        if length not in (None, state.num_batches_per_epoch):
            self._take_length(state, length)
        if counts:
            self.batch = batch if in_hand else driver.next_batch()
            self.batch_indices = driver.batch_ids
            reached = self._limits.reached(state)
            if reached:  # the limit was lowered while this batch was in hand
                super().stop(reached, on_all_ranks=True)

    def _noting(self, fetch: Callable[[TrainerState], Event]) -> Callable[[TrainerState], Event]:
        """Have the fetch of a machine with states of a user's own note when a batch came into hand."""

        def noting(state: TrainerState) -> Event:
            event = fetch(state)
            if isinstance(event, Fetched):
                self._fetched = state.global_forward_batches
            return event

        return noting

    def _is_uncounted(self, state: TrainerState) -> bool:
        """Say whether the batch in hand was fetched, and isn't counted as worked off."""
        return state.state == "step" or (
            state.state in self._own_states and self._fetched == state.global_forward_batches
        )

    def _is_opened(self, state: TrainerState) -> bool:
        """Say whether the driver reads an epoch, or has read all of it."""
        if state.state in self._own_states:
            return self._opened or not self._knows_epochs
        return state.state not in _OUTSIDE_AN_EPOCH and state.state not in self.machine.final

    def _is_in_epoch(self, state: TrainerState) -> bool:
        return self._is_opened(state) and not state.epoch_exhausted

    def _held_batch(self) -> Any:
        state = self.trainer_state.state  # a step of a user's own may have left its batch lying about
        return super()._held_batch() if state == "step" or state in self._own_states else NO_BATCH

    def _take_length(self, state: TrainerState, length: int | None) -> None:
        """The batch size was changed, and with it the length of the epoch in work and of the window that is open."""
        changed = attrs.evolve(state, num_batches_per_epoch=length)
        before, now = (window_size(s, self.accumulation_steps, self._tail) for s in (state, changed))
        if state.accumulated:
            self._lengthen(before, now)
        self.trainer_state = self._with_limits(changed)

    def take_journal(self, journal: Any) -> None:
        self._limits.resume(journal.seconds)
        self._went_on_at = 0

    def overdue(self) -> str:
        return self._limits.out_of_time()

    def _own_state(self) -> dict[str, Any]:
        own: dict[str, Any] = {"skips_batch": True} if self._skips_batch else {}
        if self.trainer_state.state in self._own_states:
            own |= {"opened": self._opened, "fetched": -1 if self.batch is None else self._fetched}
        return {"since_validation": self._due.waited(), **own, **self._window()}

    def _take_own_state(self, held: dict[str, Any]) -> None:
        self._due.go_on(held.get("since_validation", 0.0))
        self._skips_batch = held.get("skips_batch", False)
        self._opened, self._fetched = held.get("opened", True), held.get("fetched", -1)
        self._take_window(held)

    def _where(self, state: TrainerState) -> str:
        where = f"in state '{state.state}', epoch {state.cur_epoch_idx}, batch {state.batch_idx_in_epoch}, "
        where += f"after transition {state.seq}"
        if self.batch_indices is None:
            return where
        return f"{where}; the batch holds the samples {short(self.batch_indices)}"

    def _failed(self, error: BaseException) -> Any:
        failed, ids = super()._failed(error), self.batch_indices
        if ids is None and self.evaluator is not None and self.trainer_state.state in ("sanity_check", "validate"):
            ids = self.evaluator.batch_ids
        return failed if ids is None else attrs.evolve(failed, ids=short(ids, IN_A_RECORD))

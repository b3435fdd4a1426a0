"""The protocol between the engine and the hardware.

A driver performs the work of a state: it knows tensors, devices, precision, loaders, generators and the bytes
of a snapshot. The engine knows none of these; batches, outputs and captures pass through it unopened. This
module imports no torch, so that a driver without it (`StubDriver`) can be written and tested in milliseconds.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Final

from tachograph.states.errors import CallerError

from .averages import Averages
from .extras import Extras
from .lengths import length_of
from .ranks import ALONE, Ranks
from .share import Share


class _NoBatch:
    def __repr__(self) -> str:
        return "NO_BATCH"


NO_BATCH: Final = _NoBatch()
"""What `Driver.next_batch` returns when the epoch has no batch left."""


def _unheard(text: str) -> None:
    """Take a sentence where nobody listens."""


class Driver(Extras, abc.ABC):
    """Performs the work of the states. Subclass it to bring a device, a precision or a launch of your own.

    What is promised here, `tachograph.drivers.contract` has as tests for a driver of your own.

    The order of calls in a run: `set_optimizers`, `set_dataloader`, `setup`; then either `seed_generators` or
    `read` and `restore`; then per epoch `open_epoch`, and per batch `next_batch`, `train_step`, `backward`, and at
    the end of an accumulation window `optimizer_step` and `zero_grad`. `capture` may be called between any two states.

    Attributes:
        model: the model as the user gave it.
        optimizers: the optimizers, in the user's order.
        batch_ids: sample ids of the batch that `next_batch` returned last, or couldn't make; None where they aren't
            known.
        batch_samples: how many samples that batch holds, over all ranks.
        evaluation_ids: sample ids of the batch that `evaluation_batches` yielded last, or couldn't make, likewise.
        evaluates: an evaluation is under way.
        ranks: the processes that train together; see `Ranks`.
        keeps_step: every rank must call the model equally often in an evaluation too, as a sharded one needs it.
        eval_share: the user's choice for evaluation loaders. None: their batches are dealt out to the ranks, unless a
            loader shares its data by itself; True: they're dealt out; False: each rank reads what its loader makes.
        input_mapping: applied to every training batch before it is moved to the device; None leaves it as it is.
        tell: takes a sentence that the user must read and the run must keep, such as one on data that is read again.
    """

    model: Any = None
    optimizers: Sequence[Any] = ()
    batch_ids: Sequence[Any] | None = None
    batch_samples: int = 0
    evaluation_ids: Sequence[Any] | None = None
    evaluates: bool = False
    ranks: Ranks = ALONE
    keeps_step: bool = False
    eval_share: bool | None = None
    input_mapping: Callable[[Any], Any] | None = None
    tell: Callable[[str], None] = staticmethod(_unheard)

    @property
    def world_size(self) -> int:
        """How many processes train together."""
        return self.ranks.world_size

    # -- building ------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def set_optimizers(self, optimizers: Any) -> None:
        """Take one optimizer or a sequence of them; raise `CallerError` for anything else."""

    @abc.abstractmethod
    def set_dataloader(self, dataloader: Any, max_batches: int = -1) -> None:
        """Take the training loader; raise `CallerError` if it is empty or of a kind that can't be used.

        Args:
            dataloader: one loader.
            max_batches: batches to use of an epoch; -1 uses all.
        """

    @abc.abstractmethod
    def setup(self, seed: int, whole_digest: bool) -> None:
        """Get ready: move the model, fix the seed of the data order.

        Args:
            seed: what the order of an epoch is a pure function of, together with the epoch.
            whole_digest: all generators were seeded by the run, so that `rng_digest` may cover all of them.
        """

    def fingerprint(self) -> dict[str, Any]:
        """Return plain data that must be the same at a resume, by what it describes (model, optimizers, ...)."""
        return {}

    def hyperparameters(self) -> dict[str, Any]:
        """Return the optimizers' plain values by name ("lr", ...), as the script built them.

        One that is another at a resume takes effect: `restore` puts it in place of the saved one.
        """
        return {}

    def describe(self, dataloader: Any) -> str:
        """Describe a loader by what decides on its batches, for comparison at a resume."""
        length = length_of(dataloader)
        return type(dataloader).__name__ + ("" if length is None else f" of {length} batches")

    def is_finite(self, loss: Any) -> bool:
        """Say whether a loss is neither NaN nor infinite; a device is waited for."""
        return math.isfinite(float(loss))

    def gradients_are_finite(self) -> bool:
        """Say whether the gradients are; True where a gradient scaler sees to it. A device is waited for."""
        return True

    def environment(self) -> dict[str, Any]:
        """Return plain data on libraries, device and determinism flags, for `run.json`."""
        return {}

    @abc.abstractmethod
    def initial_seed(self) -> int:
        """Return the seed that a run without a `seed` of its own takes."""

    @abc.abstractmethod
    def seed_generators(self, seed: int) -> None:
        """Seed every generator that training may draw from."""

    # -- training ------------------------------------------------------------------------------------------

    def length(self) -> int | None:
        """Return how many batches an epoch has, as far as it is known before one is opened; None if it isn't."""
        return None

    @abc.abstractmethod
    def open_epoch(self, epoch: int, done: int, samples: int | None = None) -> int | None:
        """Stand in an epoch, behind what was consumed of it; nothing before that is loaded where the data allows it.

        Args:
            epoch: its number, from 0.
            done: batches consumed.
            samples: samples consumed; None where that isn't known. It decides on the position where the data has an
                index, so that another batch size goes on with the first unseen sample.

        Returns:
            How many batches the epoch has in all: `done`, and those that are left. None if unknown.
        """

    @abc.abstractmethod
    def next_batch(self) -> Any:
        """Return the next batch on the device, or `NO_BATCH`; set `batch_ids` and `batch_samples`."""

    @abc.abstractmethod
    def train_step(self, batch: Any) -> Any:
        """Run the model's forward pass on a batch, under the driver's precision, and return its outputs."""

    @abc.abstractmethod
    def backward(self, loss: Any, divisor: int) -> None:
        """Add the gradients of `loss / divisor` to those there are."""

    def loss_fault(self, loss: Any) -> str:
        """Say why a loss, of which `backward` has failed, can have no gradients; "" if that isn't the loss's fault."""
        return ""

    def no_sync(self) -> AbstractContextManager[Any]:
        """Run the body, a forward and a backward pass, without exchanging gradients; one process has nobody to.

        The next backward pass outside averages all that have gathered, its own and those made in here, over all ranks.
        Every batch of an accumulation window but the one that closes it runs in here, so an update finds gradients that
        were exchanged once. A rank may make none for some batches in here, unless `keeps_step`; these count as zeros.
        """
        return nullcontext()

    def exchange_gradients(self) -> None:
        """Average the gradients that were made under `no_sync` over all ranks, since no backward pass will do it.

        It is called where a window turns out to end after its last batch, before they are unscaled. A rank without the
        gradient of a parameter, of which another has one, counts as zero and gets the average too.
        """

    @abc.abstractmethod
    def scale_gradients(self, factor: float) -> None:
        """Multiply all gradients there are by a factor."""

    def unscale(self) -> None:
        """Divide the gradients by what a gradient scaler has multiplied them with, since somebody will look at them."""

    def gradient_norm(self, norm_type: float = 2.0) -> Any:
        """Return the norm of all gradients where it lies, without waiting for it; None where it isn't known."""
        return None

    def clip_gradients_by_norm(
        self, most: float, parameters: Any = None, *, norm_type: float = 2.0, error_if_nonfinite: bool = False
    ) -> Any:
        """Scale the gradients so that their norm is `most` at most, and return what it was, as `gradient_norm` does.

        Args:
            most: > 0.
            parameters: whose gradients; None means all that the optimizers move.
            norm_type: which norm.
            error_if_nonfinite: raise if it is NaN or infinite, but where a gradient scaler sees to that.
        """
        raise CallerError(f"{type(self).__name__} clips no gradients")

    def clip_gradients_by_value(self, most: float, parameters: Any = None) -> None:
        """Cut every value of the gradients off at -`most` and `most`."""
        raise CallerError(f"{type(self).__name__} clips no gradients")

    def averages(self, *, buffers: bool = False) -> Averages:
        """Return an average of the model's weights, which has none yet.

        Args:
            buffers: average the model's buffers too (running means, say).
        """
        raise CallerError(f"{type(self).__name__} averages no weights")

    @abc.abstractmethod
    def optimizer_step(self) -> bool:
        """Take one step of all optimizers; False if it was skipped.

        All ranks answer alike. Where they hold the same gradients, a gradient scaler finds an overflow on all of them
        or on none, wherever in the window it was; a driver whose ranks hold different ones has them agree before.
        """

    def leave_out_step(self) -> None:
        """Hear that an update won't be taken, though its gradients are there and may have been unscaled."""

    @abc.abstractmethod
    def zero_grad(self) -> None:
        """Clear all gradients."""

    def train_mode(self) -> None:
        """Put the model in training mode."""

    @abc.abstractmethod
    def measure(self, loss: Any, seq: int) -> tuple[float | None, Sequence[Any]]:
        """Measure a step's loss without waiting for the device.

        Args:
            loss: what the step made; None if it made none.
            seq: the transition that the step will be.

        Returns:
            The loss as a float if it is at hand, else None; and `[seq, loss]` of an earlier step whose loss has
            arrived, else ().
        """

    def measured_late(self) -> list[list[Any]]:
        """Return `[seq, loss]` of all steps whose loss hasn't been handed out yet, waiting for them."""
        return []

    def plain(self, value: Any) -> Any:
        """Turn metric results into plain data: one-element tensors to numbers, longer ones to lists."""
        return value

    def learning_rates(self) -> list[float]:
        """Return the learning rates of all parameter groups of all optimizers."""
        return []

    def ids_digest(self) -> int:
        """Return a 32-bit hash of `batch_ids` in their order; 0 where they aren't known."""
        return 0

    def rng_digest(self) -> int:
        """Return a number that moves with every draw from the generators and is equal in equal runs; 0: not taken."""
        return 0

    def save_model(self, target: Any) -> None:
        """Write the model's weights to a path or an open file."""
        raise CallerError(f"{type(self).__name__} saves no model of its own")

    def load_model(self, source: Any) -> None:
        """Load the model's weights from a path or an open file; raise `RestoreFault` if they don't fit."""
        raise CallerError(f"{type(self).__name__} loads no model of its own")

    def weights(self) -> Any:
        """Copy the model's weights to the CPU's memory: plain data and tensors, for `put_weights`."""
        raise CallerError(f"{type(self).__name__} copies no weights")

    def put_weights(self, held: Any) -> None:
        """Put weights that `weights` returned into the model; raise `RestoreFault` if they don't fit."""
        raise CallerError(f"{type(self).__name__} copies no weights")

    def has_weights(self, held: Any) -> bool:
        """Say whether the model's weights are these that `weights` returned, bit for bit."""
        return False

    # -- evaluation ----------------------------------------------------------------------------------------

    def forked(self) -> AbstractContextManager[Any]:
        """Run the body on a copy of the generators, and put back what they were."""
        return nullcontext()

    def evaluating(self, model: Any, eval_mode: bool = True) -> AbstractContextManager[Any]:
        """Run the body without gradients, the model in evaluation mode, and put each module's mode back."""
        return nullcontext()

    def evaluate_fn(self, model: Any, mode: str) -> Callable[[Any], Any]:
        """Choose the model's method for evaluation; `mode` is "validate", "test" or a method's name."""
        return lambda batch: batch

    def evaluation_batches(self, dataloader: Any) -> Generator[Any, None, None]:
        """Yield this rank's batches of an evaluation loader from its beginning, and set `evaluation_ids`.

        Of the batches that one process would read, the i-th one is that of rank `i % world_size`, unless the loader
        shares its data by itself. It is a generator: closed before its end, it lets go of what it began.
        """
        yield from dataloader

    def share_of(self, dataloader: Any, share: bool | None = None, every: bool = False) -> Share:
        """Say what this rank reads of an evaluation loader; all ranks call it.

        Args:
            dataloader: the loader.
            share: as `eval_share`, whose place it takes; None leaves it at that.
            every: each rank is to read all of it, where the data is dealt out here.
        """
        length, apart = length_of(dataloader), self.world_size > 1 and share is not False and not every
        rounds = -(-length // self.world_size) if apart and length is not None else length
        return Share(
            batches=lambda: self.evaluation_batches(dataloader), length=length, rounds=rounds, is_apart=lambda: apart
        )

    def release(self, dataloader: Any) -> None:
        """Let go of an evaluation loader that won't be read again."""

    def place(self, metric: Any) -> None:
        """Move a metric that holds tensors to where the model is."""

    def joins(self, metric: Any) -> bool:
        """Say whether `joining` knows how to join a metric over ranks."""
        return False

    def joining(self, metric: Any, apart: bool) -> AbstractContextManager[Any]:
        """Run the body with a metric that would ask other ranks for their numbers by itself.

        Args:
            metric: any; one that doesn't is left as it is.
            apart: the ranks have seen parts of the data, so that what is computed now is computed of all of them; False
                has it computed of what this rank saw.
        """
        return nullcontext()

    def mean_of(self, value: Any) -> Any:
        """Return a number, or the mean of a tensor's elements where it lies; None for what is neither."""
        return value if isinstance(value, (int, float)) else None

    def scalar(self, value: Any) -> Any:
        """Return a number, or a tensor of one where it lies on a device, which isn't waited for; None for all else."""
        return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None

    def samples_of(self, batch: Any, whole: bool) -> int:
        """Return how many samples a batch of an evaluation holds.

        Args:
            batch: mapped, and on the device.
            whole: it is what `evaluation_batches` yielded last, and not a part of that or something else.
        """
        return len(self.evaluation_ids) if whole and self.evaluation_ids is not None else 1

    def all_gather(self, value: Any) -> list[Any]:
        """Return what every process holds, in the order of their ranks: numbers, tensors, or a tree of them."""
        return self.ranks.gather(value)

    def to_host(self, outputs: Any) -> Any:
        """Copy what a model returned to the host's memory, so that nothing else of its batch lives on."""
        return outputs

    def to_device(self, batch: Any) -> Any:
        """Move a batch to the device."""
        return batch

    # -- snapshots -----------------------------------------------------------------------------------------

    @abc.abstractmethod
    def capture(self, extra: Mapping[str, Any], batch: Any = NO_BATCH) -> Any:
        """Copy everything heavy that a resume needs; training may go on while the copy is written.

        Args:
            extra: plain data and tensors of the engine and its listeners; it changes while training goes on, so it
                must be copied to its leaves.
            batch: the batch in hand, if the state is between its fetch and its step.
        """

    @abc.abstractmethod
    def save(self, capture: Any, directory: Path) -> dict[str, tuple[int, str]]:
        """Write a capture into a directory: tensors and plain data only. Called from another thread.

        Args:
            capture: what `capture` returned. It isn't used any more after this: the next one may take its memory.
            directory: exists, and is empty.

        Returns:
            name -> (size in bytes, hex digest of blake2b with 16 bytes) of each file written, already fsynced.
        """

    def size_of(self, capture: Any) -> int:
        """Return about how many bytes `save` writes for a capture; 0 where that isn't known."""
        return 0

    def what_is(self, path: Path) -> str:
        """Say what a file is that isn't a snapshot, for the middle of a sentence."""
        return "a file"

    @abc.abstractmethod
    def read(self, directory: Path, *, strict: bool = True) -> tuple[dict[str, Any], Any]:
        """Read what `save` wrote, and hold it against this driver. Nothing is changed.

        Args:
            directory: a snapshot whose files were checked.
            strict: False passes over generators whose state is missing or can't be used; `restore_generators` says so.

        Returns:
            The `extra` that was captured, and what `restore` takes.

        Raises:
            RestoreFault: an entry without an owner, or an owner without an entry; it is named.
        """

    @abc.abstractmethod
    def restore(self, held: Any, *, training: bool = True) -> Any:
        """Put in place what `read` returned, all but the generators.

        Args:
            held: the second of what `read` returned.
            training: False restores the model and the optimizers only.

        Returns:
            The batch in hand, or `NO_BATCH`.
        """

    def restore_generators(self) -> str:
        """Put back the generators of the last `restore`; the last act of a resume, after everything that may draw.

        Returns:
            Which of them were passed over, and why; "" if none was.
        """
        return ""

    def is_tensor(self, value: Any) -> bool:
        """Say whether a value in a listener's state is a tensor that `save` can write."""
        return False

    def close(self) -> None:
        """Let go of loaders and workers; the driver can be set up again."""

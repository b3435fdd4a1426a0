"""Drivers with one fault each, for tests of the contract: it must catch every one of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import attrs

from tachograph.drivers import NO_BATCH, StubDriver
from tachograph.drivers.extras import PARTS
from tachograph.drivers.hashing import write_bytes
from tachograph.drivers.single import TorchDriver
from tachograph.drivers.undisturbed import undisturbed


@attrs.frozen
class Faulty:
    """A driver with a fault.

    Attributes:
        fault: what is wrong with it.
        kind: the driver.
        test: the test of the contract that must see it, without its "test_".
    """

    fault: str
    kind: type
    test: str


WITHOUT_TORCH: list[Faulty] = []
WITH_TORCH: list[Faulty] = []
IN_HALF_PRECISION: list[Faulty] = []
MEASURING_LATE: list[Faulty] = []


def fault(of: list[Faulty], what: str, *, seen_by: str) -> Callable[[type], type]:
    """Enter a driver under what is wrong with it."""

    def enter(kind: type) -> type:
        of.append(Faulty(what, kind, seen_by))
        return kind

    return enter


# -- building and batches ------------------------------------------------------------------------------------


@fault(WITHOUT_TORCH, "any optimizers are taken", seen_by="optimizers_that_are_none_are_refused_and_change_nothing")
class Fault1(StubDriver):
    def set_optimizers(self, optimizers: Any) -> None:
        self.optimizers = [optimizers]


@fault(WITHOUT_TORCH, "a refused loader has been taken", seen_by="a_loader_that_is_none_is_refused_and_changes_nothing")
class Fault2(StubDriver):
    def set_dataloader(self, dataloader: Any, max_batches: int = -1) -> None:
        self._batches = []
        super().set_dataloader(dataloader, max_batches)


@fault(
    WITHOUT_TORCH,
    "the fingerprint is another one each time",
    seen_by="what_describes_a_driver_is_plain_and_equal_for_equal_ones",
)
class Fault3(StubDriver):
    def fingerprint(self) -> dict[str, Any]:
        return {"model": id(self)}


@fault(WITHOUT_TORCH, "max_batches is ignored", seen_by="no_more_batches_are_used_than_was_said")
class Fault4(StubDriver):
    def set_dataloader(self, dataloader: Any, max_batches: int = -1) -> None:
        super().set_dataloader(dataloader)


@fault(WITHOUT_TORCH, "the length is one too many", seen_by="the_number_of_batches_is_what_was_said")
class Fault5(StubDriver):
    def length(self) -> int | None:
        return len(self._batches) + 1


@fault(WITHOUT_TORCH, "an epoch is always read from its beginning", seen_by="an_epoch_is_entered_behind_any_batch")
class Fault6(StubDriver):
    def open_epoch(self, epoch: int, done: int, samples: int | None = None) -> int | None:
        return super().open_epoch(epoch, 0, 0)


@fault(WITHOUT_TORCH, "an epoch begins again after its end", seen_by="an_epoch_stays_at_its_end")
class Fault7(StubDriver):
    def next_batch(self) -> Any:
        batch = super().next_batch()
        if batch is NO_BATCH:
            self._position = 0
        return batch


@fault(WITHOUT_TORCH, "ids are off by one", seen_by="ids_and_samples_are_those_of_the_batch")
class Fault8(StubDriver):
    def next_batch(self) -> Any:
        batch = super().next_batch()
        self.batch_ids = [self._position]
        return batch


@fault(WITHOUT_TORCH, "ids are those of the batch before", seen_by="ids_and_samples_are_those_of_the_batch")
class Fault9(StubDriver):
    def next_batch(self) -> Any:
        before = self.batch_ids
        batch = super().next_batch()
        self.batch_ids = before
        return batch


@fault(WITHOUT_TORCH, "the digest of ids is always the same", seen_by="the_digest_of_ids_is_theirs")
class Fault10(StubDriver):
    def ids_digest(self) -> int:
        return 1


@fault(WITHOUT_TORCH, "the input mapping is ignored", seen_by="the_input_mapping_is_given_each_batch_once")
class Fault11(StubDriver):
    def next_batch(self) -> Any:
        mapping, self.input_mapping = self.input_mapping, None
        batch = super().next_batch()
        self.input_mapping = mapping
        return batch


@fault(WITHOUT_TORCH, "closed, it has lost its loader", seen_by="it_can_be_set_up_again_after_it_was_closed")
class Fault12(StubDriver):
    def close(self) -> None:
        self._batches = []


# -- training ------------------------------------------------------------------------------------------------


@fault(WITHOUT_TORCH, "the divisor is ignored", seen_by="gradients_differ_where_they_should")
class Fault13(StubDriver):
    def backward(self, loss: Any, divisor: int) -> None:
        super().backward(loss, 1)


@fault(WITHOUT_TORCH, "gradients aren't added up", seen_by="gradients_differ_where_they_should")
class Fault14(StubDriver):
    def backward(self, loss: Any, divisor: int) -> None:
        self.gradient = 0
        super().backward(loss, divisor)


@fault(WITHOUT_TORCH, "gradients aren't scaled", seen_by="gradients_are_added_and_divided_as_was_said")
class Fault15(StubDriver):
    def scale_gradients(self, factor: float) -> None:
        pass


@fault(WITHOUT_TORCH, "gradients aren't cleared", seen_by="gradients_are_added_and_divided_as_was_said")
class Fault16(StubDriver):
    def zero_grad(self) -> None:
        pass


@fault(
    WITHOUT_TORCH, "gradients made under no_sync are lost", seen_by="gradients_that_were_kept_back_are_exchanged_later"
)
class Fault17(StubDriver):
    @contextmanager
    def no_sync(self) -> Iterator[None]:
        before = self.gradient
        yield
        self.gradient = before


@fault(
    WITHOUT_TORCH, "a taken update counts as skipped", seen_by="an_update_moves_the_weights_if_and_only_if_it_is_taken"
)
class Fault18(StubDriver):
    def optimizer_step(self) -> bool:
        super().optimizer_step()
        return False


@fault(WITHOUT_TORCH, "no update moves the weight", seen_by="an_update_moves_the_weights_if_and_only_if_it_is_taken")
class Fault19(StubDriver):
    def optimizer_step(self) -> bool:
        before = self.weight
        taken = super().optimizer_step()
        self.weight = before
        return taken


@fault(WITHOUT_TORCH, "an update that is left out is taken", seen_by="an_update_that_is_left_out_leaves_no_trace")
class Fault20(StubDriver):
    def leave_out_step(self) -> None:
        super().optimizer_step()


@fault(WITHOUT_TORCH, "a loss is handed out twice", seen_by="every_loss_is_handed_out_once")
class Fault21(StubDriver):
    def measure(self, loss: Any, seq: int) -> tuple[float | None, Sequence[Any]]:
        return None if loss is None else float(loss), () if loss is None else [seq, float(loss)]


@fault(WITHOUT_TORCH, "every other loss is lost", seen_by="every_loss_is_handed_out_once")
class Fault22(StubDriver):
    def measure(self, loss: Any, seq: int) -> tuple[float | None, Sequence[Any]]:
        return None if loss is None or seq % 2 else float(loss), ()


@fault(WITHOUT_TORCH, "learning rates are whole numbers", seen_by="learning_rates_are_floats")
class Fault23(StubDriver):
    def learning_rates(self) -> list[float]:
        return [1]


@fault(WITHOUT_TORCH, "every loss is finite", seen_by="a_loss_that_is_not_finite_is_seen")
class Fault24(StubDriver):
    def is_finite(self, loss: Any) -> bool:
        return True


@fault(WITHOUT_TORCH, "the seed is ignored", seen_by="seeded_alike_it_draws_alike")
class Fault25(StubDriver):
    def seed_generators(self, seed: int) -> None:
        super().seed_generators(1)


@fault(WITHOUT_TORCH, "the digest of generators stands still", seen_by="the_digest_of_generators_moves_with_draws")
class Fault26(StubDriver):
    def rng_digest(self) -> int:
        return 1


# -- evaluation ----------------------------------------------------------------------------------------------


@fault(
    WITHOUT_TORCH,
    "draws of an evaluation move training",
    seen_by="draws_in_a_fork_leave_no_trace_whatever_is_raised_in_it",
)
class Fault27(StubDriver):
    def forked(self) -> AbstractContextManager[Any]:
        return nullcontext()


@fault(WITHOUT_TORCH, "the model isn't put in evaluation mode", seen_by="the_model_is_in_evaluation_mode")
class Fault28(StubDriver):
    def evaluating(self, model: Any, eval_mode: bool = True) -> AbstractContextManager[Any]:
        return super().evaluating(model, False)


@fault(WITHOUT_TORCH, "the model stays in evaluation mode", seen_by="an_evaluation_leaves_no_trace_in_training")
class Fault29(StubDriver):
    @contextmanager
    def evaluating(self, model: Any, eval_mode: bool = True) -> Iterator[None]:
        self.training = not eval_mode
        yield


@fault(
    WITHOUT_TORCH,
    "an error leaves the model in evaluation mode",
    seen_by="an_evaluation_that_an_error_ends_leaves_no_trace",
)
class Fault30(StubDriver):
    @contextmanager
    def evaluating(self, model: Any, eval_mode: bool = True) -> Iterator[None]:
        before, self.training = self.training, not eval_mode
        yield
        self.training = before


@fault(
    WITHOUT_TORCH,
    "an evaluation takes the ids of the batch in hand",
    seen_by="an_evaluation_with_a_batch_in_hand_leaves_no_trace",
)
class Fault31(StubDriver):
    def evaluation_batches(self, dataloader: Any) -> Any:
        for number, batch in enumerate(dataloader):
            self.batch_ids = [number]
            yield batch


@fault(
    WITHOUT_TORCH,
    "an evaluation goes on where the one before was closed",
    seen_by="outputs_do_not_depend_on_when_they_are_made",
)
class Fault32(StubDriver):
    def evaluation_batches(self, dataloader: Any) -> Any:
        held = self.__dict__.setdefault("_iterators", {})
        iterator = held.setdefault(id(dataloader), iter(dataloader))
        yield from iterator
        del held[id(dataloader)]


@fault(WITHOUT_TORCH, "an evaluation uses the first weight", seen_by="outputs_depend_on_the_weights")
class Fault33(StubDriver):
    def evaluate_fn(self, model: Any, mode: str) -> Callable[[Any], Any]:
        return lambda batch: {"value": batch, "weight": 1 + (self.draw() if self.training else 0)}


# -- snapshots -----------------------------------------------------------------------------------------------


@fault(WITHOUT_TORCH, "a capture is no copy", seen_by="a_capture_is_a_copy")
class Fault34(StubDriver):
    def capture(self, extra: Mapping[str, Any], batch: Any = NO_BATCH) -> Any:
        return lambda: super(type(self), self).capture(extra, batch)

    def size_of(self, capture: Any) -> int:
        return 0

    def save(self, capture: Any, directory: Path) -> dict[str, tuple[int, str]]:
        return super().save(capture(), directory)


@fault(WITHOUT_TORCH, "a capture moves training", seen_by="a_capture_is_a_copy")
class Fault35(StubDriver):
    def capture(self, extra: Mapping[str, Any], batch: Any = NO_BATCH) -> Any:
        held = super().capture(extra, batch)
        self.draw()
        return held


@fault(WITHOUT_TORCH, "a file isn't told of", seen_by="the_files_are_as_save_says")
class Fault36(StubDriver):
    def save(self, capture: Any, directory: Path) -> dict[str, tuple[int, str]]:
        write_bytes(b"", directory / "more")
        return super().save(capture, directory)


@fault(WITHOUT_TORCH, "the digest of a file is another one", seen_by="the_files_are_as_save_says")
class Fault37(StubDriver):
    def save(self, capture: Any, directory: Path) -> dict[str, tuple[int, str]]:
        return {name: (size, digest[::-1]) for name, (size, digest) in super().save(capture, directory).items()}


@fault(
    WITHOUT_TORCH,
    "a folder without a snapshot is read as an empty one",
    seen_by="what_does_not_fit_is_refused_and_changes_nothing",
)
class Fault38(StubDriver):
    def read(self, directory: Path, *, strict: bool = True) -> tuple[dict[str, Any], Any]:
        if (directory / "rank-0.json").is_file():
            return super().read(directory, strict=strict)
        return {}, {}


@fault(WITHOUT_TORCH, "reading restores", seen_by="reading_changes_nothing")
class Fault39(StubDriver):
    def read(self, directory: Path, *, strict: bool = True) -> tuple[dict[str, Any], Any]:
        extra, held = super().read(directory, strict=strict)
        self.restore(held)
        return extra, held


@fault(
    WITHOUT_TORCH,
    "the gradients of an open window are lost",
    seen_by="a_run_goes_on_from_a_snapshot_with_the_same_bits",
)
class Fault40(StubDriver):
    def restore(self, held: Any, *, training: bool = True) -> Any:
        return super().restore({**held, "gradient": 0}, training=training)


@fault(WITHOUT_TORCH, "generators are lost", seen_by="a_run_goes_on_from_a_snapshot_with_the_same_bits")
class Fault41(StubDriver):
    def restore_generators(self) -> str:
        return ""


@fault(WITHOUT_TORCH, "generators are restored first", seen_by="the_generators_are_restored_last")
class Fault42(StubDriver):
    def restore(self, held: Any, *, training: bool = True) -> Any:
        batch = super().restore(held, training=training)
        super().restore_generators()
        return batch

    def restore_generators(self) -> str:
        return ""


@fault(WITHOUT_TORCH, "the number of updates is lost", seen_by="a_run_goes_on_from_a_snapshot_with_the_same_bits")
class Fault43(StubDriver):
    def restore(self, held: Any, *, training: bool = True) -> Any:
        return super().restore({**held, "updates": 0}, training=training)


@fault(WITHOUT_TORCH, "the ids of the batch in hand are lost", seen_by="a_capture_is_a_copy")
class Fault44(StubDriver):
    def restore(self, held: Any, *, training: bool = True) -> Any:
        return super().restore({**held, "batch_ids": None}, training=training)


@fault(
    WITHOUT_TORCH,
    "restored without the training, it goes on with it",
    seen_by="the_model_may_be_restored_without_the_training",
)
class Fault45(StubDriver):
    def restore(self, held: Any, *, training: bool = True) -> Any:
        return super().restore(held)


# -- the rest ------------------------------------------------------------------------------------------------


@fault(
    WITHOUT_TORCH,
    "what is gathered is no list of all ranks",
    seen_by="what_every_rank_holds_is_gathered_in_their_order",
)
class Fault46(StubDriver):
    def all_gather(self, value: Any) -> list[Any]:
        return value  # type: ignore[no-any-return]


@fault(WITHOUT_TORCH, "any weights are the model's", seen_by="weights_are_copied_and_put_back")
class Fault47(StubDriver):
    def has_weights(self, held: Any) -> bool:
        return True


@fault(WITHOUT_TORCH, "a trial leaves its weight", seen_by="a_trial_leaves_no_trace")
class Fault48(StubDriver):
    @contextmanager
    def untouched(self) -> Iterator[None]:
        with super().untouched():
            yield
            weight = self.weight
        self.weight = weight


# -- with torch ----------------------------------------------------------------------------------------------


@fault(WITH_TORCH, "a capture holds the tensors themselves", seen_by="a_capture_is_a_copy")
class Fault49(TorchDriver):
    def capture(self, extra: Mapping[str, Any], batch: Any = NO_BATCH) -> dict[str, Any]:
        return {**super().capture(extra, batch), "model": self.model.state_dict()}


@fault(WITH_TORCH, "the optimizers' states are lost", seen_by="a_snapshot_of_a_run_that_went_on_is_as_good")
class Fault50(TorchDriver):
    def restore(self, held: Any, *, training: bool = True) -> Any:
        batch = super().restore(held, training=training)
        for optimizer in self.optimizers:
            optimizer.state.clear()
        return batch


@fault(
    WITH_TORCH, "the second optimizer takes no step", seen_by="an_update_moves_the_weights_if_and_only_if_it_is_taken"
)
class Fault51(TorchDriver):
    def optimizer_step(self) -> bool:
        self.optimizers[0].step()
        return False


@fault(WITH_TORCH, "an evaluation moves running means", seen_by="a_model_may_be_left_in_its_own_mode")
class Fault52(TorchDriver):
    @contextmanager
    def evaluating(self, model: Any, eval_mode: bool = True) -> Iterator[None]:
        yield


@fault(WITH_TORCH, "the modes of some modules are lost", seen_by="an_evaluation_leaves_no_trace_in_training")
class Fault53(TorchDriver):
    @contextmanager
    def evaluating(self, model: Any, eval_mode: bool = True) -> Iterator[None]:
        with undisturbed(model, eval_mode):
            yield
        model.body.eval()


@fault(
    IN_HALF_PRECISION,
    "a skipped update counts as taken",
    seen_by="an_update_moves_the_weights_if_and_only_if_it_is_taken",
)
class Fault54(TorchDriver):
    def optimizer_step(self) -> bool:
        super().optimizer_step()
        return True


@fault(
    IN_HALF_PRECISION, "an update that is left out stays unscaled", seen_by="an_update_that_is_left_out_leaves_no_trace"
)
class Fault55(TorchDriver):
    def leave_out_step(self) -> None:
        pass


@fault(IN_HALF_PRECISION, "the scale is lost", seen_by="a_run_goes_on_from_a_snapshot_with_the_same_bits")
class Fault56(TorchDriver):
    def restore(self, held: Any, *, training: bool = True) -> Any:
        scaler, self._scaler = self._scaler, None
        try:
            return super().restore(held, training=training)
        finally:
            self._scaler = scaler


@fault(MEASURING_LATE, "losses on their way are lost", seen_by="a_snapshot_of_a_run_that_went_on_is_as_good")
class Fault57(TorchDriver):
    def restore(self, held: Any, *, training: bool = True) -> Any:
        batch = super().restore(held, training=training)
        assert self._losses is not None
        self._losses.rest()
        return batch


@fault(MEASURING_LATE, "losses are handed out under another number", seen_by="every_loss_is_handed_out_once")
class Fault58(TorchDriver):
    def measure(self, loss: Any, seq: int) -> tuple[float | None, Sequence[Any]]:
        return super().measure(loss, seq + 1)


# -- fingerprints --------------------------------------------------------------------------------------------


@fault(WITHOUT_TORCH, "a fingerprint isn't of the weights", seen_by="fingerprints_tell_apart_what_an_update_moves")
class Fault59(StubDriver):
    def fingerprints(self, parts: Sequence[str] = PARTS) -> dict[str, str | None]:
        return {**super().fingerprints(parts), **({"parameters": "0" * 16} if "parameters" in parts else {})}


@fault(WITHOUT_TORCH, "a fingerprint is of the moment", seen_by="fingerprints_are_equal_for_equal_states")
class Fault60(StubDriver):
    def fingerprint_of(self, value: Any) -> str:
        return super().fingerprint_of((value, id(self)))


@fault(WITHOUT_TORCH, "taking a fingerprint draws", seen_by="fingerprints_leave_no_trace")
class Fault61(StubDriver):
    def fingerprint_of(self, value: Any) -> str:
        self.draw()
        return super().fingerprint_of(value)


@fault(WITHOUT_TORCH, "all batches are one", seen_by="a_batch_is_known_by_its_fingerprint")
class Fault62(StubDriver):
    def fingerprint_of(self, value: Any) -> str:
        return super().fingerprint_of(None)


@fault(WITH_TORCH, "gradients aren't looked at", seen_by="a_fingerprint_of_gradients_follows_the_gradients")
class Fault63(TorchDriver):
    def fingerprints(self, parts: Sequence[str] = PARTS) -> dict[str, str | None]:
        return super().fingerprints([part for part in parts if part != "gradients"])


@fault(WITH_TORCH, "the moments of optimizers aren't looked at", seen_by="fingerprints_tell_apart_what_an_update_moves")
class Fault64(TorchDriver):
    def fingerprints(self, parts: Sequence[str] = PARTS) -> dict[str, str | None]:
        found = super().fingerprints(parts)
        groups = [{**group, "params": None} for optimizer in self.optimizers for group in optimizer.param_groups]
        return {**found, "optimizers": self.fingerprint_of(groups)} if "optimizers" in parts else found


@fault(
    WITHOUT_TORCH,
    "a snapshot's fingerprints are those of another",
    seen_by="a_snapshot_may_hold_fingerprints_of_what_is_in_it",
)
class Fault65(StubDriver):
    def save(self, capture: Any, directory: Path) -> dict[str, tuple[int, str]]:
        files = super().save(capture, directory)
        told = {part: {"all": "0" * 16} for part in ("model", "optimizers", "gradients", "generators")}
        (directory / "fingerprints.json").unlink()
        return {**files, "fingerprints.json": write_bytes(json.dumps(told).encode(), directory / "fingerprints.json")}


@fault(WITH_TORCH, "buffers don't come back", seen_by="fingerprints_come_back_with_a_snapshot")
class Fault66(TorchDriver):
    def restore(self, held: Any, *, training: bool = True) -> Any:
        batch = super().restore(held, training=training)
        for buffer in self.model.buffers():
            buffer.zero_()
        return batch

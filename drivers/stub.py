"""A scripted driver without torch, for tests of engines, callbacks and journals that run in milliseconds.

It behaves as a real driver does, in whole numbers: its one weight depends on every batch, on the order of the
updates and on its generator, so that a batch lost, doubled or drawn twice ends with another weight. Gradients are added
up, divided and scaled exactly, modulo a prime. Use it to test your own callbacks and states:
`Trainer(None, StubDriver(), [1, 2, 3], None, n_epochs=2)`.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

from tachograph.states.errors import CallerError

from .averages import Averages
from .driver import NO_BATCH, Driver
from .errors import RestoreFault
from .extras import PARTS, fingerprints_file
from .hashing import write_bytes

_PRIME = (1 << 31) - 1


class StubDriver(Driver):
    """Trains one whole number on a list of batches.

    Args:
        loss: `loss(batch, n)` for the n-th training batch, from 0; None makes one of the weight and the batch.
        known_length: False makes the loader one that doesn't know its length.
        skip: numbers of the optimizer steps, from 0, that are skipped as a gradient scaler would skip them.
        on: name of a method -> a function called with the driver before it runs; raise there to script an error.

    Attributes:
        weight: the trained number.
        calls: names of the methods called, in order.
        seen: the batches trained on, in order.
    """

    def __init__(
        self,
        loss: Callable[[Any, int], float] | None = None,
        *,
        known_length: bool = True,
        skip: Sequence[int] = (),
        on: Mapping[str, Callable[[StubDriver], None]] | None = None,
    ) -> None:
        self.model = self
        self.weight, self.gradient, self.generator = 1, 0, 1
        self.calls: list[str] = []
        self.seen: list[Any] = []
        self.training = True
        self._loss = loss
        self._known = known_length
        self._skip = frozenset(skip)
        self._on = dict(on or {})
        self._steps = self._updates = 0
        self._position = 0
        self._passed_over = ""
        self._batches: Sequence[Any] = ()
        self._overfit = 0
        self._to_restore: int | None = None

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if name in self._on:
            self._on[name](self)

    def set_optimizers(self, optimizers: Any) -> None:
        if optimizers is not None and not isinstance(optimizers, Sequence):
            raise CallerError(f"the stub's optimizers must be a sequence or None, not {type(optimizers).__name__}")
        self.optimizers = list(optimizers or ())

    def set_dataloader(self, dataloader: Any, max_batches: int = -1) -> None:
        if not isinstance(dataloader, Sequence) or not dataloader:
            raise CallerError("the stub's train_dataloader must be a sequence with at least one batch")
        self._batches = dataloader if max_batches < 0 else dataloader[:max_batches]
        if self._overfit > 0:
            self._batches = self._batches[: self._overfit]

    def overfit(self, batches: int) -> None:
        self._overfit = batches
        self._batches = self._batches[:batches] if batches > 0 else self._batches

    def kept_batches(self, seed: int) -> Iterator[Any]:
        return iter(self._batches)

    def setup(self, seed: int, whole_digest: bool) -> None:
        self._called("setup")

    def initial_seed(self) -> int:
        return 0

    def seed_generators(self, seed: int) -> None:
        self.generator = seed % _PRIME or 1

    def draw(self) -> int:
        """Draw from the stub's generator."""
        self.generator = self.generator * 48271 % _PRIME
        return self.generator

    def length(self) -> int | None:
        return len(self._batches) if self._known else None

    def open_epoch(self, epoch: int, done: int, samples: int | None = None) -> int | None:
        self._called("open_epoch")
        self._position = done
        return max(len(self._batches), done) if self._known else None

    def next_batch(self) -> Any:
        ended = self._position >= len(self._batches)
        self.batch_ids, self.batch_samples = None if ended else [self._position], 1
        self._called("next_batch")
        if ended:
            return NO_BATCH
        batch = self._batches[self._position]
        self._position += 1
        return batch if self.input_mapping is None else self.input_mapping(batch)

    def train_step(self, batch: Any) -> Any:
        self._called("train_step")
        self.seen.append(batch)
        number = batch if isinstance(batch, int) else len(repr(batch))
        noise = self.draw() if self.training else 0  # as dropout draws
        loss = self._loss(batch, self._steps) if self._loss else float((self.weight + number + noise) % 1000)
        self._steps += 1
        return {"loss": loss}

    def backward(self, loss: Any, divisor: int) -> None:
        self._called("backward")
        number = int(loss * 1000) if loss - loss == 0 else 7  # NaN and infinities count as any other number
        self.gradient = (self.gradient + number * pow(divisor, -1, _PRIME)) % _PRIME

    def scale_gradients(self, factor: float) -> None:
        self._called("scale_gradients")
        exact = Fraction(factor).limit_denominator(_PRIME - 1)  # the quotient that the factor was made of
        self.gradient = self.gradient * exact.numerator * pow(exact.denominator, -1, _PRIME) % _PRIME

    def optimizer_step(self) -> bool:
        self._called("optimizer_step")
        self._updates += 1
        if self._updates - 1 in self._skip:
            return False
        self.weight = (self.weight * 131 + self.gradient) % _PRIME
        return True

    def gradient_norm(self, norm_type: float = 2.0) -> float:
        return float(self.gradient)

    def clip_gradients_by_norm(
        self, most: float, parameters: Any = None, *, norm_type: float = 2.0, error_if_nonfinite: bool = False
    ) -> float:
        norm = self.gradient_norm()
        self.clip_gradients_by_value(most)
        return norm

    def clip_gradients_by_value(self, most: float, parameters: Any = None) -> None:
        self._called("clip_gradients")
        self.gradient = min(self.gradient, int(most))

    def averages(self, *, buffers: bool = False) -> Averages:
        return _StubAverages(self)

    def zero_grad(self) -> None:
        self._called("zero_grad")
        self.gradient = 0

    def train_mode(self) -> None:
        self.training = True

    def measure(self, loss: Any, seq: int) -> tuple[float | None, Sequence[Any]]:
        return None if loss is None else float(loss), ()

    def learning_rates(self) -> list[float]:
        return [0.1]

    def fingerprints(self, parts: Sequence[str] = PARTS) -> dict[str, str | None]:
        """Tell of the weight as the parameters, and of the number of updates as what an optimizer would keep."""
        held = {
            "gradients": self.gradient,
            "parameters": self.weight,
            "buffers": [],
            "optimizers": self._updates,
            "scaler": None,
        }
        return {part: None if held[part] is None else self.fingerprint_of(held[part]) for part in parts}

    def fingerprint_of(self, value: Any) -> str:
        return hashlib.blake2b(repr(value).encode(), digest_size=8).hexdigest()

    @contextmanager
    def untouched(self) -> Iterator[None]:
        held, ids, samples = json.loads(self.capture({})), self.batch_ids, self.batch_samples
        try:
            yield
        finally:
            self.restore(held)
            self.restore_generators()
            self.batch_ids, self.batch_samples = ids, samples

    def trial_batches(self, dataloader: Any, seed: int, size: int | None = None) -> Iterator[Any]:
        """Yield the batches over and over; one of a size of its own is that number."""
        return itertools.cycle(dataloader) if size is None else itertools.repeat(size)

    def ids_digest(self) -> int:
        return zlib.crc32(repr(self.batch_ids).encode())

    def rng_digest(self) -> int:
        return self.generator

    def save_model(self, target: Any) -> None:
        raw = json.dumps({"weight": self.weight}).encode()
        if hasattr(target, "write"):
            target.write(raw)
            return
        path = Path(target)
        temporary = path.with_name(f".{path.name}.writing")
        temporary.unlink(missing_ok=True)
        write_bytes(raw, temporary)
        temporary.replace(path)

    def load_model(self, source: Any) -> None:
        raw = source.read() if hasattr(source, "read") else Path(source).read_bytes()
        try:
            self.weight = json.loads(raw)["weight"]
        except (ValueError, LookupError, TypeError) as error:
            raise RestoreFault(f"{source} isn't what a stub's save_model wrote") from error

    def weights(self) -> Any:
        return self.weight

    def put_weights(self, held: Any) -> None:
        self.weight = held

    def has_weights(self, held: Any) -> bool:
        return bool(self.weight == held)

    @contextmanager
    def forked(self) -> Iterator[None]:
        before = self.generator
        try:
            yield
        finally:
            self.generator = before

    @contextmanager
    def evaluating(self, model: Any, eval_mode: bool = True) -> Iterator[None]:
        before, self.training = self.training, not eval_mode and self.training
        try:
            yield
        finally:
            self.training = before

    def evaluate_fn(self, model: Any, mode: str) -> Callable[[Any], Any]:
        def evaluate(batch: Any) -> Any:
            self._called("evaluate_step")
            noise = self.draw() if self.training else 0
            return {"value": batch, "weight": self.weight + noise}

        return evaluate

    def capture(self, extra: Mapping[str, Any], batch: Any = NO_BATCH) -> Any:
        held = {
            "extra": dict(extra),
            "weight": self.weight,
            "gradient": self.gradient,
            "generator": self.generator,
            "steps": self._steps,
            "updates": self._updates,
            "batch": [] if batch is NO_BATCH else [batch],
            "batch_ids": self.batch_ids,
        }
        return json.dumps(held).encode()

    def save(self, capture: Any, directory: Path) -> dict[str, tuple[int, str]]:
        told = json.dumps(_fingerprints(json.loads(capture))).encode()
        name = fingerprints_file()
        files = {"rank-0.json": write_bytes(capture, directory / "rank-0.json")}
        return {**files, name: write_bytes(told, directory / name)}

    def size_of(self, capture: Any) -> int:
        return len(capture)

    def read(self, directory: Path, *, strict: bool = True) -> tuple[dict[str, Any], Any]:
        if not (directory / "rank-0.json").is_file():
            raise RestoreFault(f"{directory} has no rank-0.json: another driver took it")
        held = json.loads((directory / "rank-0.json").read_bytes())
        needed = ("weight", "gradient", "generator", "steps", "updates", "batch", "extra")
        missing = [name for name in needed if name not in held and (strict or name != "generator")]
        if missing:
            raise RestoreFault(f"the snapshot lacks the entry '{missing[0]}'")
        return held["extra"], held

    def restore(self, held: Any, *, training: bool = True) -> Any:
        self.weight = held["weight"]
        if not training:
            return NO_BATCH
        self.gradient, self._to_restore = held["gradient"], held.get("generator")
        self._passed_over = "" if "generator" in held else "the state of the generator is missing"
        self._steps, self._updates = held["steps"], held["updates"]
        self.batch_ids, self.batch_samples = held["batch_ids"], 1
        return held["batch"][0] if held["batch"] else NO_BATCH

    def restore_generators(self) -> str:
        self.generator, self._to_restore = self._to_restore or self.generator, None
        return self._passed_over


def _fingerprints(held: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a snapshot of a real driver tells of each thing in it."""

    def of(value: Any) -> str:
        return hashlib.blake2b(repr(value).encode(), digest_size=8).hexdigest()

    callbacks = held["extra"].get("listeners", {}).get("callbacks", {})
    return {
        "format": 1,
        "model": {"weight": of(held["weight"])},
        "optimizers": {"0.updates": of(held["updates"])},
        "gradients": {"weight": of(held["gradient"])},
        "generators": {"stub": of(held["generator"])},
        "loader": of(held["batch_ids"]),
        "scaler": None,
        "listeners": {name: of(state) for name, state in callbacks.items()},
        "user": of(held["extra"].get("user")),
    }


class _StubAverages(Averages):
    """The average of a stub's weight."""

    def __init__(self, driver: StubDriver) -> None:
        self._driver = driver
        self._average: float | None = None
        self._depth = 0
        self._left: int | None = None

    def add(self, decay: float | None) -> None:
        weight, before = self._driver.weight, self._average
        self._average = float(weight) if decay is None or before is None else before * decay + weight * (1 - decay)

    def state(self) -> dict[str, Any]:
        return {} if self._average is None else {"weight": self._average}

    def load(self, state: Mapping[str, Any]) -> None:
        self._average = state.get("weight")

    def fault(self, state: Mapping[str, Any]) -> str:
        return "" if not state or set(state) == {"weight"} else f"it holds {', '.join(state)}, not weight"

    @contextmanager
    def applied(self) -> Iterator[None]:
        driver, before = self._driver, self._driver.weight
        if self._average is not None and not self._depth:
            driver.weight = int(self._average)
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            driver.weight = before

    @property
    def are_applied(self) -> bool:
        return self._depth > 0

    def leave(self) -> None:
        self._left = self._driver.weight

    def take_up(self) -> None:
        self._left = None

    @property
    def are_in_place(self) -> bool:
        return self._left in (None, self._driver.weight)

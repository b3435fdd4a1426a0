"""What a trainer promises by its ids and other files of tests don't show: its construction, its moments, its state."""

from __future__ import annotations

import dataclasses
import inspect
import io
import random
import signal
import warnings
import weakref
from collections.abc import Callable, Iterator
from importlib import import_module, resources
from pathlib import Path
from typing import Any

import mypy.api
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from tachograph.drivers import RestoreFault, StubDriver
from tachograph.drivers.single import TorchDriver
from tachograph.engine import Callback, Events, Trainer, marked
from tachograph.engine.snapshots import SnapshotFault
from tachograph.states import Stepped
from tachograph.states.errors import CallerError
from tests.toys import Indexed, Regression, Run, Sum, equal, scribe, stub


@pytest.fixture(autouse=True)
def no_marks() -> Iterator[None]:
    marked._marked.clear()
    yield
    marked._marked.clear()


# -- construction ------------------------------------------------------------------------------------------


def test_a_trainer_is_built_in_one_order_and_tells_it_when_all_is_there() -> None:
    """T22, E1, S4: driver, optimizers, loader; then marked functions hear of it, then callbacks."""
    log: list[Any] = []

    class Told(StubDriver):
        def set_optimizers(self, optimizers: Any) -> None:
            log.append("optimizers")
            super().set_optimizers(optimizers)

        def set_dataloader(self, dataloader: Any, max_batches: int = -1) -> None:
            log.append("loader")
            super().set_dataloader(dataloader, max_batches)

    class Built(Callback):
        def on_after_trainer_initialized(self, trainer: Any, driver: Any) -> None:
            assert trainer.driver is driver
            assert (driver.optimizers, trainer.train_dataloader, trainer.n_epochs) == (["adam"], [1, 2], 2)
            assert trainer.trainer_state.state == "init"
            assert trainer.evaluator is not None
            assert trainer.state == {}
            trainer.add_callback_fn(Events.on_train_begin, lambda trainer: log.append("begin"))
            log.append("callback")

    @Trainer.on(Events.on_after_trainer_initialized)
    def marked_function(trainer: Any, driver: Any) -> None:
        log.append("marked function")

    trainer = stub_with(Told(), callbacks=Built())
    assert log == ["optimizers", "loader", "marked function", "callback"]
    trainer.run()
    assert log[-1] == "begin"


def stub_with(driver: StubDriver, **settings: Any) -> Trainer:
    settings = {"n_epochs": 2, "run_dir": None, "progress_bar": None, **settings}
    return Trainer(None, driver, [1, 2], ["adam"], metrics={"m": Sum()}, validate_dataloaders=[1], **settings)


def test_one_loader_or_several_by_name_are_validated_on() -> None:
    """T7, T12."""
    for loaders, keys in (([1, 2], {"sum#m", "n#m"}), ({"a": [1], "b": [2]}, {"sum#m#a", "n#m#a", "sum#m#b", "n#m#b"})):
        assert set(stub(metrics={"m": Sum()}, validate_dataloaders=loaders).run().results) == keys


@pytest.mark.parametrize("callbacks", [None, Callback(), [Callback()], (Callback(), Callback())])
def test_callbacks_are_none_one_or_a_sequence(callbacks: Any) -> None:
    """T11."""
    given = [] if callbacks is None else [callbacks] if isinstance(callbacks, Callback) else list(callbacks)
    assert list(stub(callbacks=callbacks).listeners.callbacks.values()) == given


def test_the_scaler_s_settings_reach_it() -> None:
    """T21, T17: and of a switch that is given in two places, the nested one counts."""
    model = Regression()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    nested = {"gradscaler_kwargs": {"init_scale": 8.0}, "set_grad_to_none": False, "non_blocking": False}
    trainer = Trainer(
        model,
        "torch",
        DataLoader(Indexed(2)),
        optimizer,
        n_epochs=1,
        fp16=True,
        torch_kwargs=nested,
        run_dir=None,
        progress_bar=None,
    )
    assert trainer.driver._scaler.get_scale() == 8.0  # type: ignore[union-attr]
    trainer.run()
    assert all(p.grad is not None for p in model.parameters())


class Alike:
    """What a driver that is given ready-made is told beside: it would be ignored."""

    SETTINGS = [
        {"precision": "bf16"},
        {"fp16": True},
        {"train_fn": "forward"},
        {"set_grad_to_none": False},
        {"torch_kwargs": {"non_blocking": False}},
        {"model_wo_auto_param_call": True},
    ]


@pytest.mark.parametrize("setting", Alike.SETTINGS, ids=lambda setting: next(iter(setting)))
def test_what_is_the_driver_s_is_refused_beside_a_driver(setting: dict[str, Any]) -> None:
    """T2, T17, T21: training in fp32 where fp16 was asked for isn't what anybody means."""
    model = Regression()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(CallerError, match=next(iter(setting))):
        Trainer(model, TorchDriver(model), DataLoader(Indexed(2)), optimizer, run_dir=None, **setting)


@pytest.mark.parametrize(
    "nested",
    [{"set_grad_to_nun": True}, {"gradscaler_kwargs": {"init_scal": 2.0}}, 3, [1]],
)
def test_a_setting_of_torch_that_does_not_exist_is_refused(nested: Any) -> None:
    """T21."""
    model = Regression()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(CallerError, match="torch_kwargs"):
        Trainer(model, "torch", DataLoader(Indexed(2)), optimizer, run_dir=None, precision="fp16", torch_kwargs=nested)


@pytest.mark.parametrize(
    ("name", "fn", "said"),
    [
        ("input_mapping", lambda: 1, "input_mapping must take (data), which "),
        ("output_mapping", lambda a, b: 1, "output_mapping must take (data), which "),
        ("evaluate_input_mapping", lambda *, data: 1, "input_mapping must take (data), which "),
    ],
)
def test_a_mapping_that_cannot_be_called_with_the_data_is_refused_when_the_trainer_is_built(
    name: str, fn: Any, said: str
) -> None:
    """T14."""
    with pytest.raises(CallerError) as caught:
        stub(**{"metrics": {"m": Sum()}, "validate_dataloaders": [1], name: fn})
    assert str(caught.value).startswith(said)


def test_a_renaming_that_makes_one_name_of_two_is_refused_and_a_swap_is_not() -> None:
    """T14: one of the values would be lost, whichever came first."""
    from tachograph.drivers.matching import mapping_fn

    rename = mapping_fn({"a": "x"}, "input_mapping")
    assert rename is not None
    assert rename({"a": 1, "y": 2}) == {"x": 1, "y": 2}
    with pytest.raises(CallerError, match="input_mapping makes two values of one name: 'a' and 'x' are both 'x'"):
        rename({"a": 1, "x": 2})
    swap = mapping_fn({"a": "b", "b": "a"}, "input_mapping")
    assert swap is not None
    assert swap({"a": 1, "b": 2}) == {"b": 1, "a": 2}


async def awaited(trainer: Any, batch: Any) -> None: ...


def generated(trainer: Any, batch: Any) -> Iterator[None]:
    yield


@pytest.mark.parametrize("fn", [awaited, generated])
def test_a_step_whose_call_would_do_nothing_is_refused(fn: Any) -> None:
    """T8, T9."""
    with pytest.raises(CallerError, match=r"batch_step_fn must be a function of \(trainer, batch\), not <function"):
        stub(batch_step_fn=fn)
    with pytest.raises(CallerError, match="validate_batch_step_fn must be a function of"):
        stub(validate_batch_step_fn=fn, metrics={"m": Sum()}, validate_dataloaders=[1])


# -- moments -----------------------------------------------------------------------------------------------

PAIRS = {
    "on_sanity_check_begin": "on_sanity_check_end",
    "on_train_begin": "on_train_end",
    "on_train_epoch_begin": "on_train_epoch_end",
    "on_fetch_data_begin": "on_fetch_data_end",
    "on_train_batch_begin": "on_train_batch_end",
    "on_before_backward": "on_after_backward",
    "on_before_optimizer_step": "on_after_optimizer_step",
    "on_before_zero_grad": "on_after_zero_grad",
    "on_validate_begin": "on_validate_end",
    "on_validate_batch_begin": "on_validate_batch_end",
}


def unpaired(log: list[str]) -> list[str]:
    """What is wrong with the order of begins and ends in one life of a run; an error or a stop closes what was open."""
    opened: list[str] = []
    faults: list[str] = []
    for name in log:
        if name in PAIRS:
            opened.append(name)
        elif name in ("on_exception", "on_stop"):
            faults += [held for held in opened if held == "on_fetch_data_begin"]
            opened = [held for held in opened if held == "on_train_begin"]
        elif name in PAIRS.values() and (not opened or PAIRS[opened.pop()] != name):
            faults.append(name)
    return faults + opened


STRIKES = ["next_batch", "train_step", "backward", "optimizer_step", "zero_grad", "open_epoch", "evaluate_step"]


@pytest.mark.parametrize("call", STRIKES)
@pytest.mark.parametrize("number", [1, 2, 5])
@pytest.mark.parametrize("error", [ArithmeticError, KeyboardInterrupt])
def test_a_begin_has_its_end_or_the_error_that_took_its_place(call: str, number: int, error: Any) -> None:
    """C2, E12, A2.R9: fetches and the training itself have their ends after an error too."""
    log: list[str] = []

    def strike(driver: StubDriver) -> None:
        if driver.calls.count(call) == number:
            raise error

    driver = StubDriver(on={call: strike})
    trainer = stub([1, 2, 3], driver, metrics={"m": Sum()}, validate_dataloaders=[4, 5], callbacks=scribe(log))
    try:
        trainer.run()
    except error:
        assert log.count("on_exception") == (trainer.trainer_state.seq > 0)  # before it, no run has begun
    assert unpaired(log) == []
    assert log.count("on_train_begin") == log.count("on_train_end")


INSIDE = [name for name in (*PAIRS, *PAIRS.values()) if name != "on_train_end"]


@pytest.mark.parametrize("at", [*INSIDE, "step", "fetch", "validate", Stepped])
def test_a_begin_has_its_end_in_this_life_or_in_the_one_that_goes_on(run_dir: Path, at: Any) -> None:
    """C2: stopped at any point, and gone on with; the batch or the validation that was left off is ended there."""

    def fresh(log: list[str], run_dir: Path | None = run_dir) -> Trainer:
        settings = {"metrics": {"m": Sum()}, "validate_dataloaders": [4], "validate_every": 2, "run_dir": run_dir}
        return stub([1, 2, 3], callbacks=scribe(log), accumulation_steps=2, **settings)

    def stops(trainer: Any, *given: Any) -> None:
        trainer.stop("for now")

    log: list[str] = []
    first = fresh(log)
    first.on(at, stops)
    first.run()
    assert unpaired(log) == []
    later: list[str] = []
    fresh(later).run(resume_from="auto")
    straight: list[str] = []
    fresh(straight, None).run()
    for name in ("on_train_batch_begin", "on_train_batch_end", "on_train_epoch_end", "on_validate_end"):
        assert log.count(name) + later.count(name) == straight.count(name), name


def test_a_model_is_heard_of_before_it_is_written_and_before_it_is_read(tmp_path: Path) -> None:
    """E13, E14, SV14."""
    run, other = Run(n_epochs=1), Run(init=8)
    before, path, seen = other.weights, tmp_path / "model.pt", []
    run.trainer.on(Events.on_save_model, lambda trainer: seen.append(path.exists()))
    other.trainer.on(Events.on_load_model, lambda trainer: seen.append(equal(other.weights, before)))
    run.trainer.save_model(path)
    other.trainer.load_model(path)
    assert seen == [False, True]
    assert equal(run.weights, other.weights)


class Square(torch.nn.Linear):
    """A model of a size of its own."""

    def __init__(self, n: int) -> None:
        super().__init__(n, n)

    def trainer(self) -> Trainer:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        return Trainer(self, "torch", [torch.ones(1)], optimizer, run_dir=None, progress_bar=None)


def test_a_file_that_held_a_larger_model_holds_the_smaller_one_whole(tmp_path: Path) -> None:
    """B30, SV14: what was written over is cut off where the new one ends; and a file must be rewound to be read."""
    with open(tmp_path / "on disk", "w+b") as on_disk:
        for file in (io.BytesIO(), on_disk):
            small, other = Square(2), Square(2)
            Square(200).trainer().save_model(file)
            file.seek(0)
            small.trainer().save_model(file)
            with pytest.raises(RestoreFault, match=r"the open file \(it stands at its end: seek\(0\) first\) isn't a"):
                other.trainer().load_model(file)
            file.seek(0)
            other.trainer().load_model(file)
            assert torch.equal(small.weight, other.weight)


class Payload:
    """What unpickling this would do."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_a_file_that_would_run_code_is_refused_and_runs_none(tmp_path: Path) -> None:
    """N8: as a model, and as a part of a snapshot whose sizes and digests are right."""
    touched = tmp_path / "touched"
    torch.save({"weight": Payload(touched)}, tmp_path / "model.pt")
    with pytest.raises(RestoreFault, match="tensors and plain data only, and nothing else is unpickled"):
        Square(2).trainer().load_model(tmp_path / "model.pt")
    torch.load(tmp_path / "model.pt", weights_only=False)
    assert touched.exists()  # it would have
    touched.unlink()
    run = Run(run_dir=tmp_path / "run", n_epochs=1)
    run.run()
    snapshot = max((tmp_path / "run" / "snapshots").iterdir())
    part = next(path for path in snapshot.iterdir() if path.suffix == ".pt")
    torch.save(Payload(touched), part)
    commit = snapshot / "COMMIT"
    assert part.name in commit.read_text()
    with pytest.raises((RestoreFault, SnapshotFault)):
        Run(run_dir=None).run(resume_from=snapshot)
    with pytest.raises(RestoreFault):
        run.trainer.driver.read(snapshot)  # type: ignore[union-attr]
    assert not touched.exists()


def test_a_preemption_is_heard_as_a_stop_by_its_signal_s_name(run_dir: Path) -> None:
    """C2: and its snapshot as any other."""
    log: list[str] = []

    def note(name: str, trainer: Any, args: tuple[Any, ...]) -> str:
        return f"{name} {args[0]}" if name == "on_stop" else name

    trainer = stub([1, 2, 3], run_dir=run_dir, callbacks=scribe(log, note))
    trainer.on(Events.on_train_batch_end(once=2), lambda trainer: trainer.interrupt(signal.SIGTERM))
    with pytest.raises(SystemExit) as caught:
        trainer.run()
    assert caught.value.code == 143
    assert "on_stop SIGTERM" in log
    assert log[log.index("on_stop SIGTERM") :] == ["on_stop SIGTERM", "on_train_end", "on_after_snapshot"]
    assert "on_exception" not in log


class Remembers(Callback):
    """Keeps a number, by the reference trainer's methods, and looks at what is there when it gets it back."""

    def __init__(self, number: int | None, look: Callable[[Any], Any] = lambda trainer: None) -> None:
        self.number, self.look = number, look
        self.seen: list[Any] = []

    def on_save_checkpoint(self, trainer: Any) -> dict[str, Any]:
        return {} if self.number is None else {"number": self.number}

    def on_load_checkpoint(self, trainer: Any, states: dict[str, Any]) -> None:
        self.seen.append((states, self.look(trainer)))


def test_a_callback_gets_its_state_back_when_the_driver_is_restored_and_none_where_it_saved_none(run_dir: Path) -> None:
    """E15, E16."""

    def look(trainer: Any) -> Any:
        return trainer.driver.weight

    settings = {"n_batches": 3, "run_dir": run_dir, "snapshot_every": None}
    first = stub([1, 2], callbacks=[Remembers(17), Remembers(None)], **settings)
    first.run()
    number, nothing = Remembers(0, look), Remembers(None, look)
    stub([1, 2], callbacks=[number, nothing], **{**settings, "n_batches": 4}).run(resume_from="auto")
    assert number.seen == [({"number": 17}, first.driver.weight)]  # type: ignore[union-attr]
    assert nothing.seen == []


def test_a_listener_may_stop_save_change_and_raise(run_dir: Path) -> None:
    """S10."""
    trainer = stub([1, 2, 3], run_dir=run_dir, snapshot_every=None)

    @trainer.on(Events.on_train_batch_end(once=2))
    def acts(trainer: Any) -> None:
        trainer.state.noted = trainer.global_forward_batches
        trainer.n_epochs = 5
        trainer.request_snapshot()
        trainer.stop("seen enough")

    saved: list[str] = []
    trainer.on(Events.on_after_snapshot, lambda trainer, path: saved.append(path.name))
    end = trainer.run()
    assert (end.stop_asked, end.global_forward_batches, end.n_epochs) == ("seen enough", 2, 5)
    assert trainer.state == {"noted": 2}
    assert saved

    class Enough(Exception):
        pass

    def raises(trainer: Any) -> None:
        raise Enough

    other = stub()
    other.on(Events.on_train_batch_end, raises)
    with pytest.raises(Enough):
        other.run()


# -- state -------------------------------------------------------------------------------------------------


def test_no_attribute_can_be_left_on_a_state() -> None:
    """ST5, ST2."""
    trainer = stub(metrics={"m": Sum()}, validate_dataloaders=[1])

    def strays(trainer: Any, results: Any) -> None:
        with pytest.raises((AttributeError, dataclasses.FrozenInstanceError)):
            trainer.trainer_state.save_on_this_step = True

    trainer.on(Events.on_validate_end, strays)
    state = trainer.run()
    assert not hasattr(state, "save_on_this_step")
    assert not hasattr(state, "__dict__")


# -- users' own steps and loops ----------------------------------------------------------------------------


def test_a_loader_that_is_cut_short_stays_the_user_s_own_object() -> None:
    """A8.C6: so everything on it is as it was; and each epoch begins with its first batch again."""
    run = Run(n=8, loader={"shuffle": False}, n_epochs=2)
    run.loader.mine = "an attribute"
    run.run(num_train_batch_per_epoch=2)
    assert run.trainer.train_dataloader is run.loader
    assert (len(run.loader), run.trainer.train_dataloader.mine) == (4, "an attribute")
    assert run.trainer.num_batches_per_epoch == 2
    assert run.model.seen == [[0, 1], [2, 3]] * 2


def test_what_a_step_reached_is_counted_in_each_process_anew_and_not_kept(run_dir: Path) -> None:
    """S9, A8.C1: the counts are for the check of a custom step; a resumed run checks its code again."""

    def no_update(trainer: Any, batch: Any) -> None:
        trainer.backward(trainer.train_step(batch))

    for limit in (2, 4):
        trainer = stub([1, 2, 3], batch_step_fn=no_update, n_batches=limit, run_dir=run_dir)
        trainer.on(Events.on_before_zero_grad, lambda trainer, optimizers: None)
        with pytest.warns(UserWarning, match="never reached on_before_zero_grad") as told:
            trainer.run(resume_from="auto")
        assert len(told) == 1
        held = trainer.listeners.state_dict(trainer)
        assert held["filters"] == {}
        assert all("reached" not in str(state) for state in held["callbacks"].values())


# -- seeds and workers -------------------------------------------------------------------------------------


def test_one_seed_is_given_to_all_generators_of_the_process() -> None:
    """D14: whatever they stood at; and the environment has no say in it."""

    def drawn(before: int) -> list[float]:
        for seed in (random.seed, np.random.seed, torch.manual_seed):
            seed(before)
        run = Run(n_epochs=1, seed=5, noise=False)
        seen: list[float] = []

        def draw(trainer: Any) -> None:
            seen.extend([random.random(), float(np.random.rand()), float(torch.rand(1))])

        run.trainer.on(Events.on_train_begin, draw)
        run.run()
        return seen

    assert drawn(1) == drawn(2)


def stamp(worker: int) -> None:
    stamped.append(worker)


stamped: list[int] = []


class Stamped(Indexed):
    """Its samples say how often the user's own function was called in this worker, and draw from torch's generator."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {**super().__getitem__(index), "id": torch.tensor(index + 100 * len(stamped))}


def test_workers_are_seeded_whether_or_not_the_user_has_a_function_for_them() -> None:
    """D12: his own is called too, once in each worker."""
    runs = []
    for loader in ({"num_workers": 2}, {"num_workers": 2, "worker_init_fn": stamp}, {"num_workers": 0}):
        run = Run(n=4, loader={"shuffle": False}, n_epochs=1)
        run.data = Stamped(4, True)
        run.trainer = Trainer(
            run.model,
            "torch",
            DataLoader(run.data, batch_size=2, **loader),
            run.optimizer,
            n_epochs=1,
            seed=7,
            run_dir=None,
            progress_bar=None,
        )
        run.run()
        runs.append(run)
    plain, own, none = runs
    assert plain.model.seen == none.model.seen == [[0, 1], [2, 3]]
    assert own.model.seen == [[100, 101], [102, 103]]
    assert equal(plain.weights, own.weights)
    assert equal(plain.weights, none.weights)


# -- a whole run -------------------------------------------------------------------------------------------


class Mean(Sum):
    """A metric of the model's outputs."""

    def update(self, predicted: Any) -> None:  # type: ignore[override]
        self.total += float(predicted.sum())
        self.n += len(predicted)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_run_in_which_nothing_is_wrong_warns_of_nothing(run_dir: Path, precision: str) -> None:
    """N2, T17: built, run, extended and resumed, with validation, windows, workers and listeners of every kind."""

    def fresh(n_epochs: int) -> Trainer:
        torch.manual_seed(1)
        model, log = Regression(), []
        loader = DataLoader(Indexed(10), batch_size=2, shuffle=True, num_workers=2, persistent_workers=True)
        trainer = Trainer(
            model,
            "torch",
            loader,
            torch.optim.Adam(model.parameters()),
            n_epochs=n_epochs,
            validate_dataloaders=DataLoader(Indexed(4), batch_size=2),
            metrics={"m": Mean()},
            callbacks=scribe(log),
            accumulation_steps=2,
            precision=precision,
            run_dir=run_dir,
            seed=3,
            progress_bar=None,
        )
        trainer.on("step -> fetch", lambda trainer, event: None)
        return trainer

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer = fresh(1)
        trainer.run()
        trainer.n_epochs = 2
        trainer.run()
        end = fresh(3).run(resume_from="auto")
    assert (end.state, end.cur_epoch_idx) == ("done", 3)


def test_batches_and_outputs_of_an_evaluation_are_released_after_it() -> None:
    """N10: those of its last batch too."""
    alive: list[Any] = []
    left: list[int] = []

    class Holds(Mean):
        def update(self, predicted: Any, x: Any) -> None:  # type: ignore[override]
            super().update(predicted)
            alive.extend([weakref.ref(predicted), weakref.ref(x)])

    loader = DataLoader(Indexed(6), batch_size=2)
    run = Run(n=4, n_epochs=1, metrics={"m": Holds()}, validate_dataloaders=loader)
    for moment in (Events.on_validate_end, Events.on_sanity_check_end):
        run.trainer.on(moment, lambda trainer, results: left.append(sum(ref() is not None for ref in alive)))
    run.run()
    assert len(alive) == 2 * (2 + 3)
    assert left == [0, 0]


# -- typing ------------------------------------------------------------------------------------------------

PACKAGES = ("tachograph.engine", "tachograph.states", "tachograph.drivers")


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_says_that_it_is_typed(package: str) -> None:
    """C9."""
    assert resources.files(package).joinpath("py.typed").is_file()


def public(package: str) -> list[Any]:
    """The public functions of a package, and the public methods of its public classes that are its own."""
    module = import_module(package)
    found = []
    for name in module.__all__:
        held = getattr(module, name)
        if inspect.isfunction(held):
            found.append(held)
        elif inspect.isclass(held):
            methods = [m for n, m in vars(held).items() if inspect.isfunction(m) and (n[0] != "_" or n == "__init__")]
            found += [m for m in methods if m.__module__.startswith("tachograph.")]
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_function_says_what_it_takes_and_returns(package: str) -> None:
    """C9: strictly, which `make check` holds all of the code to."""
    functions = public(package)
    assert functions
    for fn in functions:
        signature = inspect.signature(fn)
        untyped = [n for n, p in signature.parameters.items() if p.annotation is p.empty and n not in ("self", "cls")]
        assert not untyped, f"{fn.__qualname__}: {untyped}"
        assert signature.return_annotation is not signature.empty, fn.__qualname__


SCRIPT = """
from typing import Any
from tachograph.drivers import StubDriver
from tachograph.engine import Callback, Divergence, Events, Filter, Journal, Trainer, diff, replay
from tachograph.states import Stepped, TrainerState

class Best(Callback):
    @Filter(every=2)
    def on_train_batch_end(self, trainer: Trainer) -> None: ...
    def on_validate_end(self, trainer: Trainer, results: dict[str, Any]) -> None: ...

@Trainer.on(Events.on_train_batch_end(every=100), marker="all")
def marked(trainer: Trainer) -> None: ...

trainer = Trainer(None, StubDriver(), [1, 2, 3], None, n_epochs=2, callbacks=[Best()])

@trainer.on(Events.on_train_batch_end(every=100) | Events.on_train_begin)
def note(trainer: Trainer) -> None: ...

note(trainer)
with trainer.on(Stepped, lambda trainer, event: None):
    pass
trainer.on("step -> fetch", lambda trainer: None).remove()
state: TrainerState = trainer.run(resume_from="auto")
seen: int = state.global_forward_batches
for record in Journal("x"):
    print(record.seq)
found: Divergence | None = diff("x", "y")
replay("x").on("step -> fetch", lambda record: None).run(stop=3)
"""


def checked(tmp_path: Path, script: str) -> str:
    """What mypy says of a user's script, at its strictest."""
    (tmp_path / "script.py").write_text(script, encoding="utf-8")
    cache = Path(__file__).parent.parent / ".mypy_cache"
    said, failed, _ = mypy.api.run(["--strict", "--cache-dir", str(cache), str(tmp_path / "script.py")])
    return said + failed


@pytest.mark.sweep
def test_a_user_s_script_is_typed_strictly(tmp_path: Path) -> None:
    """C9: decorators keep the types of what they decorate."""
    assert "Success: no issues found" in checked(tmp_path, SCRIPT)


@pytest.mark.sweep
def test_the_counters_of_a_trainer_are_typed(tmp_path: Path) -> None:
    """C9, ST4."""
    assert "Success: no issues found" in checked(tmp_path, SCRIPT + "print(trainer.global_forward_batches + 1)\n")


def test_optimizers_of_another_model_are_refused() -> None:
    """T4: nothing would be trained; parameters beside the model's may be in them."""
    model, other = Regression(), Regression()
    loader = DataLoader(Indexed(2))
    with pytest.raises(CallerError, match="no parameter of the Regression is in the optimizers"):
        Trainer(model, "torch", loader, torch.optim.SGD(other.parameters(), lr=0.1), run_dir=None)
    both = [*model.parameters(), *other.parameters()]
    trainer = Trainer(model, "torch", loader, torch.optim.SGD(both, lr=0.1), run_dir=None)
    assert trainer.model is model


def test_resuming_by_itself_needs_a_run_directory_that_is_the_same_at_each_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A2.R3: "auto" and "auto" would begin anew each time."""
    monkeypatch.chdir(tmp_path)
    trainer = stub(run_dir="auto", n_epochs=1)
    with pytest.raises(CallerError, match="run_dir='auto' is a new one at each start: give the trainer a run_dir"):
        trainer.run(resume_from="auto")
    assert list(tmp_path.iterdir()) == []
    trainer.run()
    trainer.n_epochs = 2
    assert trainer.run(resume_from="auto").cur_epoch_idx == 2

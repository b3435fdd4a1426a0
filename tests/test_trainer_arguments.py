"""What `Trainer` and `run` take, and the one clear sentence for everything else."""

from __future__ import annotations

import inspect
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tachograph.drivers import Driver, StubDriver
from tachograph.engine import Callback, Progress, Trainer
from tachograph.engine.arguments import SETTINGS
from tachograph.engine.elsewhere import ARGUMENTS_ELSEWHERE
from tachograph.states.errors import CallerError
from tests.toys import Indexed, Mean, Regression, Sum, stub


def build(**changes: Any) -> Trainer:
    """A trainer of a small regression, with some arguments changed; a function is given the model's parameters."""
    model = changes.pop("model", None)
    model = Regression() if model is None else model
    given: dict[str, Any] = {
        "driver": "torch",
        "train_dataloader": DataLoader(Indexed(6), batch_size=2),
        "optimizers": lambda: torch.optim.SGD(model.parameters(), lr=0.1),
        "n_epochs": 1,
        "run_dir": None,
        "progress_bar": None,
        **changes,
    }
    if not isinstance(model, nn.Module):
        given["optimizers"] = []
    if callable(given["optimizers"]) and not isinstance(given["optimizers"], type):
        given["optimizers"] = given["optimizers"]()
    return Trainer(model, **given)


def validating(**changes: Any) -> Trainer:
    loader = DataLoader(Indexed(4), batch_size=2)
    return build(**{"metrics": {"loss": Mean()}, "validate_dataloaders": loader, **changes})


# -- what is taken -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("driver", ["torch", "auto"])
@pytest.mark.parametrize("device", ["cpu", torch.device("cpu"), None])
def test_a_module_is_trained_where_it_is_told(driver: str, device: Any) -> None:
    """T1, T2, T5: None takes where the model's parameters are."""
    trainer = build(driver=driver, device=device)
    assert trainer.run().global_forward_batches == 3
    assert trainer.driver.device == torch.device("cpu")  # type: ignore[union-attr]


@pytest.mark.parametrize("device", [0, "cuda", "cuda:1", torch.device("cuda"), [0, 1], -1])
def test_a_gpu_that_the_environment_hides_is_replaced_by_the_cpu_with_a_word(
    device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D2, T5: a script that was written for GPUs runs on the CPU, if that is asked for from outside."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.warns(UserWarning, match=r'CUDA_VISIBLE_DEVICES="" hides all GPUs: device=.* becomes "cpu"'):
        trainer = build(device=device)
    assert trainer.driver.device == torch.device("cpu")  # type: ignore[union-attr]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build(device="cpu")
        build(device=None)


def test_one_of_several_processes_is_told_that_it_trains_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """T2, T5: two trainings that don't know of each other look like one that is spread."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(CallerError, match=r"WORLD_SIZE=2: .* but RANK, MASTER_ADDR, MASTER_PORT are not set"):
        build(driver="auto", device=None)
    with pytest.warns(UserWarning, match="WORLD_SIZE=2, and driver='torch' trains in one process: each trains by it"):
        build()
    monkeypatch.setenv("WORLD_SIZE", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build(driver="auto")


def test_a_data_parallel_model_is_one_process_and_is_trained() -> None:
    """T1."""
    inner = Regression()
    trainer = build(model=nn.DataParallel(inner), optimizers=lambda: torch.optim.SGD(inner.parameters(), lr=0.1))
    before = inner.out.weight.detach().clone()
    assert trainer.run().optimizer_steps == 3
    assert not torch.equal(before, inner.out.weight)


def test_a_model_of_many_processes_is_refused_by_the_driver_of_one(tmp_path: Path) -> None:
    """T1, D2."""
    rendezvous = f"file://{tmp_path / 'rendezvous'}"
    torch.distributed.init_process_group("gloo", init_method=rendezvous, rank=0, world_size=1)
    try:
        model = nn.parallel.DistributedDataParallel(Regression())
        with pytest.raises(CallerError, match="a DistributedDataParallel model belongs to many processes"):
            build(model=model)
    finally:
        torch.distributed.destroy_process_group()


def test_a_driver_of_the_user_s_keeps_its_own_model_and_takes_one_where_it_has_none() -> None:
    """T2."""
    driver = StubDriver()
    trainer = Trainer("ignored", driver, [1], None, n_epochs=1, run_dir=None, progress_bar=None)
    assert trainer.driver is driver
    assert driver.model is driver
    other = StubDriver()
    other.model = None  # type: ignore[assignment]
    Trainer("taken", other, [1], None, n_epochs=1, run_dir=None, progress_bar=None)
    assert other.model == "taken"
    assert isinstance(other, Driver)


def test_one_optimizer_is_as_good_as_a_list_of_them() -> None:
    """T4."""
    model = Regression()
    one, two = (torch.optim.SGD(part.parameters(), lr=0.1) for part in (model.hidden, model.out))
    for given, held in ((one, [one]), ([one, two], [one, two]), ((two, one), [two, one])):
        trainer = build(model=model, optimizers=given)
        assert list(trainer.driver.optimizers) == held  # type: ignore[union-attr]


def test_a_limit_in_batches_overrides_the_epochs() -> None:
    """T6: the epochs are then what they come to."""
    trainer = build(n_epochs=7, n_batches=4)
    end = trainer.run()
    assert (end.global_forward_batches, end.n_epochs, end.total_batches) == (4, 2, 4)


def test_a_trainer_without_a_limit_in_epochs_runs_until_it_is_stopped() -> None:
    trainer = build(n_epochs=None)
    trainer.on("on_train_epoch_end", lambda t: t.stop("seven is enough") if t.cur_epoch_idx == 7 else None)
    assert trainer.run().cur_epoch_idx == 7


def test_the_reference_trainer_s_keyword_arguments_are_taken() -> None:
    """T21: with one process, those of many change nothing."""
    trainer = validating(
        torch_non_blocking=False,
        data_device=None,
        torch_ddp_kwargs={},
        set_grad_to_none=False,
        use_dist_sampler=True,
        use_eval_dist_sampler=False,
        output_from_new_proc="all",
        progress_bar=None,
        torch_kwargs={"set_grad_to_none": True, "non_blocking": True},
        check_dataloader_legality=True,
        monitor="loss",
        larger_better=False,
        train_fn=None,
        evaluate_fn=None,
        model_wo_auto_param_call=False,
        model_use_eval_mode=True,
        validate_mode="test",
        marker=None,
    )
    assert trainer.run().state == "done"
    assert (trainer.monitor, trainer.larger_better) == ("loss", False)


@pytest.mark.parametrize("to_none", [True, False])
def test_gradients_are_cleared_by_dropping_them_or_by_zeros(to_none: bool) -> None:
    """T21."""
    model = Regression()
    build(model=model, set_grad_to_none=to_none).run()
    grads = [p.grad for p in model.parameters()]
    assert all(g is None for g in grads) if to_none else all(g is not None and not g.any() for g in grads)


def test_the_progress_bar_may_be_a_callback_and_one_among_the_callbacks_wins() -> None:
    """K10."""
    shown = Callback()
    assert next(iter(build(progress_bar=shown).listeners.callbacks.values())) is shown
    own = Progress("plain")
    with pytest.warns(UserWarning, match="callbacks hold a Progress, so progress_bar is ignored"):
        trainer = build(progress_bar="rich", callbacks=[own])
    assert list(trainer.listeners.callbacks.values()) == [own]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer = build(progress_bar="auto", callbacks=own)
    assert list(trainer.listeners.callbacks.values()) == [own]


# -- what is refused ---------------------------------------------------------------------------------------


def loader(n: int = 4, **settings: Any) -> Any:
    return DataLoader(Indexed(n), batch_size=2, **settings)


class Unmetric:
    def update(self, loss: Any) -> None: ...

    def compute(self) -> None: ...


def starred(self: Any, *values: Any) -> None: ...


class Starred(Mean):
    update = starred  # type: ignore[assignment]


SAME = torch.optim.SGD([torch.zeros(1)], lr=0.1)

WRONG: dict[str, list[tuple[Any, str]]] = {
    "model": [
        (3, "model must be a torch.nn.Module, not int"),
        (Regression, "model must be a torch.nn.Module, not type"),
    ],
    "driver": [
        ("torhc", "there is no driver 'torhc'. Did you mean 'torch' or 'torch_ddp' or 'torch_fsdp'?"),
        ("paddle", "there is no driver 'paddle'. Known: auto, torch, torch_ddp, torch_fsdp."),
        (3, "driver must be a name or a Driver, not int"),
        (StubDriver, "driver must be a name or a Driver, not ABCMeta"),
    ],
    "train_dataloader": [
        (
            3,
            "train_dataloader must be one DataLoader (or an iterable of batches that can be iterated over again), not",
        ),
        (None, "train_dataloader must be one DataLoader"),
        ("abc", "train_dataloader must be one DataLoader"),
        ({"a": loader()}, "train_dataloader must be one DataLoader"),
        (
            [loader(), loader()],
            "train_dataloader must be one DataLoader (or an iterable of batches that can be iterated over ",
        ),
        (
            iter([1, 2]),
            "train_dataloader must be one DataLoader (or an iterable of batches that can be iterated over again): an",
        ),
        ((b for b in [1]), "an iterator is empty after its first epoch. Give the object that makes it"),
        ([], "train_dataloader is empty: its list of 0 samples makes no batch"),
        (loader(0), "train_dataloader is empty: its Indexed of 0 samples makes no batch"),
        (
            loader(1, drop_last=True),
            "train_dataloader is empty: its Indexed of 1 samples, with drop_last=True makes no batch",
        ),
        (loader(4, sampler=[]), "train_dataloader is empty: its Indexed of 4 samples makes no batch"),
    ],
    "optimizers": [
        (None, "optimizers must be one torch Optimizer or a sequence of them, not NoneType"),
        ([], "optimizers must be one torch Optimizer or a sequence of them, not an empty list"),
        ([3], "optimizers must hold torch Optimizers, not int"),
        (torch.optim.SGD, "optimizers must be one torch Optimizer or a sequence of them, not type"),
        ({"a": 3}, "optimizers must be one torch Optimizer or a sequence of them, not dict"),
        ([SAME, SAME], "an optimizer is given twice: it would take two steps in one update"),
    ],
    "device": [
        ("nowhere", "device 'nowhere' isn't one: "),
        (3.5, "device 3.5 isn't one: "),
        (
            [0, 1],
            "device=[0, 1] asks for a process on each device, which driver='torch' doesn't start: give one, or "
            "driver='torch_ddp'",
        ),
        (["cpu"], "device=['cpu'] asks for a process on each device, which driver='torch' doesn't start: give one"),
        ([], "device=[] asks for a process on each device, which driver='torch' doesn't start: give one"),
        (-1, "device=-1 asks for a process on each device, which driver='torch' doesn't start: give one"),
        (-2, "device -2 isn't one: "),
        (True, "device True isn't one: "),
        ("CPU", "device 'CPU' isn't one: "),
        ("meta", "device 'meta' holds shapes and no values: "),
        ("xpu:99", "device 'xpu:99' isn't there: "),
        (99, "device 99: this machine has "),
        ("cuda:99", "device 'cuda:99': this machine has "),
    ],
    "n_epochs": [
        (-1, "n_epochs must be an integer >= 0 or None, not -1"),
        (2.0, "n_epochs must be an integer >= 0 or None, not 2.0"),
        (True, "n_epochs must be an integer >= 0 or None, not True"),
        ("3", "n_epochs must be an integer >= 0 or None, not '3'"),
    ],
    "n_batches": [
        (-2, "n_batches must be -1 (no limit) or an integer >= 0, not -2"),
        (3.0, "n_batches must be -1 (no limit) or an integer >= 0, not 3.0"),
        (True, "n_batches must be -1 (no limit) or an integer >= 0, not True"),
    ],
    "batch_step_fn": [
        (3, "batch_step_fn must be a function of (trainer, batch), not 3"),
        (lambda trainer: None, "batch_step_fn must be a function of (trainer, batch), not <function <lambda>"),
        (lambda trainer, batch, more: None, "batch_step_fn must be a function of (trainer, batch)"),
        (lambda *all: None, "batch_step_fn must be a function of (trainer, batch)"),
        (max, "batch_step_fn must be a function of (trainer, batch), not <built-in function max>"),
    ],
    "validate_batch_step_fn": [
        (3, "validate_batch_step_fn must be a function of (evaluator, batch), not 3"),
        (lambda evaluator: None, "validate_batch_step_fn must be a function of (evaluator, batch), not <function"),
    ],
    "validate_mode": [
        ("train", "validate_mode must be 'validate' or 'test', not 'train'"),
        (None, "validate_mode must be 'validate' or 'test', not None"),
    ],
    "callbacks": [
        (3, "callbacks must be a Callback or a sequence of them, not int"),
        ("abc", "callbacks must be a Callback or a sequence of them, not str"),
        ({Callback()}, "callbacks must be a Callback or a sequence of them, not set"),
        ([3], "callbacks must be Callback instances, not int"),
        ([Callback], "callbacks must be Callback instances, not the class Callback (give an instance)"),
        ([lambda trainer: None], "callbacks must be Callback instances, not function"),
    ],
    "metrics": [
        (None, "metrics and validate_dataloaders belong together: metrics is missing"),
        ({}, "metrics must be a dict name -> metric with one metric at least, not {}"),
        ([Mean()], "metrics must be a dict name -> metric with one metric at least, not ["),
        ({"m": 3}, "metric 'm' must have update, compute and reset; int lacks update"),
        ({"m": Unmetric()}, "metric 'm' must have update, compute and reset; Unmetric lacks reset"),
        ({"m": Starred()}, "metric 'm' takes *values, which can't be filled by name: name its parameters"),
    ],
    "validate_dataloaders": [
        (None, "metrics and validate_dataloaders belong together: validate_dataloaders is missing"),
        ({}, "dataloaders is an empty dict: give one loader at least"),
        (3, "the evaluation loader can't be iterated over: it is an int"),
        ({"a": 3}, "the evaluation loader 'a' can't be iterated over: it is an int"),
        ({"a": iter([1])}, "the evaluation loader 'a' is an iterator, empty after its first use: give what makes it"),
        ({"a": loader(0)}, "the evaluation loader 'a' is empty"),
    ],
    "validate_every": [
        (
            0,
            "validate_every must be n > 0 (batches), -n (epochs), a number with its unit ('100 updates', '0.25 epoch', "
            "'10min'), several of these, or a function f(trainer) -> bool, not 0",
        ),
        (1.5, "validate_every must be n > 0 (batches)"),
        ("3", "validate_every must be n > 0 (batches)"),
        (True, "validate_every must be n > 0 (batches)"),
        ((), "validate_every must be n > 0 (batches)"),
        ((2, 0), "validate_every must be n > 0 (batches)"),
        (0.5, "a function f(trainer) -> bool, not 0.5: say '0.5 epoch'"),
        ((0.25, -1), "a function f(trainer) -> bool, not (0.25, -1): say '0.25 epoch'"),
        (100.0, "a function f(trainer) -> bool, not 100.0: say 100 (batches)"),
        ("100 steps", "a function f(trainer) -> bool, not '100 steps': say '100 updates' or '100 batches'"),
        ((-1, "7it"), "a function f(trainer) -> bool, not (-1, '7it'): say '7 updates' or '7 batches'"),
        ("1 iteration", "a function f(trainer) -> bool, not '1 iteration': say '1 updates' or '1 batches'"),
        ("3", "a function f(trainer) -> bool, not '3': say '3 updates' or '3 batches'"),
        ("0.5 updates", "a function f(trainer) -> bool, not '0.5 updates'"),
        (lambda: True, "validate_every must take (trainer), but <function"),
        (lambda a, b, c: True, "takes 3 arguments"),
    ],
    "input_mapping": [(3, "input_mapping must be None, a callable or a dict, not int")],
    "output_mapping": [("loss", "output_mapping must be None, a callable or a dict, not str")],
    "train_input_mapping": [([1], "input_mapping must be None, a callable or a dict, not list")],
    "evaluate_output_mapping": [([1], "output_mapping must be None, a callable or a dict, not list")],
    "monitor": [(3, "monitor must be a key of the results or a function, not 3")],
    "larger_better": [("yes", "larger_better must be True or False, not 'yes'")],
    "accumulation_steps": [
        (0, "accumulation_steps must be an integer >= 1, not 0"),
        (-1, "accumulation_steps must be an integer >= 1, not -1"),
        (True, "accumulation_steps must be an integer >= 1, not True"),
        (2.0, "accumulation_steps must be an integer >= 1, not 2.0"),
    ],
    "precision": [
        ("fp61", "precision must be one of fp32, bf16, fp16, not 'fp61'. Did you mean 'fp16'"),
        (16, "precision must be one of fp32, bf16, fp16, not 16: here it is 'fp16'"),
        ("16-mixed", "precision must be one of fp32, bf16, fp16, not '16-mixed': here it is 'fp16'"),
        ("bf16-mixed", "precision must be one of fp32, bf16, fp16, not 'bf16-mixed': here it is 'bf16'"),
        ("no", "precision must be one of fp32, bf16, fp16, not 'no': here it is 'fp32'"),
        (torch.bfloat16, "precision must be one of fp32, bf16, fp16, not torch.bfloat16: here it is 'bf16'"),
        (["bf16"], "precision must be one of fp32, bf16, fp16, not ['bf16']"),
    ],
    "seed": [
        (-1, "seed must be an integer from 0 to 2**63 - 1, not -1"),
        (1 << 63, "seed must be an integer from 0 to 2**63 - 1, not 9223372036854775808"),
        (1.0, "seed must be an integer from 0 to 2**63 - 1, not 1.0"),
        (True, "seed must be an integer from 0 to 2**63 - 1, not True"),
    ],
    "snapshot_every": [
        *(
            (wrong, "snapshot_every must be 'epoch', a number of batches > 0, a time such as '10min', or None, not ")
            for wrong in (0, -1, 1.5, True, "weekly", "10 parsecs", "0s", "", "-5min", [3])
        ),
    ],
    "train_fn": [
        (3, "train_fn must be the name of a method of the model, not 3"),
        ("train_stepp", "train_fn='train_stepp': Regression has no such method. "),
        ("forwart", "train_fn='forwart': Regression has no such method. Did you mean 'forward'?"),
    ],
    "evaluate_fn": [("forwart", "evaluate_fn='forwart': Regression has no such method. Did you mean 'forward'?")],
    "progress_bar": [("bar", "progress must be one of auto, rich, plain, json, tqdm or None, not 'bar'")],
}
CASES = [(name, value, said) for name, cases in WRONG.items() for value, said in cases]


@pytest.mark.parametrize(("name", "value", "said"), CASES, ids=[f"{n}-{i}" for i, (n, _, _) in enumerate(CASES)])
def test_an_argument_that_cannot_be_used_is_refused_in_one_clear_sentence(
    run_dir: Path, name: str, value: Any, said: str
) -> None:
    """T1, T2, T3, T4, T5, T6, T7, T8, T9, T10, T11, T12, T13, T14, T16, T17, B1, R62.

    Both a ValueError and a TypeError, and nothing was written.
    """
    changes: dict[str, Any] = {name: value, "run_dir": run_dir}
    if name == "optimizers":
        changes[name] = (lambda: value) if not isinstance(value, type) else value
    with pytest.raises(CallerError) as caught:
        validating(**changes)
    text = str(caught.value)
    assert said in text
    assert "\n" not in text
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, TypeError)
    assert not run_dir.exists()


def test_an_argument_that_does_not_exist_is_refused_with_the_nearest_names() -> None:
    with pytest.raises(CallerError, match=r"Trainer has no argument 'n_epoch'. Did you mean 'n_epochs'"):
        build(n_epoch=3)
    with pytest.raises(
        CallerError, match=r"Trainer has no argument 'accumulate_steps'. Did you mean 'accumulation_steps'"
    ):
        build(accumulate_steps=3)


@pytest.mark.parametrize("name", sorted(ARGUMENTS_ELSEWHERE))
def test_another_library_s_argument_is_answered_with_the_one_here(name: str) -> None:
    """T1, N2: whatever is named here is an argument of the trainer, or of run."""
    with pytest.raises(CallerError) as caught:
        build(**{name: 3})
    said = ARGUMENTS_ELSEWHERE[name]
    assert str(caught.value) == f"Trainer has no argument {name!r}: here it is {said}"
    known = {*inspect.signature(Trainer).parameters, *SETTINGS}
    assert name not in known
    first = re.match(r"(\w+)(?=$|[ =:(.,])", said)
    assert first is not None
    assert first[1] in {*known, "run", "a", "the", "callbacks"}


def test_the_arguments_that_a_newcomer_tries_first_are_known() -> None:
    """T1, N2."""
    for name, here in {
        "max_epochs": "n_epochs",
        "max_steps": "n_batches",
        "accumulate_grad_batches": "accumulation_steps",
        "gradient_accumulation_steps": "accumulation_steps",
        "gradient_clip_val": "a callback, GradClip(...)",
        "val_check_interval": "validate_every",
        "devices": "device",
        "logger": "a callback",
        "output_dir": "run_dir",
        "ckpt_path": "run(resume_from=...)",
    }.items():
        with pytest.raises(CallerError, match=re.escape(f"Trainer has no argument {name!r}: here it is {here}")):
            build(**{name: 3})


def test_a_driver_that_is_left_out_is_asked_for_by_its_place() -> None:
    """T2: the loader stands in its place."""
    model = Regression()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(CallerError) as caught:
        Trainer(model, loader(), optimizer)
    assert str(caught.value) == "driver must be a name or a Driver, not DataLoader: the second argument is 'torch'"
    with pytest.raises(CallerError, match="optimizers must be one torch Optimizer or a sequence of them, not NoneType"):
        Trainer(model, "torch", loader())


def test_a_precision_s_sentence_says_the_choices_once() -> None:
    """T17."""
    with pytest.raises(CallerError) as caught:
        build(precision="int4")
    assert str(caught.value) == "precision must be one of fp32, bf16, fp16, not 'int4'"


@pytest.mark.parametrize("which", ["input", "output"])
@pytest.mark.parametrize("where", ["train", "evaluate"])
def test_a_shared_mapping_and_its_own_form_exclude_each_other(which: str, where: str) -> None:
    """T14."""
    both = {f"{which}_mapping": {"a": "b"}, f"{where}_{which}_mapping": {"a": "b"}}
    with pytest.raises(
        CallerError, match=f"{which}_mapping and its train_/evaluate_ form exclude each other: give one"
    ):
        validating(**both)


def test_two_precisions_that_contradict_each_other_are_refused() -> None:
    """T17."""
    with pytest.raises(CallerError, match="fp16=True and precision='bf16' contradict each other: give one of them"):
        build(fp16=True, precision="bf16")
    assert build(fp16=True, precision="fp16").driver.precision.name == "fp16"  # type: ignore[union-attr]
    assert build(fp16=True).driver.precision.name == "fp16"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ({"num_train_batch_per_epoch": 0}, "num_train_batch_per_epoch must be -1 (all) or an integer > 0, not 0"),
        ({"num_train_batch_per_epoch": -2}, "num_train_batch_per_epoch must be -1 (all) or an integer > 0, not -2"),
        ({"num_train_batch_per_epoch": True}, "num_train_batch_per_epoch must be -1 (all) or an integer > 0, not True"),
        ({"num_eval_batch_per_dl": 0}, "num_eval_batch_per_dl must be -1 (all) or an integer > 0, not 0"),
        ({"num_eval_batch_per_dl": 1.5}, "num_eval_batch_per_dl must be -1 (all) or an integer > 0, not 1.5"),
        ({"num_eval_sanity_batch": -2}, "num_eval_sanity_batch must be -1 (all) or an integer > 0, not -2"),
        ({"num_eval_sanity_batch": "all"}, "num_eval_sanity_batch must be -1 (all) or an integer > 0, not 'all'"),
    ],
)
def test_an_argument_of_run_that_cannot_be_used_is_refused(run_dir: Path, argument: Any, said: str) -> None:
    """EV2."""
    trainer = stub([1], run_dir=run_dir, metrics={"m": Sum()}, validate_dataloaders=[1])
    with pytest.raises(CallerError, match=re.escape(said)):
        trainer.run(**argument)
    assert not run_dir.exists()
    assert trainer.run().state == "done"


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ({"resume": "auto"}, "run has no argument 'resume': here it is resume_from"),
        ({"ckpt_path": "x"}, "run has no argument 'ckpt_path': here it is resume_from"),
        (
            {"resume_form": "auto"},
            "run has no argument 'resume_form'. Did you mean 'resume_from' or 'resume_training'?",
        ),
        ({"n_epochs": 3}, "run has no argument 'n_epochs': it is Trainer's"),
        ({"max_time": "2h"}, "run has no argument 'max_time': it is Trainer's"),
        ({"max_epochs": 3}, "run has no argument 'max_epochs': here it is Trainer's n_epochs"),
        ({"num_sanity_val_steps": 0}, "run has no argument 'num_sanity_val_steps': here it is num_eval_sanity_batch"),
    ],
)
def test_an_argument_that_run_does_not_have_is_answered(run_dir: Path, argument: Any, said: str) -> None:
    """EV2, N2."""
    trainer = stub([1], run_dir=run_dir)
    with pytest.raises(CallerError) as caught:
        trainer.run(**argument)
    assert str(caught.value) == said
    assert not run_dir.exists()
    assert trainer.run().state == "done"


def test_resuming_from_nothing_is_refused() -> None:
    """A2.R3."""
    with pytest.raises(FileNotFoundError, match="resume_from: there is nothing at /nowhere"):
        stub([1]).run(resume_from="/nowhere")
    with pytest.raises(
        CallerError, match="resume_from='auto' looks into run_dir, which is None: give the trainer a run_dir"
    ):
        stub([1]).run(resume_from="auto")


def test_a_run_directory_that_holds_a_run_is_not_written_over(run_dir: Path) -> None:
    stub([1], run_dir=run_dir).run()
    kept = {p: p.read_bytes() for p in run_dir.rglob("*") if p.is_file()}
    with pytest.raises(CallerError, match=f"{run_dir} holds a run already. Go on with run"):
        stub([1], run_dir=run_dir).run()
    assert kept == {p: p.read_bytes() for p in run_dir.rglob("*") if p.is_file()}


def test_a_run_directory_that_cannot_be_made_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    trainer = stub([1], run_dir=tmp_path / "file" / "run")
    with pytest.raises(
        CallerError, match=r"run_dir .*/file/run can't be written: Not a directory. Give another run_dir"
    ):
        trainer.run()
    assert trainer.driver.seen == []


def test_a_callback_whose_state_is_not_plain_data_is_refused_with_the_path_to_it() -> None:
    """R49: when it is registered, not hours later."""

    class Keeps(Callback):
        def __init__(self, state: dict[str, Any]) -> None:
            self._state = state

        def state_dict(self) -> dict[str, Any]:
            return self._state

        def load_state_dict(self, state: dict[str, Any]) -> None:
            pass

    for state, said in (
        (
            {"a": {"b": [1, lambda: 0]}},
            r"'Keeps' must be plain data or tensors, but state\['a'\]\['b'\]\[1\] is a function",
        ),
        ({"lock": (i for i in [1])}, r"state\['lock'\] is a generator"),
        ({"a": {(1, 2): 3}}, r"state\['a'\] has a key of type tuple"),
        ({"path": Path()}, r"state\['path'\] is a PosixPath"),
    ):
        with pytest.raises(CallerError, match=said):
            build(callbacks=Keeps(state))
    build(callbacks=Keeps({"t": torch.ones(2), "n": None, "s": ["x", 1, 2.0, b"", True]}))


def test_the_same_arguments_twice_make_two_trainers_that_share_nothing() -> None:
    data = TensorDataset(torch.arange(4.0))
    one, other = (build(train_dataloader=DataLoader(data)) for _ in range(2))
    one.state["x"] = 1
    assert "x" not in other.state
    assert one.listeners is not other.listeners

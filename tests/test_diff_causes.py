"""Why two runs part: planted faults, each in a real pair of runs, and what `diff` says of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tachograph.engine import Journal
from tachograph.engine.comparison import compare
from tachograph.engine.comparison.causes import Known, Resume, explained, kind_of, relevant
from tachograph.engine.diff import Divergence, diff
from tests.jobs import diff_job as job
from tests.jobs.diff_job import ORDER, fetched, once, stepped, stopped_at, train
from tests.test_journal_ranks import STEPS, at, life, ranks, with_loss
from tests.test_journal_support import run
from tests.toys import Run

MOMENTS = "its optimizer's state (moments, step counts) wasn't restored"
NOT_DETERMINISTIC = "an operation isn't deterministic (Trainer(deterministic=True) would refuse one)"


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing is wrong with, with fingerprints of every update."""
    return train(tmp_path_factory.mktemp("straight") / "a")


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run without fingerprints."""
    return train(tmp_path_factory.mktemp("bare") / "a", every=None)


def told(a: Path, b: Path) -> tuple[int, str, str, str]:
    """What `diff` says: (seq, field, cause, hint), the runs called A and B."""
    found = diff(a, b)
    assert found is not None
    cause, hint = (text.replace(str(b), "B").replace(str(a), "A") for text in (found.cause, found.hint))
    return found.seq, found.field, cause, hint


def shell(seq: int) -> str:
    return f"tachograph shell B --at {seq} --trainer module:function"


def verify(seq: int, run: str = "A") -> str:
    return f"tachograph verify {run} --trainer module:function --stop {seq}"


def repeat(seq: int) -> str:
    return f"tachograph verify A --trainer module:function --start {seq} --stop {seq} --repeat 3"


def show(seq: int, *more: str) -> str:
    return " ".join([f"tachograph show B --at {seq}", *more])


# -- no parting --------------------------------------------------------------------------------------------


def test_equal_runs_do_not_part(straight: Path, tmp_path: Path) -> None:
    """R38."""
    found = compare(straight, train(tmp_path / "b"))
    assert (found.outcome, found.divergence) == ("equal", None)
    assert found.agree == ["settings", "code", "environment", "samples", "generators", "losses", "weights"]


def test_a_run_that_was_resumed_as_it_should_be_equals_the_straight_one(straight: Path, tmp_path: Path) -> None:
    """R38."""
    b = train(stopped_at(tmp_path / "b", 10), resume=True)
    assert len(Journal(b).incarnations) == 2
    assert compare(straight, b).outcome == "equal"


def test_a_run_that_stopped_and_one_that_was_extended_are_beginning_and_end_of_one_history(
    straight: Path, tmp_path: Path
) -> None:
    stopped, extended = stopped_at(tmp_path / "b", 10), train(tmp_path / "c", n_epochs=2)
    for other in (stopped, extended):
        found = compare(straight, other)
        assert (found.outcome, found.divergence) == ("beginning", None)
        assert found.last == min(found.ends) - 1, "how the shorter one ended is no history"
        assert diff(straight, other) is None


def test_fingerprints_of_one_run_only_make_no_parting(straight: Path, bare: Path) -> None:
    assert compare(straight, bare).outcome == "equal"


# -- settings, code, environment ---------------------------------------------------------------------------


def test_another_seed_is_named(straight: Path, tmp_path: Path) -> None:
    """R38."""
    b = train(tmp_path / "b", seed=8, init=7)
    assert told(straight, b) == (fetched(1), "data.ids", "another seed (7 in A, 8 in B)", "tachograph show B")


def test_another_learning_rate_that_was_given_is_named_by_the_setting(straight: Path, tmp_path: Path) -> None:
    """R38."""
    b = train(tmp_path / "b", optimizer=lambda p: torch.optim.SGD(p, lr=0.025, momentum=0.9))
    cause = "another learning rate (0.05 in A, 0.025 in B)"
    assert told(straight, b) == (stepped(1), "data.lr", cause, "tachograph show B")


def test_a_setting_that_cannot_have_led_there_is_not_named(straight: Path, tmp_path: Path) -> None:
    """R38: runs with other momenta in which the samples part were not parted by the momentum."""
    assert relevant({"hyperparameters.momentum": (0, 1), "seed": (7, 8)}, "data.ids") == {"seed": (7, 8)}
    assert relevant({"threads": (1, 2), "torch": ("1", "2")}, "data.rng") == {"torch": ("1", "2")}
    assert relevant({"snapshot_every": (1, 2), "callbacks.Fingerprints.every": (1, 2)}, "data.loss") == {}
    b = train(tmp_path / "b", once(4, "on_train_batch_begin", job.draw), snapshot_every=7)
    assert told(straight, b)[:2] == (stepped(4), "data.rng")
    assert "snapshot_every" not in told(straight, b)[2]


def test_another_version_of_a_library_is_named(straight: Path, tmp_path: Path) -> None:
    """R38."""
    b = train(tmp_path / "b", once(5, "on_after_optimizer_step", job.flip_a_bit))
    job.rewrite(b, torch="1.0")
    cause = f"another version of torch ({torch.__version__} in A, 1.0 in B): it may compute other bits"
    assert told(straight, b) == (stepped(5), "fingerprint.parameters", cause, verify(stepped(5)))


def test_another_number_of_threads_is_named(tmp_path: Path) -> None:
    """R38: a long sum, split among one thread and among two."""
    runs = []
    threads = torch.get_num_threads()
    try:
        for number in (1, 2):
            torch.set_num_threads(number)
            runs.append(train(tmp_path / str(number), plant=job.wide))
    finally:
        torch.set_num_threads(threads)
    seq, field, cause, hint = told(*runs)
    assert field in ("data.loss", "fingerprint.gradients")
    assert cause == "another number of threads (1 in A, 2 in B): sums that are split otherwise round otherwise"
    assert hint == verify(seq)


def test_code_that_was_changed_is_named(straight: Path, tmp_path: Path) -> None:
    """R38."""
    b = train(tmp_path / "b", once(5, "on_after_optimizer_step", job.flip_a_bit))
    about = json.loads((b / "run.json").read_text())
    assert about["code"] == json.loads((straight / "run.json").read_text())["code"]
    about["code"]["tests/toys.py"] = "0" * 16
    (b / "run.json").write_text(json.dumps(about))
    cause, hint = told(straight, b)[2:]
    assert cause.endswith("; tests/toys.py isn't the same in A and B, which may be why")
    assert (
        "something other than the optimizer changed weights in this step" in cause
    )  # a comment may be all that changed
    assert hint == told(straight, train(tmp_path / "c", once(5, "on_after_optimizer_step", job.flip_a_bit)))[3].replace(
        "/c", "/b"
    )


def test_settings_are_those_in_force_at_the_transition(straight: Path, tmp_path: Path) -> None:
    """R38: a resume changed one, so it explains what comes after it and nothing before."""
    other = {"optimizer": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.5)}
    b = train(stopped_at(tmp_path / "b", 10), resume=True, **other)
    seq, field, cause, _ = told(straight, b)
    assert (seq, field) == (stepped(11), "fingerprint.parameters")
    assert cause == "another hyperparameters.momentum (0.9 in A, 0.5 in B)"
    early = train(tmp_path / "c", once(4, "on_train_batch_begin", job.draw))
    assert "momentum" not in told(early, b)[2]


# -- samples and their content -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def in_order(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose order somebody wrote down."""
    return train(tmp_path_factory.mktemp("order") / "a", **job.listed(ORDER))


def test_a_swapped_pair_of_samples_is_found_at_its_batch(in_order: Path, tmp_path: Path) -> None:
    """R38: two samples swapped at step 9."""
    within = train(tmp_path / "b", **job.listed(job.swapped(16, 17)))
    alone = "in this batch alone, samples are swapped or another one is among them: the sampler"
    assert told(in_order, within) == (fetched(9), "data.ids", alone, show(fetched(9), "--samples"))
    across = train(tmp_path / "c", **job.listed(job.swapped(16, 31)))
    two = "in this batch and one later, as if samples had been swapped between the two: the sampler"
    assert told(in_order, across) == (fetched(9), "data.ids", two, show(fetched(9), "--samples"))


def test_another_order_from_a_batch_on_is_told_from_a_swap(in_order: Path, tmp_path: Path) -> None:
    """R38."""
    b = train(tmp_path / "b", **job.listed([*ORDER[:16], *reversed(ORDER[16:])]))
    cause = "other samples, or the same in another order, though seed and settings of the data agree"
    assert told(in_order, b)[:3] == (fetched(9), "data.ids", f"{cause}: the sampler, or its state")


def test_a_batch_that_was_passed_over_is_named_with_who_did_it(in_order: Path, tmp_path: Path) -> None:
    """R38."""
    b = train(tmp_path / "b", **job.listed([*ORDER[:16], *ORDER[18:], 0, 1]))
    cause = f"B passed over a batch: what it fetches here, A fetches at {fetched(10)}"
    assert told(in_order, b) == (fetched(9), "data.ids", cause, show(fetched(9), "--samples"))
    assert "B passed over a batch" not in told(b, in_order)[2]
    assert "A passed over a batch" in told(b, in_order)[2]


def test_a_changed_row_of_the_dataset_is_told_from_other_samples(straight: Path, tmp_path: Path) -> None:
    """R38."""
    b = train(tmp_path / "b", plant=job.altered(7))
    seq, field, cause, hint = told(straight, b)
    assert field == "fingerprint.batch"
    assert cause.startswith("the samples are the same and what is in them isn't: a row of the dataset was changed")
    assert hint == show(seq, "--samples")
    assert 7 in _batch_of(tmp_path, seq), "it's the batch that holds the row"


def _batch_of(tmp_path: Path, seq: int) -> list[int]:
    seen: dict[int, list[int]] = {}

    def note(trainer: Any, batch: Any, indices: Any) -> None:
        seen[trainer.trainer_state.seq + 1] = batch["id"].tolist()

    train(tmp_path / "again", ("on_train_batch_begin", note))
    return seen[seq]


# -- generators --------------------------------------------------------------------------------------------


def test_one_extra_random_draw_is_found_in_its_step(straight: Path, tmp_path: Path) -> None:
    """R38: an extra draw at step 4, before the forward pass, or after it."""
    what = "the one drew other random numbers in this step than the other"
    early = train(tmp_path / "b", once(4, "on_train_batch_begin", job.draw))
    cause = f"{what}; the losses differ too, so before the forward pass's end"
    assert told(straight, early) == (stepped(4), "data.rng", cause, shell(stepped(4)))
    late = train(tmp_path / "c", once(4, "on_before_backward", job.draw))
    cause = f"{what}; the losses agree, so after the forward pass"
    assert told(straight, late) == (stepped(4), "data.rng", cause, shell(stepped(4)))


def test_a_missing_generator_restore_is_named_with_its_resume(straight: Path, tmp_path: Path) -> None:
    """R38."""
    b = train(stopped_at(tmp_path / "b", 10), resume=True, plant=job.forget_the_generators)
    cause = (
        f"B was resumed at {stepped(10)}, and its generators don't go on where they were: "
        "they weren't restored, or something drew from them since"
    )
    assert told(straight, b) == (stepped(11), "data.rng", cause, verify(stepped(11), "B"))


def test_a_run_that_says_itself_that_it_did_not_restore_its_generators_is_quoted(
    straight: Path, tmp_path: Path
) -> None:
    def refuse(run: Any) -> None:
        run.trainer.driver.restore_generators = lambda: "the state of numpy's generator is missing"

    b = train(stopped_at(tmp_path / "b", 10), resume=True, plant=refuse)
    why = "without its generators' states: the state of numpy's generator is missing"
    assert told(straight, b)[1:3] == ("data.rng", f"B was resumed at {stepped(10)} {why}")


# -- loss, gradients, update -------------------------------------------------------------------------------


def test_a_flipped_bit_of_a_weight_is_found_in_its_step_and_not_in_the_next(straight: Path, tmp_path: Path) -> None:
    """R38: one bit of one weight flipped at step 17; the loss differs at 18."""
    b = train(tmp_path / "b", once(17, "on_after_optimizer_step", job.flip_a_bit))
    cause = (
        "gradients and the optimizer's state agree and the weights don't: "
        "something other than the optimizer changed weights in this step"
    )
    assert told(straight, b) == (stepped(17), "fingerprint.parameters", cause, shell(stepped(17)))
    losses = [[r.data.get("loss") for r in Journal(run)] for run in (straight, b)]
    first = next(i for i, (one, other) in enumerate(zip(*losses, strict=True), 1) if one != other)
    assert first > stepped(17)


def test_without_fingerprints_it_is_said_what_is_not_known(bare: Path, tmp_path: Path) -> None:
    """R38."""
    b = train(tmp_path / "b", once(17, "on_after_optimizer_step", job.flip_a_bit), every=None)
    found = compare(bare, b)
    assert found.divergence is not None
    seq, field, cause, hint = told(bare, b)
    assert (seq, field) == (stepped(18), "data.loss")
    assert cause == (
        "samples and generators agree, so it is the batch's content, the weights before this step or the forward pass"
    )
    assert hint == repeat(seq)
    assert "callbacks=[Fingerprints(every=1)]" in found.unknown[0]


def test_fingerprints_of_every_fifth_update_bound_the_parting(tmp_path: Path) -> None:
    """R38: what came before the one that differs is said to be known up to the one that agrees."""
    a = train(tmp_path / "a", every=5, plant=_with_unused)
    b = train(tmp_path / "b", once(13, "on_after_optimizer_step", _nudge_an_unused_weight), every=5, plant=_with_unused)
    seq, field, cause, _ = told(a, b)
    assert (seq, field) == (stepped(15), "fingerprint.parameters")
    assert cause.endswith(f"it came about after transition {stepped(10)}, where all that was compared agrees")


def test_fingerprints_that_have_no_update_in_common_are_said_to_tell_nothing(tmp_path: Path) -> None:
    a = train(tmp_path / "a", every=7)
    b = train(tmp_path / "b", once(4, "on_train_batch_begin", job.draw), every=5)
    found = compare(a, b)
    assert found.divergence is not None
    assert (found.divergence.seq, found.divergence.field) == (stepped(4), "data.rng")
    a, b = train(tmp_path / "c", every=7), train(tmp_path / "d", once(12, "on_train_batch_begin", job.draw), every=5)
    assert "have no update in common" in " ".join(compare(a, b).unknown)


def _with_unused(run: Any) -> None:
    run.model.hidden.unused = torch.nn.Parameter(torch.zeros(3))


def _nudge_an_unused_weight(trainer: Any) -> None:
    trainer.model.hidden.unused.data += 1.0


def test_snapshots_alone_bound_the_parting_and_name_the_tensors(tmp_path: Path) -> None:
    """R38: no fingerprints of steps, no loss that differs; snapshots after every 4th batch tell."""
    a = train(tmp_path / "a", every=None, plant=_with_unused, snapshot_every=4)
    at_10 = once(10, "on_after_optimizer_step", _nudge_an_unused_weight)
    b = train(tmp_path / "b", at_10, every=None, plant=_with_unused, snapshot_every=4)
    seq, field, cause, _ = told(a, b)
    assert (seq, field) == (stepped(12), "snapshot.model.hidden.unused")
    assert "model.hidden.unused differs in the snapshots" in cause
    assert cause.endswith(f"it came about after transition {stepped(8)}, where all that was compared agrees")
    assert compare(a, b).snapshots == (stepped(8), stepped(12), ["model.hidden.unused"])


def test_a_learning_rate_that_changes_at_a_step_is_found_there(straight: Path, tmp_path: Path) -> None:
    """R38."""
    b = train(tmp_path / "b", once(10, "on_train_batch_begin", job.halve_the_rate))
    cause = "another learning rate from here on, though no setting differs: a schedule, or code that sets it"
    assert told(straight, b) == (stepped(10), "data.lr", cause, show(stepped(10)))
    found = diff(straight, b)
    assert found is not None
    assert (found.a, found.b, found.state) == ([0.05], [0.025], "step")


def test_an_operation_that_is_not_deterministic_is_told_by_what_agrees_before_it(tmp_path: Path) -> None:
    """R38: in the backward pass, and in the forward pass."""
    backward = [train(tmp_path / name, plant=job.uneven_backward) for name in "ab"]
    what = "samples, generators and loss agree and the gradients don't: what changes gradients (clipping, hooks)"
    cause = f"{what}, or {NOT_DETERMINISTIC}"
    assert told(*backward) == (stepped(1), "fingerprint.gradients", cause, repeat(stepped(1)))
    a, b = (train(tmp_path / name, plant=_uneven_from_the_sixth) for name in "cd")
    what = "samples, their content, generators and parameters agree and the loss doesn't"
    cause = f"{what}: the forward pass isn't the same, or {NOT_DETERMINISTIC}"
    assert told(a, b) == (stepped(6), "data.loss", cause, repeat(stepped(6)))


def _uneven_from_the_sixth(run: Any) -> None:
    run.trainer.on(*once(6, "on_train_batch_begin", lambda trainer: job.uneven_forward(run)))


def test_a_micro_batch_whose_gradients_were_lost_is_found_in_its_window(tmp_path: Path) -> None:
    """R38: windows of three; the gradients are cleared within the third."""
    a = train(tmp_path / "a", accumulation_steps=3)
    b = train(tmp_path / "b", once(8, "on_train_batch_end", job.clear_the_gradients), accumulation_steps=3)
    cause = (
        "samples, generators and losses of the window's 3 micro-batches agree and its gradients don't: "
        f"a micro-batch was lost to the window, or {NOT_DETERMINISTIC}"
    )
    seq, field, why, hint = told(a, b)
    assert (seq, field, why) == (stepped(9), "fingerprint.gradients", cause)
    assert hint.endswith("--repeat 3")


def test_a_micro_batch_without_a_backward_pass_is_named(tmp_path: Path) -> None:
    """R38."""

    def lossy(trainer: Any, batch: Any) -> None:
        outputs = trainer.train_step(batch)
        if trainer.global_forward_batches != lost:
            trainer.backward(outputs)
        trainer.step()
        trainer.zero_grad()

    lost = -1
    a = train(tmp_path / "a", accumulation_steps=3, batch_step_fn=lossy)
    lost = 7
    b = train(tmp_path / "b", accumulation_steps=3, batch_step_fn=lossy)
    cause = "B made no loss here: nothing was propagated back, so the micro-batch is lost to its window"
    assert told(a, b) == (stepped(8), "data.loss", cause, show(stepped(8)))


def test_a_window_that_closes_elsewhere_is_a_setting_or_a_lost_micro_batch(tmp_path: Path) -> None:
    a, b = train(tmp_path / "a", accumulation_steps=3), train(tmp_path / "b", accumulation_steps=2)
    seq, field, cause, _ = told(a, b)
    assert (seq, field) == (stepped(2), "data.closed")
    assert cause == "another accumulation_steps (3 in A, 2 in B)"


def test_a_run_restored_without_its_optimizer_s_moments_is_named_with_its_resume(
    straight: Path, tmp_path: Path
) -> None:
    """R38."""
    b = train(stopped_at(tmp_path / "b", 10), resume=True, plant=job.forget_the_moments)
    cause = (
        f"B was resumed at {stepped(10)}, and its first update makes something else of the same gradients: {MOMENTS}"
    )
    assert told(straight, b) == (stepped(11), "fingerprint.parameters", cause, verify(stepped(11), "B"))


def test_moments_that_were_not_restored_are_guessed_without_fingerprints(bare: Path, tmp_path: Path) -> None:
    """R38."""
    b = train(stopped_at(tmp_path / "b", 10, every=None), resume=True, every=None, plant=job.forget_the_moments)
    seq, field, cause, hint = told(bare, b)
    assert (seq, field, hint) == (stepped(12), "data.loss", verify(stepped(12), "B"))
    assert cause.startswith(f"B was resumed at {stepped(10)}, and the loss differs after the first update from there")
    assert MOMENTS in cause


def test_a_resume_long_before_is_mentioned_and_not_blamed(straight: Path, tmp_path: Path) -> None:
    b = stopped_at(tmp_path / "b", 5)
    train(b, once(17, "on_after_optimizer_step", job.flip_a_bit), resume=True)
    seq, field, cause, _ = told(straight, b)
    assert (seq, field) == (stepped(17), "fingerprint.parameters")
    assert cause.startswith("gradients and the optimizer's state agree")
    assert cause.endswith(f"B was resumed at {stepped(5)}, 11 steps before this one")


# -- what happens ------------------------------------------------------------------------------------------


def test_a_skipped_validation_is_found_where_it_would_have_been(tmp_path: Path) -> None:
    """R38."""
    a, b = (train(tmp_path / name, **_validating(name)) for name in "ab")
    cause = "A validates here and B doesn't: a validation was left out, or one was put in"
    seq = stepped(10) + 2  # after a sanity check and a validation
    assert told(a, b) == (seq, "to", cause, show(seq))


class _Every5th:
    """Says when a validation is due, and may pass one over: the settings don't tell."""

    def __init__(self, but: int) -> None:
        self.but = but

    def __call__(self, trainer: Any) -> bool:
        done = trainer.global_forward_batches
        return done % 5 == 0 and done != self.but


def _validating(name: str) -> dict[str, Any]:
    from tests.toys import Indexed, Mean

    loader = torch.utils.data.DataLoader(Indexed(4), 2)
    due = _Every5th(10 if name == "b" else 0)
    return {"validate_dataloaders": loader, "metrics": {"loss": Mean()}, "validate_every": due}


def test_a_validation_that_another_setting_skips_is_named_by_the_setting(tmp_path: Path) -> None:
    a, b = (train(tmp_path / str(n), **{**_validating("a"), "validate_every": n}) for n in (5, 10))
    assert told(a, b)[:3] == (stepped(5) + 1, "to", "another validate_every ([5] in A, [10] in B)")


def test_a_run_that_failed_or_was_stopped_where_the_other_goes_on(straight: Path, tmp_path: Path) -> None:
    def fail(trainer: Any) -> None:
        raise ValueError("the disk is gone")

    b = tmp_path / "b"
    with pytest.raises(ValueError, match="the disk is gone"):
        train(b, once(6, "on_before_backward", fail))
    found = compare(straight, b)
    assert (found.outcome, found.last) == ("beginning", stepped(6) - 1), "an end is no other history"
    longer = train(tmp_path / "c", once(3, "on_train_batch_begin", job.draw))
    assert told(longer, b)[:2] == (stepped(3), "data.rng")


# -- pure --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "kind"),
    [
        ("event", "event"),
        ("to", "event"),
        ("data.validate_due", "event"),
        ("data.ids", "ids"),
        ("data.samples", "ids"),
        ("state.samples", "counters"),
        ("data.late", "loss"),
        ("data.results.acc#dev", "results"),
        ("state.results", "results"),
        ("fingerprint.optimizers", "optimizers"),
        ("snapshot.model.0.weight", "parameters"),
        ("snapshot.generators.torch", "rng"),
        ("snapshot.scaler", "scaler"),
        ("rank-2.state.samples", "counters"),
        ("rank-1.data.rng", "rng"),
        ("chain", "counters"),
    ],
)
def test_every_field_stands_for_something(field: str, kind: str) -> None:
    assert kind_of(field) == kind


FIELDS = [
    *("event", "data.ids", "data.rng", "data.loss", "data.lr", "data.results.x", "state.samples", "chain"),
    *(f"fingerprint.{part}" for part in ("batch", "gradients", "parameters", "buffers", "optimizers", "scaler")),
]


@pytest.mark.parametrize("field", FIELDS)
def test_a_cause_and_a_command_are_found_for_every_field_whatever_is_known(field: str) -> None:
    """R38: nothing known, everything known, a resume right before."""
    found = Divergence(42, field, 1, 2, "", state="step")
    agreeing = ["ids", "batch", "rng", "loss", "gradients", "optimizers"]
    for known in (
        Known(),
        Known(agree=agreeing, before=["parameters"], deterministic=True, window=4),
        Known(resume=Resume(of=1, at=40, steps=0, updates=0), agree=agreeing),
        Known(resume=Resume(of=0, at=20, steps=9, updates=9, unrestored="it is missing")),
        Known(settings={"seed": (1, 2), "precision": ("fp32", "bf16")}, code=["a.py", "b.py"], runs=("a b", "c;d")),
        Known(environment={"torch": ("1", "2"), "threads": (1, 2)}, code=["a.py"]),
        Known(events=("Stopped", "Stepped"), reasons=("enough", "")),
    ):
        told = explained(found, known)
        assert told.cause or kind_of(field) == "counters"
        assert told.hint.startswith("tachograph ")
        assert "{" not in told.hint + told.cause
        assert (told.seq, told.field, told.state) == (42, field, "step")
    assert "'a b'" in explained(found, Known(settings={"seed": (1, 2)}, runs=("x", "a b"))).hint


def test_a_re_executed_run_is_explained_with_the_run_s_directory_in_the_command() -> None:
    found = Divergence(42, "data.loss", 0.25, 0.5, "")
    names = {"names": ("the recorded run", "this one"), "runs": ("runs/a", "runs/a")}
    told = explained(found, Known(**names, agree=["ids", "rng", "batch"], before=["parameters"]))  # type: ignore[arg-type]
    assert told.cause.endswith(NOT_DETERMINISTIC)
    assert told.hint == "tachograph verify runs/a --trainer module:function --start 42 --stop 42 --repeat 3"


def test_another_machine_alone_is_mentioned_and_not_blamed() -> None:
    found = Divergence(42, "data.loss", 0.25, 0.5, "")
    told = explained(found, Known(environment={"host": ("node-1", "node-2")}, agree=["ids", "rng"]))
    assert told.cause.startswith("samples and generators agree")
    assert told.cause.endswith("; they ran on two machines, node-1 and node-2")
    differing = {"host": ("node-1", "node-2"), "cpu": ("old", "new")}
    told = explained(found, Known(environment=differing))
    assert told.cause.startswith("another processor (old in the first run, new in the second)")


def test_a_resume_that_may_be_the_cause_is_told_beside_another_environment() -> None:
    found = Divergence(42, "data.rng", 1, 2, "")
    resume = Resume(of=1, at=40, steps=0, updates=0)
    told = explained(found, Known(environment={"torch": ("1", "2")}, resume=resume))
    assert told.cause.startswith("another version of torch (1 in the first run, 2 in the second)")
    assert "; but the second was resumed at 40, and its generators don't go on where they were" in told.cause


# -- runs that belong together -----------------------------------------------------------------------------


def forked(parent: Path, run_dir: Path, *listeners: Any, **settings: Any) -> Path:
    """A run of its own that goes on from another one's last snapshot."""
    return train(run_dir, *listeners, resume=parent, **settings)


def test_a_fork_without_a_change_goes_on_as_its_parent_does(straight: Path, tmp_path: Path) -> None:
    """R38: what came before the fork's first transition is its parent's, and the chains say so."""
    b = forked(stopped_at(tmp_path / "parent", 10), tmp_path / "b")
    found = compare(straight, b)
    assert (found.outcome, found.first) == ("equal", stepped(10) + 1)


def test_a_fork_with_another_setting_parts_from_its_parent_by_the_setting(straight: Path, tmp_path: Path) -> None:
    """R38."""
    parent = stopped_at(tmp_path / "parent", 10)
    b = forked(parent, tmp_path / "b", optimizer=lambda p: torch.optim.SGD(p, lr=0.025, momentum=0.9))
    assert told(straight, b)[:3] == (stepped(11), "data.lr", "another learning rate (0.05 in A, 0.025 in B)")


def test_a_fork_with_a_change_that_no_setting_tells_is_named_as_a_fork(straight: Path, tmp_path: Path) -> None:
    """R38."""
    parent = stopped_at(tmp_path / "parent", 10)
    b = forked(parent, tmp_path / "b", once(11, "on_train_batch_begin", job.draw))
    change = "a change that no setting tells: another batch, other data, other code"
    cause = f"B goes on from {stepped(10)} as a fork: {change}"
    assert told(straight, b) == (stepped(11), "data.rng", cause, "tachograph show B")


def test_a_fork_and_a_run_that_ended_before_it_have_nothing_in_common(straight: Path, tmp_path: Path) -> None:
    b = forked(stopped_at(tmp_path / "parent", 10), tmp_path / "b")
    short = stopped_at(tmp_path / "short", 3)
    found = compare(short, b)
    assert (found.outcome, found.divergence, found.known) == ("apart", None, None)


def test_what_a_fork_says_was_done_by_hand_is_quoted(straight: Path, tmp_path: Path) -> None:
    """R38: two forks of one point, of which one has another learning rate."""
    forks = []
    for name, rate in (("b", 0.01), ("c", None)):
        trainer = Run(n=40, noise=False, n_epochs=1, optimizer=job.momentum).trainer
        trainer.rewind(straight, seq=stepped(11))
        if rate is not None:
            trainer.set_learning_rate(rate)
        trainer.run_dir = tmp_path / name
        trainer.run()
        forks.append(tmp_path / name)
    cause = f"A goes on from {fetched(11)} as a fork: learning rate set to 0.01"
    assert told(forks[0], straight)[:3] == (stepped(11), "data.lr", cause)
    seq, field, cause, _ = told(*forks)
    assert (seq, field) == (stepped(11), "data.lr")
    assert diff(straight, forks[1]) is None


# -- the search --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seal", [None, 5])
def test_the_first_transition_that_differs_is_found_wherever_it_is(seal: int | None, tmp_path: Path) -> None:
    """R38: in any file of a journal, compressed ones included, and whichever side was resumed before it."""
    settings: dict[str, Any] = {"seal_records": seal} if seal else {}
    a = ranks(tmp_path / "a", 40, **settings)
    assert (len(list(a.glob("journal/rank-0/*.jsonl*"))) > 1) == (seal is not None)
    for seq in STEPS:
        b, c = tmp_path / f"b{seq}", tmp_path / f"c{seq}"
        other = with_loss(run(40), seq, 77.0)
        life(b, 0, other, **settings)
        life(c, 0, other[:seq], **settings)
        life(c, 0, other[max(seq - 3, 1) :], 1, at(c, 0, max(seq - 3, 1)), **settings)
        assert [(found.seq, found.field) for found in (diff(a, b), diff(c, a)) if found] == [(seq, "data.loss")] * 2
        assert diff(b, c) is None

"""`MoreEvaluate`: a second evaluator with a rhythm of its own, which training doesn't notice."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from tachograph.drivers import StubDriver
from tachograph.engine import EMA, Callback, LoadBestModel, MoreEvaluate, MoreEvaluateCallback, Trainer
from tachograph.states.errors import CallerError
from tests.test_checkpoint import Error, learning, names
from tests.test_journal_support import in_child
from tests.toys import Run, Scores, Sum, equal, stub, validated


class Weight:
    """A metric: the weight that a stub was evaluated with."""

    def __init__(self) -> None:
        self.reset()

    def update(self, weight: int) -> None:
        self.weight = weight

    def compute(self) -> int:
        return self.weight

    def reset(self) -> None:
        self.weight = 0


class Logged:
    """Takes what reaches loggers: (batch, values)."""

    def __init__(self, trainer: Trainer) -> None:
        self.points: list[tuple[int, dict[str, Any]]] = []
        trainer.on("on_log", lambda t, values: self.points.append((t.global_forward_batches, values)))

    @property
    def batches(self) -> list[int]:
        return [batch for batch, _ in self.points]


def more(
    about: dict[str, Any], batches: Any = (1, 2, 3, 4), driver: StubDriver | None = None, **settings: Any
) -> tuple[Trainer, Logged, MoreEvaluate]:
    callback = MoreEvaluate([7, 8], {"weight": Weight()}, **about)
    trainer = stub(batches, driver, callbacks=callback, **{"n_epochs": 3, "seed": 3, **settings})
    return trainer, Logged(trainer), callback


# -- when --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("every", "batches"),
    [
        (-1, [4, 8, 12]),
        (-2, [8]),
        (3, [3, 6, 9, 12]),
        ((5, -1), [4, 5, 8, 10, 12]),
        ([4, -1], [4, 8, 12]),
        ("2 updates", [4, 8, 12]),
        ("0.5 epoch", [2, 4, 6, 8, 10, 12]),
        (lambda trainer: trainer.global_forward_batches in (1, 7), [1, 7]),
    ],
)
def test_it_evaluates_in_the_forms_that_validations_have(every: Any, batches: list[int]) -> None:
    """K9: after n batches, epochs, updates, parts of an epoch, or when a function says so; twice at no point."""
    trainer, logged, callback = more({"evaluate_every": every}, accumulation_steps=2)
    trainer.run()
    assert logged.batches == batches
    assert callback.count == len(batches)
    assert callback.results == logged.points[-1][1]


def test_it_evaluates_when_so_much_time_has_passed() -> None:
    """K9."""
    trainer, logged, _ = more({"evaluate_every": "10s"})
    now = [0.0]
    trainer.world = attrs.evolve(trainer.world, timer=lambda: now[0])
    trainer.on("on_train_batch_begin", lambda t, batch, indices: now.__setitem__(0, now[0] + 4.0))
    trainer.run()
    assert logged.batches == [3, 6, 9, 12]


@pytest.mark.parametrize(("larger", "epochs"), [(True, [1, 3, 5]), (False, [1, 2, 6])])
def test_it_evaluates_whenever_what_it_watches_is_better_than_ever(larger: bool, epochs: list[int]) -> None:
    """K9, MO4."""
    callback = MoreEvaluateCallback(
        [7], {"weight": Weight()}, watch_monitor="score", watch_monitor_larger_better=larger, num_eval_sanity_batch=0
    )
    trainer = validated([3.0, 1.0, 4.0, 1.0, 5.0, 0.0], callbacks=callback)
    logged = Logged(trainer)
    trainer.run()
    assert logged.batches == epochs
    assert MoreEvaluateCallback is MoreEvaluate


def test_its_results_are_those_of_the_weights_it_is_at_and_reach_the_loggers() -> None:
    """K9: what is no number, and what is kept to itself, doesn't."""

    class Several(Sum):
        def compute(self) -> dict[str, Any]:
            return {**super().compute(), "_hidden": 1, "many": [1, 2]}

    callback = MoreEvaluate({"test": [7, 8]}, {"m": Several(), "weight": Weight()}, input_mapping=lambda batch: batch)
    trainer = stub(callbacks=callback)
    logged, held = Logged(trainer), []
    trainer.on("on_train_epoch_end", lambda t: held.append(t.driver.weight))
    trainer.run()
    assert [values for _, values in logged.points] == [
        {"sum#m#test": 15, "n#m#test": 2, "weight#test": weight} for weight in held
    ]
    assert callback.results["many#m#test"] == [1, 2]


@pytest.mark.parametrize(
    ("about", "said"),
    [
        ({"evaluate_every": 3, "watch_monitor": "x"}, "evaluate_every and watch_monitor exclude each other"),
        ({"evaluate_every": None}, "MoreEvaluate evaluates when"),
        ({"evaluate_every": 0}, "evaluate_every must be n > 0"),
        ({"topk": 2}, "topk needs topk_monitor"),
        ({"num_eval_sanity_batch": -2}, "num_eval_sanity_batch must be -1"),
        ({"save_object": "everything"}, "save_object must be one of"),
        ({"watch_monitor": 3}, "monitor must be a key of the results or a function, not 3"),
    ],
)
def test_what_it_cannot_use_is_refused_when_it_is_built(about: dict[str, Any], said: str) -> None:
    with pytest.raises(CallerError, match=said):
        MoreEvaluate([1], {"m": Sum()}, **about)


def test_what_is_wrong_with_its_evaluator_shows_when_the_trainer_is_built_or_begins(run_dir: Path) -> None:
    """MO5, K9: not hours later."""
    with pytest.raises(CallerError, match=r"Evaluator has no argument 'seperator'\. Did you mean 'separator'"):
        stub(callbacks=MoreEvaluate([1], {"m": Sum()}, seperator="/"))
    with pytest.raises(CallerError, match="MoreEvaluate looks at validations, and this trainer has none"):
        stub(callbacks=MoreEvaluate([1], {"m": Sum()}, watch_monitor="x"))
    with pytest.raises(CallerError, match="MoreEvaluate with topk needs a folder"):
        stub(callbacks=MoreEvaluate([1], {"m": Sum()}, topk=1, topk_monitor="x"))
    for about in ({"watch_monitor": "scores"}, {"topk": 1, "topk_monitor": "m2"}):
        trainer = validated([1.0], callbacks=MoreEvaluate([1], {"m": Sum()}, **about), run_dir=run_dir)
        with pytest.raises(CallerError, match="isn't among the results"):
            trainer.run()
        assert trainer.trainer_state.global_forward_batches == 0
        run_dir = run_dir.with_name("other")


# -- what training notices ---------------------------------------------------------------------------------


def test_training_does_not_notice_it_by_a_bit(tmp_path: Path) -> None:
    """K9: with noise in its data and dropout in the model: weights, generators and chain."""

    def evaluating(run: Run) -> Any:
        other = Run(run_dir=None, noise=True)
        return [MoreEvaluate({"more": other.loader}, {"m": Error()}, evaluate_every=2)]

    plain = learning(lambda run: [], tmp_path / "plain")
    plain.run()
    run = learning(evaluating, tmp_path / "run")
    logged = Logged(run.trainer)
    run.run()
    assert len(logged.points) == 9
    assert equal(run.weights, plain.weights)
    assert run.generators == plain.generators
    assert run.chain == plain.chain
    assert run.model.training


def test_where_evaluations_use_an_average_it_does_too(run_dir: Path) -> None:
    def callbacks(run: Run) -> Any:
        return [EMA(0.5), MoreEvaluate({"dev": run.dev}, {"error": Error()}, evaluate_every=3)]  # type: ignore[attr-defined]

    def build(run: Run) -> Any:
        run.dev = [next(iter(Run(run_dir=None, noise=False).loader))]  # type: ignore[attr-defined]
        return callbacks(run)

    run = learning(build, run_dir)
    validations: list[float] = []
    run.trainer.on("on_validate_end", lambda t, results: validations.append(results["error#dev"]))
    logged = Logged(run.trainer)
    run.run()
    assert [values["error#dev"] for _, values in logged.points] == validations


# -- the best of its results -------------------------------------------------------------------------------


def test_the_best_of_its_results_are_saved_beside_those_of_a_checkpoint(tmp_path: Path) -> None:
    """K9, K3: its own monitor, its own folder."""
    scores = [3.0, 1.0, 4.0, 1.0, 5.0]
    metric = Scores(scores)
    about = {"save_object": "weights", "folder": tmp_path / "best"}
    callback = MoreEvaluate(
        [1],
        {"f": metric},
        topk=2,
        topk_monitor="f",
        topk_larger_better=False,
        num_eval_sanity_batch=0,
        save_kwargs=about,
    )
    trainer = validated(scores, callbacks=callback, run_dir=tmp_path / "run")
    metric.trainer = trainer
    trainer.run()
    (folder,) = (tmp_path / "best").iterdir()
    assert folder.name.endswith("-MoreEvaluate")
    assert names(folder) == ["weights-epoch_2-batch_2-f_1.0", "weights-epoch_4-batch_4-f_1.0"]


# -- resumes -----------------------------------------------------------------------------------------------


class Points:
    """Where loggers write: a file, since processes come and go."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def callback(self) -> Any:
        path = self.path

        class Logger(Callback):
            outside_effects = True

            def on_log(self, trainer: Any, values: dict[str, Any]) -> None:
                with path.open("a") as file:
                    file.write(f"{trainer.global_forward_batches} {values['weight']}\n")

        return Logger()

    @property
    def lines(self) -> list[str]:
        return self.path.read_text().splitlines()


def pointed(run_dir: Path, points: Points, **settings: Any) -> tuple[Trainer, MoreEvaluate]:
    callback = MoreEvaluate(
        [7, 8], {"weight": Weight()}, evaluate_every=(2, -1), topk=2, topk_monitor="weight", num_eval_sanity_batch=1
    )
    trainer = stub(
        range(5),
        callbacks=[callback, points.callback()],
        n_epochs=3,
        run_dir=run_dir,
        seed=3,
        snapshot_every=4,
        **settings,
    )
    return trainer, callback


def test_killed_after_any_batch_no_evaluation_is_lost_and_none_is_told_twice(
    tmp_path: Path, proven: Callable[[int], None]
) -> None:
    """K9: after SIGKILL; its count, its results and its best are those of the straight run."""
    straight_points = Points(tmp_path / "straight.txt")
    straight, callback = pointed(tmp_path / "straight", straight_points)
    straight.run()
    assert [int(line.split()[0]) for line in straight_points.lines] == [2, 4, 5, 6, 8, 10, 12, 14, 15]
    for n in range(1, 16, 2):
        run_dir, points = tmp_path / str(n), Points(tmp_path / f"{n}.txt")
        points.path.touch()

        def work() -> None:
            trainer, _ = pointed(run_dir, points)  # noqa: B023
            trainer.on("step -> fetch", lambda t: os.kill(os.getpid(), 9) if t.global_forward_batches == n else None)  # noqa: B023
            trainer.run()

        os.waitpid(in_child(work), 0)
        again, resumed = pointed(run_dir, points)
        again.run(resume_from="auto")
        assert points.lines == straight_points.lines, n
        assert resumed.state_dict() == callback.state_dict()
        assert names(run_dir / "checkpoints-MoreEvaluate") == names(tmp_path / "straight" / "checkpoints-MoreEvaluate")
        assert again.journal.chain == straight.journal.chain  # type: ignore[union-attr]
    proven(8)


@pytest.mark.parametrize("how", ["resumed", "second run"])
def test_an_evaluation_that_a_signal_interrupts_is_done_when_the_run_goes_on(tmp_path: Path, how: str) -> None:
    """K9: the run ends at once, and nothing is lost."""
    straight_points, points = Points(tmp_path / "straight.txt"), Points(tmp_path / "points.txt")
    straight, _ = pointed(tmp_path / "straight", straight_points)
    straight.run()
    trainer, callback = pointed(tmp_path / "run", points)
    evaluated = []

    def strike(batch: Any) -> None:
        evaluated.append(batch)
        if len(evaluated) == 6:
            trainer.interrupt(signal.SIGINT)

    def listen(trainer: Any) -> None:
        callback.evaluator.before_batch = strike  # type: ignore[union-attr]

    trainer.on("on_train_begin", listen)
    assert trainer.run(catch_KeyboardInterrupt=True).state == "exception"
    assert callback.state_dict()["due"]
    told = len(points.lines)
    assert told < 9
    if how == "resumed":
        again, callback = pointed(tmp_path / "run", points)
        again.run(resume_from="auto")
    else:
        again = trainer
        again.run()
    assert points.lines == straight_points.lines
    assert not callback.state_dict()["due"]


@pytest.mark.parametrize("order", [1, -1])
def test_an_evaluation_that_is_made_up_for_is_that_of_the_weights_that_were_trained(order: int) -> None:
    """K9, K4: though the run had ended with the best ones in the model, and whoever comes first."""

    def build() -> tuple[Trainer, MoreEvaluate]:
        more = MoreEvaluate([7, 8], {"weight": Weight()}, evaluate_every=2, num_eval_sanity_batch=0)
        callbacks = [more, LoadBestModel("sum", larger_better=False)][::order]
        metrics = {"metrics": {"sum": Sum()}, "validate_dataloaders": [1], "validate_every": 1}
        return stub(range(5), callbacks=callbacks, n_epochs=1, seed=3, **metrics), more

    straight, _ = build()
    heard = Logged(straight)
    straight.run()
    trainer, more = build()
    logged = Logged(trainer)

    def strike(batch: Any) -> None:
        if more.count == 1:
            trainer.interrupt(signal.SIGINT)

    trainer.on("on_train_begin", lambda t: setattr(more.evaluator, "before_batch", strike))
    assert trainer.run(catch_KeyboardInterrupt=True).state == "exception"
    assert more.state_dict()["due"]
    more.evaluator.before_batch = None  # type: ignore[union-attr]
    trainer.run()
    assert [values for _, values in logged.points] == [values for _, values in heard.points]


def test_it_can_be_added_to_a_run_that_had_none(run_dir: Path) -> None:
    stub(n_epochs=1, run_dir=run_dir).run()
    trainer = stub(callbacks=MoreEvaluate([7], {"weight": Weight()}), n_epochs=3, run_dir=run_dir)
    logged = Logged(trainer)
    trainer.run(resume_from="auto")
    assert logged.batches == [6, 9]

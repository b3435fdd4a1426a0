"""Evaluations over ranks: what is scored, and what the ranks make of it. As a program: a server of such jobs."""

from __future__ import annotations

import os
import signal
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torchmetrics
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset

import tachograph.drivers.ddp  # noqa: F401 - here, and not in every rank
from tachograph.drivers import rank_zero_call
from tachograph.drivers.metrics import Accuracy, ClassifyFPreRecMetric, Element, Metric
from tachograph.engine import Evaluator, Events, Trainer
from tachograph.states.errors import CallerError
from tests.jobs.exact_job import Heard, Net, NoisyLoss, Points, outcome
from tests.jobs.ranks import serve_ranks

SIZES = (1, 3, 5, 21)


class Scored(Dataset[dict[str, torch.Tensor]]):
    """Samples with a value, a class and scores of classes; nothing is drawn."""

    def __init__(self, n: int) -> None:
        made = torch.Generator().manual_seed(n)
        self.values = torch.randn(n, generator=made, dtype=torch.float64)
        self.scores = torch.randn(n, 3, generator=made)
        self.others = torch.randn(n, generator=made, dtype=torch.float64)
        self.classes = torch.randint(0, 3, (n,), generator=made)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        scores = {"value": self.values[i], "other": self.others[i], "pred": self.scores[i], "target": self.classes[i]}
        return {**scores, "id": torch.tensor(i)}


class Passing(nn.Module):
    """Returns what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, id: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"id": id, "weight": self.weight.detach()}


class Ids(Metric):
    """All sample ids that were scored, in the order of the ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def update(self, id: torch.Tensor) -> None:
        self.seen += id.tolist()

    def get_metric(self) -> dict[str, Any]:
        every = [i for seen in self.all_gather_object(self.seen) for i in seen]
        return {"ids": sorted(every), "count": len(every)}

    def reset(self) -> None:
        self.seen = []


class Elements(Metric):
    """Elements of every kind of joining."""

    sum: Element
    count: Element
    most: Element
    least: Element

    def __init__(self) -> None:
        super().__init__()
        self.register_element("sum", 0.0, "sum")
        self.register_element("count", 0, "sum")
        self.register_element("most", float("-inf"), "max")
        self.register_element("least", float("inf"), "min")

    def update(self, value: torch.Tensor) -> None:
        self.sum += value.sum()
        self.count += len(value)
        self.most = max(self.most.get_scalar(), float(value.max()))  # type: ignore[assignment]
        self.least = min(self.least.get_scalar(), float(value.min()))  # type: ignore[assignment]

    def get_metric(self) -> dict[str, float]:
        return {
            "mean": float(self.sum) / float(self.count),
            "most": self.most.get_scalar(),
            "least": self.least.get_scalar(),
        }


class Bare:
    """A metric that knows of no ranks."""

    def reset(self) -> None:
        self.held: list[float] = []

    def update(self, value: torch.Tensor) -> None:
        self.held.append(float(value.sum()))

    def compute(self) -> dict[str, float]:
        return {"sum": sum(self.held), "batches": len(self.held)}


class Joinable(Bare):
    """The same, with what joins it."""

    def gather_with(self, gather: Any, distributed: bool) -> None:
        self.gather = gather if distributed else lambda value: [value]

    def compute(self) -> dict[str, float]:
        every = [one for held in self.gather(self.held) for one in held]
        return {"sum": sum(sorted(every)), "batches": len(every)}


class Stacked(torchmetrics.Metric):
    """A metric of torchmetrics' kind with a list that isn't reduced, as its retrieval and text metrics have."""

    def __init__(self) -> None:
        super().__init__()
        self.add_state("held", [], dist_reduce_fx=None)
        self.syncs = 0

    def sync(self, *args: Any, **kwargs: Any) -> None:
        before = self._is_synced
        super().sync(*args, **kwargs)
        self.syncs += self._is_synced and not before

    def update(self, value: torch.Tensor) -> None:
        self.held.append(value)

    def compute(self) -> dict[str, Any]:
        return {"entries": len(self.held), "sum": torch.cat(self.held).sort().values.sum()}


class Ranked(Bare):
    """One that only says that it can be joined."""

    def gather_with(self, gather: Any, distributed: bool) -> None: ...


class Holding(Bare):
    """An object of the user's that holds a metric of torchmetrics."""

    def __init__(self) -> None:
        self.inner = [torchmetrics.SumMetric()]

    def reset(self) -> None:
        self.inner[0].reset()

    def update(self, value: torch.Tensor) -> None:
        self.inner[0].update(value)

    def compute(self) -> Any:
        return self.inner[0].compute()


class OwnPart(DistributedSampler[Any]):
    """A sampler that yields one rank's part, as torch's does, and pads nothing."""

    def __init__(self, n: int, rank: int, world: int) -> None:
        super().__init__(Scored(n), world, rank)
        self.ids = range(rank, n, world)

    def __iter__(self) -> Any:
        return iter(self.ids)

    def __len__(self) -> int:
        return len(self.ids)


class Stream(IterableDataset[dict[str, torch.Tensor]]):
    """The same samples without an index; `parted`: each rank is given its part of them."""

    def __init__(self, n: int, parted: bool) -> None:
        self.data, self.parted = Scored(n), parted

    def __iter__(self) -> Any:
        first, step = (int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])) if self.parted else (0, 1)
        for i in range(first, len(self.data), step):
            yield self.data[i]


def loader(n: int, **options: Any) -> DataLoader[Any]:
    return DataLoader(Scored(n), **{"batch_size": 2, **options})


def joined_metrics() -> dict[str, Any]:
    """Metrics of every kind that is joined over ranks; torchmetrics' count in double precision."""
    three = {"task": "multiclass", "num_classes": 3}
    scores = {"preds": "pred"}
    two: list[Any] = [torchmetrics.Accuracy(**three), torchmetrics.F1Score(**three)]
    theirs: dict[str, Any] = {
        "tm": (torchmetrics.MeanMetric(), {}),
        "auroc": (torchmetrics.AUROC(**three), scores),
        "both": (torchmetrics.MetricCollection(two), scores),
        "each step": (torchmetrics.SumMetric(dist_sync_on_step=True), {}),
        "list": (Stacked(), {}),
        "pearson": (torchmetrics.PearsonCorrCoef(), {"preds": "value", "target": "other"}),
        "wrapped": (torchmetrics.MinMaxMetric(torchmetrics.MeanMetric().set_dtype(torch.float64)), {}),
    }
    for metric, _ in theirs.values():
        metric.set_dtype(torch.float64)
    ours = {"mean": "value", "ids": Ids(), "elements": Elements(), "own": Accuracy(), "user's": Joinable()}
    return {**ours, "f": ClassifyFPreRecMetric(only_gross=False), **theirs}


# -- what is done ------------------------------------------------------------------------------------------


def matrix(driver: str) -> dict[str, Any]:
    """Evaluate data of every size with every metric, twice, in parts, and predict on it."""
    found: dict[str, Any] = {}
    for n in SIZES:
        evaluator = Evaluator(Passing(), loader(n), joined_metrics(), driver, verbose=0)
        found[f"{n}"] = evaluator.run()
        found[f"{n} again"] = evaluator.run()
        found[f"{n} limited"] = evaluator.run(3)
        found[f"{n} by half"] = evaluator.run(0.5)
        found[f"{n} predicted"] = [batch["id"].tolist() for batch in evaluator.predict(loader(n, batch_size=3))]
    found["syncs"] = evaluator.metrics["list"].syncs
    return found


def ways(driver: str) -> dict[str, Any]:
    """Evaluate seven samples that come to the ranks in other ways, and by metrics that can't be joined."""
    many = driver != "torch"
    rank, world = int(os.environ.get("RANK", 0)) * many, int(os.environ.get("WORLD_SIZE", 1)) if many else 1
    shared = DistributedSampler(Scored(7), world, rank, shuffle=False)
    own = OwnPart(7, rank, world)

    def run(data: Any, metrics: Any = None, **settings: Any) -> Any:
        metrics = metrics or {"ids": Ids(), "tm": torchmetrics.SumMetric(), "mean": "value"}
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            results = Evaluator(Passing(), data, metrics, driver, verbose=0, **settings).run()
        return [results, sorted({str(one.message) for one in said if "rank" in str(one.message)})]

    streams = {True: DataLoader(Stream(7, many), batch_size=2), False: DataLoader(Stream(7, False), batch_size=2)}
    every = {"bare": Bare(), "ids": Ids(), "tm": torchmetrics.SumMetric(), "mean": "value"}
    return {
        "DistributedSampler": run(loader(7, sampler=shared)),
        "own sampler": run(loader(7, sampler=own)),
        "stream that knows": run(streams[True]),
        "stream that doesn't": run(streams[False]),
        "each its own": run(loader(7), use_dist_sampler=False),
        "workers": run(loader(7, num_workers=2)),
        "can't be joined": run(loader(7), every),
        "can't be joined, DistributedSampler": run(loader(7, sampler=shared), {"bare": Bare()}),
        "can't be joined, stream": run(streams[False], {"bare": Bare()}),
        "holds others": run(loader(7), {"holds": Holding()}),
        "own step": run(loader(7), {"own": Ranked()}),
    }


class Affine(nn.Module):
    """A model that is worth sharing out."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(3, 3)

    def forward(self, id: torch.Tensor, pred: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"id": id, "out": self.layer(pred).double()}


def sharded(driver: str) -> dict[str, Any]:
    """Evaluate a model that every rank must call equally often, on data whose length is known, and isn't."""
    found: dict[str, Any] = {}
    for n in SIZES:
        for kind, data in {"index": loader(n), "stream": DataLoader(Stream(n, False), batch_size=2)}.items():
            evaluator = Evaluator(Affine(), data, {"ids": Ids(), "mean": "out"}, driver, verbose=0)
            found[f"{n} {kind}"] = evaluator.run()
            found[f"{n} {kind} predicted"] = [batch["id"].tolist() for batch in evaluator.predict(data)]
    return found


class Failing(Ids):
    """A metric that can't score a sample of the second batch."""

    def update(self, id: torch.Tensor) -> None:
        if 3 in id.tolist():
            raise ValueError("no score")
        super().update(id)


def failing(driver: str) -> None:
    """Evaluate without a trainer; the second rank fails."""
    Evaluator(Passing(), loader(7), {"ids": Failing()}, driver, verbose=0).run()


# -- in a trainer ------------------------------------------------------------------------------------------


class Drifting(Net):
    """A classifier whose training depends on a buffer that each rank moves by itself."""

    def __init__(self) -> None:
        super().__init__(overflows=False)
        self.register_buffer("drift", torch.zeros(6))

    def forward(self, x: torch.Tensor, y: torch.Tensor, id: torch.Tensor) -> dict[str, torch.Tensor]:
        if self.training:
            self.drift.mul_(0.5).add_(x.detach().mean(0))
        return super().forward(x + self.drift, y, id)


class MeanLoss(NoisyLoss):
    """A metric that draws from every generator, and is joined over ranks."""

    def gather_with(self, gather: Any, distributed: bool) -> None:
        self.gather = gather if distributed else lambda value: [value]

    def compute(self) -> float:
        every = sorted(loss for losses in self.gather(self.losses) for loss in losses)
        return sum(every) / len(every)


class Own(MeanLoss):
    """One whose numbers are its rank's only; nobody knows."""

    def gather_with(self, gather: Any, distributed: bool) -> None:
        self.gather = lambda value: [value]


def trainer_of(job: dict[str, Any], **settings: Any) -> Trainer:
    """A trainer of 6 steps of 2 ranks an epoch, for 2 epochs, which validates on 3 batches."""
    torch.manual_seed(7)
    model = Drifting()
    torch.manual_seed(1000 + job["rank"])
    given: dict[str, Any] = {
        "validate_dataloaders": DataLoader(Points(6, 2), batch_size=2, shuffle=True),
        "metrics": {"loss": MeanLoss()},
        "n_epochs": 2,
        "seed": 11,
        "progress_bar": None,
        **settings,
    }
    if given["metrics"] is None:
        del given["metrics"], given["validate_dataloaders"]
    data = DataLoader(Points(24, 1), batch_size=2, shuffle=True)
    return Trainer(model, job.get("driver", "torch_ddp"), data, torch.optim.Adam(model.parameters(), lr=0.02), **given)


def trace(job: dict[str, Any], sanity: int = 2, **settings: Any) -> dict[str, Any]:
    """Train, and return what training did on this rank, and the results of validations."""
    listeners = settings.pop("listeners", {})
    trainer = trainer_of(job, **settings)
    losses: list[Any] = []
    results: list[Any] = []
    trainer.on(Events.on_before_backward, lambda trainer, outputs: losses.append(outputs["loss"].item()))
    trainer.on(Events.on_validate_end, lambda trainer, held: results.append(held))
    for moment, listener in listeners.items():
        trainer.on(moment, listener)
    trainer.run(num_eval_sanity_batch=sanity)
    ended = outcome(trainer)
    model = {name: getattr(held, "to_local", lambda held=held: held)() for name, held in ended["model"].items()}
    return {"results": results, "trained": {"model": model, "generators": ended["generators"], "losses": losses}}


def neutral(job: dict[str, Any]) -> dict[str, Any]:
    """Train with evaluations of every kind, and without any."""
    found: dict[str, Any] = {}
    for name, settings in EVALUATED.items():
        found[name] = trace(job, accumulation_steps=2, **settings(job))
    return found


def _by_hand(job: dict[str, Any]) -> dict[str, Any]:
    """Evaluate by hand in the midst of a run, on all ranks, and on rank 0 alone."""
    held: list[Any] = []

    @rank_zero_call
    def alone(trainer: Any) -> Any:
        try:
            return trainer.validate()
        except CallerError as error:
            return str(error)

    def listener(trainer: Any) -> None:
        if trainer.trainer_state.global_forward_batches % 3 == 0:
            other = DataLoader(Points(3, 3), batch_size=2)
            tested = trainer.test(other, {"n": Counted(), "loss": "loss"})
            outputs = trainer.predict(other)
            held.append([trainer.validate(), alone(trainer), tested, len(outputs)])

    job["by hand"] = held
    return {"validate_every": -100, "listeners": {Events.on_train_batch_end: listener}}


EVALUATED: dict[str, Any] = {
    "never": lambda job: {"metrics": None, "sanity": 0},
    "sanity check": lambda job: {"validate_every": -100},
    "each epoch": lambda job: {"sanity": 0},
    "each step": lambda job: {"validate_every": 1},
    "can't be joined": lambda job: {"validate_every": 1, "metrics": {"loss": NoisyLoss()}},
    "differs": lambda job: {"validate_every": 3, "metrics": {"loss": Own()}},
    "training mode": lambda job: {"validate_every": 3, "model_use_eval_mode": False},
    "by hand": _by_hand,
}


class Counted(Ids):
    """How many samples were scored."""

    def get_metric(self) -> dict[str, Any]:
        return {"count": super().get_metric()["count"]}


def in_trainer(job: dict[str, Any]) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = neutral(job)
    return {**found, "held by hand": job["by hand"]}


class Struck(MeanLoss):
    """A metric in whose midst a signal comes to its rank, or a batch can't be scored."""

    def __init__(self, strike: Callable[[int], None]) -> None:
        self.strike = strike

    def update(self, loss: torch.Tensor) -> None:
        super().update(loss)
        self.strike(len(self.losses))


def struck(job: dict[str, Any]) -> dict[str, Any]:
    """Train once, or go on; in the validation after the fourth batch, something strikes one rank in one of its batches.

    That validation has five batches: the first rank has three of them, the second one two.
    """

    def strike(batch: int) -> None:
        if (job["rank"], batch) != tuple(job.get("at", ())) or trainer.global_forward_batches != 4:
            return
        if job["how"] == "fails":
            raise ValueError("no score")
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.02)

    trainer = trainer_of(
        job,
        validate_dataloaders=DataLoader(Points(9, 2), batch_size=2),
        metrics={"loss": Struck(strike)},
        validate_every=4,
        run_dir=job["run_dir"],
        snapshot_every=None,
        accumulation_steps=3,
        callbacks=[Heard()],
    )
    trainer.run(resume_from="auto")
    return outcome(trainer)


WORK: dict[str, Callable[[dict[str, Any]], Any]] = {
    "matrix": lambda job: matrix("torch_ddp"),
    "ways": lambda job: ways("torch_ddp"),
    "sharded": lambda job: sharded("torch_fsdp"),
    "failing": lambda job: failing("torch_ddp"),
    "in a trainer": in_trainer,
    "struck": struck,
}


def work(job: dict[str, Any]) -> None:
    """Do what the job names, and leave what it returns in the folder `out`."""
    torch.save(WORK[job["work"]](job), Path(job["out"]) / f"rank-{job['rank']}.pt")


if __name__ == "__main__":
    serve_ranks(work)

"""Cross-validation as a machine around trainers: fold_begin -> train_fold -> score -> fold_begin ... -> done.

Each fold is a run of its own in a folder under the outer run's. When the outer one goes on after a kill, folds that are
done aren't trained again, and the one that was cut goes on within its epoch. The outer journal holds the chain of each
fold's journal, so a fold that didn't come out with the same bits would be noticed there.

    python examples/cross_validation.py --run-dir runs/folds     kill it however you like, and add --resume
"""

import argparse

import attrs
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

from tachograph.drivers import Accuracy
from tachograph.engine import Engine, Journal, Trainer
from tachograph.states import Event, Failed, Machine, Row, Stopped

torch.set_num_threads(1)


@attrs.frozen(kw_only=True)
class Folding:
    state: str = "fold_begin"
    seq: int = 0
    fold: int = 0  # the one in work
    scores: tuple = attrs.field(default=(), converter=tuple)
    folds: int


@attrs.frozen(kw_only=True)
class FoldBegan(Event):
    """The samples of a fold are chosen."""

    trained_on: int
    held_out: int


@attrs.frozen(kw_only=True)
class FoldTrained(Event):
    """A fold's run is done; `chain` names all its bits."""

    batches: int
    chain: str


@attrs.frozen(kw_only=True)
class Scored(Event):
    """A fold's model was scored on what was held out of it."""

    accuracy: float

    def fold(self, state, dest):
        scores = (*state.scores, self.accuracy)
        return attrs.evolve(state, state=dest, seq=state.seq + 1, fold=state.fold + 1, scores=scores)


def folds_left(state, event):
    """folds left"""
    return state.fold + 1 < state.folds


MACHINE = Machine([
    Row("fold_begin", FoldBegan, "train_fold"),
    Row("train_fold", FoldTrained, "score"),
    Row("score", Scored, "fold_begin", folds_left),
    Row("score", Scored, "done"),
    Row("*", Stopped, "done"),
    Row("*", Failed, "exception"),
], initial="fold_begin")  # fmt: skip


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(width, 10))

    def forward(self, batch):
        pred = self.layers(batch[0])
        return {"loss": nn.functional.cross_entropy(pred, batch[1]), "pred": pred, "target": batch[1]}


def parts(fold, folds):
    """Return the samples that a fold trains on, and those that are held out of it."""
    pixels, digits = load_digits(return_X_y=True)
    samples = TensorDataset(torch.tensor(pixels / 16).float(), torch.tensor(digits))
    order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(0))
    held_out = order[fold::folds]
    kept = torch.cat([order[n::folds] for n in range(folds) if n != fold])
    return Subset(samples, kept.tolist()), Subset(samples, held_out.tolist())


def build_fold(fold, folds, run_dir=None, n_epochs=8, width=64):
    torch.manual_seed(fold)  # for the first weights; what follows draws from the trainer's seed
    model, (kept, held_out) = Net(width), parts(fold, folds)
    return Trainer(
        model,
        "torch",
        DataLoader(kept, batch_size=32, shuffle=True),
        torch.optim.AdamW(model.parameters(), lr=3e-3),
        n_epochs=n_epochs,
        validate_dataloaders=DataLoader(held_out, batch_size=len(held_out)),
        metrics={"accuracy": Accuracy()},
        run_dir=run_dir,
        seed=fold,
        progress_bar=None,
    )


def build(run_dir=None, folds=5, **settings):
    def begin_fold(state):
        kept, held_out = parts(state.fold, folds)
        return FoldBegan(trained_on=len(kept), held_out=len(held_out))

    def train_fold(state):
        trainer = build_fold(state.fold, folds, place(state), **settings)
        trainer.on("on_train_batch_end", lambda trainer: engine.interrupted() and trainer.stop("interrupted"))
        trainer.run(resume_from="auto")  # begins it, goes on with it, or finds that nothing is left to do
        if engine.interrupted():  # Ctrl-C, or SIGTERM: the fold is as it was stopped, and the outer run before it
            return engine.give_up()
        return FoldTrained(batches=trainer.global_forward_batches, chain=trainer.journal.chain)

    def score(state):
        return Scored(accuracy=Journal(place(state)).last.state.results["acc#accuracy"])

    def place(state):
        return engine.run_dir and engine.run_dir / f"fold-{state.fold}"

    work = {"fold_begin": begin_fold, "train_fold": train_fold, "score": score}
    engine = Engine(MACHINE, work, state=Folding(folds=folds), run_dir=run_dir)
    return engine


if __name__ == "__main__":
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--run-dir", default="auto", help="where the journals and the snapshots go")
    asked.add_argument("--resume", action="store_true", help="go on with the run in --run-dir, if it holds one")
    args = asked.parse_args()
    engine = build(args.run_dir)
    engine.on(Scored, lambda engine: print(f"fold {engine.trainer_state.fold}: {engine.trainer_state.scores[-1]:.1%}"))
    scores = torch.tensor(engine.run(resume_from="auto" if args.resume else None).scores)
    print(f"accuracy over {len(scores)} folds: {scores.mean():.1%} ± {scores.std():.1%}")

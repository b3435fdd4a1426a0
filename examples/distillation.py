"""A state of one's own in a training run: after every second batch, the student learns from a teacher.

The student has 60 digits with a label and 1,437 without. In *step* it learns from the former. In *distill* it is shown
some of the latter, and comes nearer to what the teacher, who has seen all labels, thinks of them. `--alone` leaves the
teacher out, to show what it's worth.

    python examples/distillation.py --run-dir runs/student     kill it however you like, and add --resume
"""

import argparse

import attrs
import torch
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tachograph.drivers import Accuracy
from tachograph.engine import Trainer
from tachograph.states import Event, Row, Stepped

LABELLED, HELD_OUT, SHOWN = 60, 300, 64  # SHOWN: digits that the teacher is asked about at a time


@attrs.frozen(kw_only=True)
class Distilled(Event):
    """The student learned from the teacher; `distance` is how far apart they were (a divergence, in nats)."""

    distance: float


def teacher_due(state, event):
    """after every second batch"""
    return (state.global_forward_batches + 1) % 2 == 0


ROWS = [Row("step", Stepped, "distill", teacher_due), Row("distill", Distilled, "fetch")]


class Student(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10))

    def train_step(self, batch):
        return {"loss": nn.functional.cross_entropy(self(batch[0]), batch[1])}

    def validate_step(self, batch):
        return {"pred": self(batch[0]), "target": batch[1]}


def build(run_dir=None, n_epochs=200, validate_every="10 epochs", alone=False, **settings):
    pixels, digits = load_digits(return_X_y=True)
    teacher = KNeighborsClassifier(10).fit(pixels[HELD_OUT:], digits[HELD_OUT:])
    pixels, digits = torch.tensor(pixels / 16).float(), torch.tensor(digits)
    labelled, unlabelled = slice(HELD_OUT, HELD_OUT + LABELLED), pixels[HELD_OUT + LABELLED :]
    opinions = torch.tensor(teacher.predict_proba(unlabelled * 16)).float()
    torch.manual_seed(0)  # for the first weights; what follows draws from the trainer's seed
    model = Student()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

    def distill(state):
        shown = torch.randint(len(unlabelled), (SHOWN,))  # by torch's generator, which is in each snapshot
        thought = model(unlabelled[shown]).log_softmax(-1)
        distance = nn.functional.kl_div(thought, opinions[shown], reduction="batchmean")
        distance.backward()
        optimizer.step()
        optimizer.zero_grad()
        return Distilled(distance=distance.item())

    return Trainer(
        model,
        "torch",
        DataLoader(TensorDataset(pixels[labelled], digits[labelled]), batch_size=10, shuffle=True),
        optimizer,
        n_epochs=n_epochs,
        rows=[] if alone else ROWS,
        perform={} if alone else {"distill": distill},
        validate_dataloaders=DataLoader(TensorDataset(pixels[:HELD_OUT], digits[:HELD_OUT]), batch_size=HELD_OUT),
        metrics={"accuracy": Accuracy()},
        validate_every=validate_every,
        snapshot_every=100,
        run_dir=run_dir,
        seed=0,
        **settings,
    )


if __name__ == "__main__":
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--run-dir", default="auto", help="where the journal and the snapshots go")
    asked.add_argument("--resume", action="store_true", help="go on with the run in --run-dir, if it holds one")
    asked.add_argument("--alone", action="store_true", help="without the teacher")
    args = asked.parse_args()
    torch.set_num_threads(1)  # more would only wait for each other
    trainer = build(args.run_dir, alone=args.alone)
    state = trainer.run(resume_from="auto" if args.resume else None)
    distances = [record.data["distance"] for record in trainer.journal if record.event == "Distilled"]
    if distances:
        print(
            f"{len(distances)} lessons: student and teacher were {distances[0]:.2f} apart, and are {distances[-1]:.2f}."
        )
    print(f"Held-out digits that the student reads, with {LABELLED} labels: {state.results['acc#accuracy']:.1%}.")

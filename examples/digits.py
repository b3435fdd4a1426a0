"""An image classifier from 400 handwritten digits, which two workers turn, stretch and shift at random.

How a sample looks in an epoch is a function of the seed, the epoch and the sample. So a run that was killed sees the
same images when it goes on, whichever worker makes them. The best model is in checkpoints/, and in the trainer at the
end. `--plain` leaves the images as they are, for comparison.

    python examples/digits.py --run-dir runs/digits     kill it however you like, and add --resume
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset

from tachograph.drivers import Accuracy
from tachograph.engine import Checkpoint, LoadBestModel, LRSchedule, Trainer

torch.set_num_threads(1)
HELD_OUT = 597  # the last third of the images: other people wrote them than those that are trained on


class Digits(Dataset):
    """8 x 8 grey pixels, and which digit they show; `varied`: they look another way each time."""

    def __init__(self, part, varied=False):
        pixels, digits = load_digits(return_X_y=True)
        self.images = torch.tensor(pixels[part] / 16).float().view(-1, 1, 8, 8)
        self.digits, self.varied = torch.tensor(digits[part]), varied

    def __len__(self):
        return len(self.digits)

    def __getitem__(self, index):
        image = self.images[index]
        return {"image": vary(image) if self.varied else image, "target": self.digits[index]}


def vary(image):
    """Turn an image by up to 9 degrees, stretch it by up to a tenth, shift it by up to half a pixel."""
    turn, wide, high, right, down = torch.rand(5) * 2 - 1  # seeded by whoever reads the dataset: nothing to do here
    cos, sin = torch.cos(turn * 0.15), torch.sin(turn * 0.15)
    rows = torch.stack([cos * (1 + wide / 10), -sin, right / 8, sin, cos * (1 + high / 10), down / 8]).view(1, 2, 3)
    grid = nn.functional.affine_grid(rows, [1, 1, 8, 8], align_corners=False)
    return nn.functional.grid_sample(image[None], grid, align_corners=False)[0]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
            *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Dropout(0.2), nn.Linear(32 * 4 * 4, 10)),
        )

    def forward(self, image, target):  # a batch's entries, by their names
        pred = self.layers(image)
        return {"loss": nn.functional.cross_entropy(pred, target), "pred": pred}


def build(run_dir=None, n_epochs=25, images=400, workers=2, varied=True, **settings):
    torch.manual_seed(0)  # for the first weights; what follows draws from the trainer's seed
    model, data = Net(), Digits(slice(images), varied)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=8, gamma=0.4)
    best = [LoadBestModel(), *([] if run_dir is None else [Checkpoint(topk=1)])]
    return Trainer(
        model,
        "torch",
        DataLoader(data, batch_size=32, shuffle=True, num_workers=workers, persistent_workers=workers > 0),
        optimizer,
        n_epochs=n_epochs,
        validate_dataloaders=DataLoader(Digits(slice(-HELD_OUT, None)), batch_size=HELD_OUT),
        metrics={"loss": "loss", "accuracy": Accuracy()},
        monitor="acc#accuracy",
        callbacks=[LRSchedule(schedule, step_on="epoch"), *best],
        run_dir=run_dir,
        seed=0,
        **settings,
    )


if __name__ == "__main__":
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--run-dir", default="auto", help="where the journal and the snapshots go")
    asked.add_argument("--resume", action="store_true", help="go on with the run in --run-dir, if it holds one")
    asked.add_argument("--plain", action="store_true", help="train on the images as they are")
    args = asked.parse_args()
    trainer = build(args.run_dir, varied=not args.plain)
    trainer.run(resume_from="auto" if args.resume else None)
    found = [record.state.results["acc#accuracy"] for record in trainer.journal if record.event == "Validated"]
    print(f"of {HELD_OUT} other people's digits it read {found[0]:.1%} after the first epoch, {max(found):.1%} at best")
    print(f"the best model is {next((trainer.run_dir / 'checkpoints').iterdir())}")

"""One step with two losses and two optimizers: an autoencoder learns what digits look like, a probe what it knows.

No label ever reaches the autoencoder: the probe, one linear layer, reads its 32 numbers and isn't listened to. So the
probe's accuracy says how much of the digits' meaning is in a code that was learned without any. Both losses are logged.

    python examples/two_losses.py --run-dir runs/two     kill it however you like, and add --resume
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset

from tachograph.drivers import Accuracy
from tachograph.engine import CSVLogger, Trainer

CODE, NOISE, HELD_OUT = 32, 0.3, 300


class Digits(Dataset):
    """8 x 8 grey pixels, and which digit they show."""

    def __init__(self, part):
        pixels, digits = load_digits(return_X_y=True)
        self.pixels, self.digits = torch.tensor(pixels[part] / 16).float(), torch.tensor(digits[part])

    def __len__(self):
        return len(self.digits)

    def __getitem__(self, index):
        return {"pixels": self.pixels[index], "target": self.digits[index]}


class Probed(nn.Module):
    def __init__(self):
        super().__init__()
        encoder = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, CODE))
        decoder = nn.Sequential(nn.ReLU(), nn.Linear(CODE, 128), nn.ReLU(), nn.Linear(128, 64), nn.Sigmoid())
        self.autoencoder = nn.ModuleDict({"encoder": encoder, "decoder": decoder})
        self.probe = nn.Linear(CODE, 10)

    def forward(self, pixels, target):
        seen = pixels + NOISE * torch.randn_like(pixels) if self.training else pixels
        code = self.autoencoder["encoder"](seen)
        pred = self.probe(code.detach())  # here the label's way ends
        return {
            "reconstruction": nn.functional.mse_loss(self.autoencoder["decoder"](code), pixels),
            "classification": nn.functional.cross_entropy(pred, target),
            "pred": pred,
        }


def both(trainer, batch):
    """The step: a window, mixed precision, what is heard and what is counted stay the trainer's."""
    outputs = trainer.train_step(batch)
    for name in ("reconstruction", "classification"):
        trainer.backward({"loss": outputs[name]})
    trainer.step()  # of both optimizers
    trainer.zero_grad()
    trainer.log(reconstruction=outputs["reconstruction"], classification=outputs["classification"])


def build(run_dir=None, n_epochs=30, images=1797, **settings):
    torch.manual_seed(0)  # for the first weights; what follows draws from the trainer's seed
    model = Probed()
    optimizers = [
        torch.optim.Adam(model.autoencoder.parameters(), lr=1e-3),
        torch.optim.SGD(model.probe.parameters(), lr=0.01, momentum=0.9),
    ]
    return Trainer(
        model,
        "torch",
        DataLoader(Digits(slice(HELD_OUT, images)), batch_size=32, shuffle=True),
        optimizers,
        n_epochs=n_epochs,
        batch_step_fn=both,
        validate_dataloaders=DataLoader(Digits(slice(HELD_OUT)), batch_size=HELD_OUT),
        metrics={"accuracy": Accuracy(), "reconstruction": "reconstruction"},
        callbacks=[] if run_dir is None else CSVLogger(),
        run_dir=run_dir,
        seed=0,
        **settings,
    )


if __name__ == "__main__":
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--run-dir", default="auto", help="where the journal and the snapshots go")
    asked.add_argument("--resume", action="store_true", help="go on with the run in --run-dir, if it holds one")
    args = asked.parse_args()
    torch.set_num_threads(1)  # more would only wait for each other
    trainer = build(args.run_dir)
    results = trainer.run(resume_from="auto" if args.resume else None).results
    images = Digits(slice(HELD_OUT)).pixels
    mean = Digits(slice(HELD_OUT, None)).pixels.mean(0).expand_as(images)
    error, plain = results["reconstruction"], nn.functional.mse_loss(mean, images).item()
    print(f"The autoencoder's error on held-out digits: {error:.4f}. The mean image's would be {plain:.4f}.")
    print(f"Held-out digits that the probe reads from the code: {results['acc#accuracy']:.1%}. Guessing reads 10%.")

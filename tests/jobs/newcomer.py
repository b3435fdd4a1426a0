"""Train a small network, in the folder that is given. Started again after anything, it goes on where it was."""

import hashlib
import random
import sys

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from tachograph.engine import Trainer


class Pictures(Dataset):
    """Small pictures of two kinds, never shown twice in the same way."""

    def __init__(self, n):
        self.pictures = torch.rand(n, 1, 8, 8)
        self.kinds = (self.pictures[:, :, :4].mean((1, 2, 3)) > self.pictures[:, :, 4:].mean((1, 2, 3))).long()

    def __len__(self):
        return len(self.pictures)

    def __getitem__(self, index):
        picture = self.pictures[index]
        if random.random() < 0.5:
            picture = picture.flip(-1)
        picture = picture * float(np.random.uniform(0.8, 1.2)) + 0.05 * torch.randn(1, 8, 8)
        return picture, self.kinds[index]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3), nn.Linear(4 * 6 * 6, 2)
        )

    def train_step(self, batch):
        pictures, kinds = batch
        return {"loss": nn.functional.cross_entropy(self.layers(pictures), kinds)}


if __name__ == "__main__":
    torch.manual_seed(0)
    data = Pictures(160)
    model = Net()
    trainer = Trainer(
        model,
        "torch",
        DataLoader(data, batch_size=4, shuffle=True, num_workers=2),
        torch.optim.Adam(model.parameters(), lr=0.01),
        n_epochs=4,
        run_dir=sys.argv[1],
        snapshot_every=5,
    )
    trainer.run(resume_from="auto")
    weights = b"".join(tensor.numpy().tobytes() for tensor in model.state_dict().values())
    print(hashlib.sha256(weights).hexdigest(), trainer.journal.chain)

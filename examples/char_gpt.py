"""A small GPT learns to write Python, one character after the other, from the standard library that runs it.

Start it with `--run-dir runs/gpt`, kill it however you like, and add `--resume`: it ends with the same bits. In two
processes, one of which may die: `torchrun --nproc-per-node 2 --max-restarts 3 examples/char_gpt.py --run-dir runs/two
--resume`.
"""

import argparse
import sysconfig
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from tachograph.engine import EarlyStopping, LRSchedule, Trainer

SYMBOLS, CONTEXT, WIDTH, HEADS, DROPOUT = 128, 64, 96, 3, 0.1  # a character's token is its ASCII code
BLOCKS = 17 * 400  # every 17th is held out; of the others, 16 make a batch and 400 batches an epoch


class SourceCode(Dataset):
    def __init__(self, held_out):
        modules = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
        text = b"".join(module.read_bytes() for module in modules)[: BLOCKS * CONTEXT * 2]
        blocks = torch.tensor([code for code in text if code < SYMBOLS]).unfold(0, CONTEXT + 1, CONTEXT)[:BLOCKS]
        self.blocks = [block for n, block in enumerate(blocks) if (n % 17 == 0) == held_out]

    def __len__(self):
        return len(self.blocks)

    def __getitem__(self, index):
        return {"codes": self.blocks[index][:-1], "following": self.blocks[index][1:]}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH))
        self.out = nn.Linear(WIDTH, WIDTH)
        up, down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.LayerNorm(WIDTH), up, nn.GELU(), down, nn.Dropout(DROPOUT))

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).transpose(1, 3).unbind(2)
        heads = nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=DROPOUT * self.training, is_causal=True)
        x = x + self.out(heads.transpose(1, 2).flatten(2))
        return x + self.mlp(x)


class CharGPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.character, self.place = nn.Embedding(SYMBOLS, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(Block(), Block(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, SYMBOLS))

    def logits(self, codes):
        return self.blocks(self.character(codes) + self.place.weight[: codes.shape[1]])

    def forward(self, codes, following):  # a batch's entries, by their names
        return {"loss": nn.functional.cross_entropy(self.logits(codes).flatten(0, 1), following.flatten())}


def build(run_dir=None, n_epochs=2, n_batches=-1, **settings):
    torch.manual_seed(1)  # for the first weights; all that follows draws from the trainer's seed
    model = CharGPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    # Warm-up, then 1/sqrt: it doesn't know how long the run is, so a run that ended can be resumed with more epochs.
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min((n + 1) / 100, (100 / (n + 1)) ** 0.5))
    return Trainer(  # validated after every 100 batches, and at the end of each epoch
        model, "auto", DataLoader(SourceCode(held_out=False), batch_size=16, shuffle=True), optimizer,
        n_epochs=n_epochs, n_batches=n_batches, run_dir=run_dir, seed=1, snapshot_every=25,
        validate_dataloaders=DataLoader(SourceCode(held_out=True), batch_size=64), validate_every=(100, -1),
        metrics={"loss": "loss"}, callbacks=[LRSchedule(schedule), EarlyStopping("loss", larger_better=False)],
        **settings,
    )  # fmt: skip


if __name__ == "__main__":
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--run-dir", default="auto", help="where the journal and the snapshots go")
    asked.add_argument("--resume", action="store_true", help="go on with the run in --run-dir, if it holds one")
    asked.add_argument("--epochs", type=int, default=2)
    asked.add_argument("--batches", type=int, default=-1, help="stop after so many, whatever --epochs says")
    asked.add_argument("--sample", type=int, default=0, help="write so many characters at the end")
    args = asked.parse_args()
    trainer = build(args.run_dir, args.epochs, args.batches)
    trainer.run(resume_from="auto" if args.resume else None)
    if trainer.ranks.first:
        print(f"{trainer.run_dir} ends with the chain {trainer.journal.chain}")
    if args.sample and trainer.ranks.first:
        model, codes = trainer.model.eval(), torch.tensor([[ord("\n")]])
        for _ in range(args.sample):
            odds = model.logits(codes[:, -CONTEXT:])[:, -1].softmax(-1)
            codes = torch.cat([codes, odds.multinomial(1)], dim=1)
        print(bytes(codes[0].tolist()).decode())

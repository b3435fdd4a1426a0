"""Do trainers go on exactly? A run is killed after a checkpoint, goes on, and is held against a straight one.

Every contender trains the same: a classifier with dropout, Adam, shuffled data, 2 epochs of 200 batches. It is told to
save after batch k as its documentation says, the process is killed some batches later, and a new one goes on: for k in
the first epoch, at its end, and in the second one. What is installed takes part: `pip install lightning accelerate
transformers pytorch-ignite torchdata`. `make bench` doesn't run this.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import logging
import multiprocessing
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

BATCHES, SIZE, EPOCHS = 200, 4, 2
STOPS = (137, 200, 337)
LATER = 5  # batches from the checkpoint to the kill
WORK = {"plain": (False, 0), "random augmentation": (True, 0), "random augmentation in 2 workers": (True, 2)}


class Points(Dataset):
    def __init__(self, noisy: bool) -> None:
        drawn = torch.Generator().manual_seed(0)
        self.x = torch.randn(BATCHES * SIZE, 16, generator=drawn)
        self.labels = (self.x.sum(1) > 0).long()
        self.noisy = noisy

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> dict[str, Any]:
        x = self.x[index]
        return {"x": x + 0.1 * torch.randn(16) if self.noisy else x, "labels": self.labels[index]}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 2))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.layers(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def loader_of(noisy: bool, workers: int, kind: Any = DataLoader) -> Any:
    return kind(Points(noisy), SIZE, shuffle=True, num_workers=workers)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=1e-3)


def die_at(done: int, at: int | None) -> None:
    if done == at:
        os._exit(9)


# -- the contenders: train in a folder, saving after batch `save`, dying at batch `die`, or going on ------------


def tachograph(folder: Path, noisy: bool, workers: int, save: int, die: int | None) -> nn.Module:
    from tachograph.engine import Trainer

    torch.manual_seed(1)
    model = Net()
    trainer = Trainer(
        model, "torch", loader_of(noisy, workers), adam(model), n_epochs=EPOCHS, seed=1, run_dir=folder / "run",
        snapshot_every=save, progress_bar=None,
    )  # fmt: skip
    trainer.on("on_train_batch_end", lambda trainer: die_at(trainer.global_forward_batches, die))
    trainer.run(resume_from="auto")
    return model


def transformers(folder: Path, noisy: bool, workers: int, save: int, die: int | None) -> nn.Module:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Die(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            die_at(state.global_step, die)

    torch.manual_seed(1)
    arguments = TrainingArguments(
        str(folder), num_train_epochs=EPOCHS, per_device_train_batch_size=SIZE, dataloader_num_workers=workers, seed=1,
        learning_rate=1e-3, lr_scheduler_type="constant", max_grad_norm=0.0, save_strategy="steps", save_steps=save,
        report_to="none", disable_tqdm=True, logging_strategy="no", use_cpu=True,
    )  # fmt: skip
    trainer = Trainer(Net(), arguments, train_dataset=Points(noisy), callbacks=[Die()])
    trainer.train(resume_from_checkpoint=any(folder.glob("checkpoint-*")))
    return trainer.model  # type: ignore[no-any-return]


def accelerate(
    folder: Path, noisy: bool, workers: int, save: int, die: int | None, seedable: bool = False
) -> nn.Module:
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration, set_seed

    set_seed(1)
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=seedable))
    model = Net()
    model, optimizer, loader = accelerator.prepare(model, adam(model), loader_of(noisy, workers))
    done, saved = 0, folder / "state"
    if saved.exists():
        accelerator.load_state(str(saved))
        done = save
    for epoch in range(done // BATCHES, EPOCHS):
        if seedable:
            loader.set_epoch(epoch)
        inside = done - epoch * BATCHES
        for batch in accelerator.skip_first_batches(loader, inside) if inside else loader:
            optimizer.zero_grad()
            accelerator.backward(model(**batch)["loss"])
            optimizer.step()
            done += 1
            if done == save:
                accelerator.save_state(str(saved))
            die_at(done, die)
    return accelerator.unwrap_model(model)  # type: ignore[no-any-return]


def accelerate_seedable(*arguments: Any) -> nn.Module:
    return accelerate(*arguments, seedable=True)


def ignite(
    folder: Path, noisy: bool, workers: int, save: int, die: int | None, deterministic: bool = False
) -> nn.Module:
    from ignite.engine import DeterministicEngine, Engine, Events
    from ignite.handlers import Checkpoint, DiskSaver
    from ignite.utils import manual_seed

    manual_seed(1)
    model = Net()
    optimizer = adam(model)

    def step(engine: Any, batch: dict[str, torch.Tensor]) -> None:
        model.train()
        optimizer.zero_grad()
        model(**batch)["loss"].backward()
        optimizer.step()

    trainer = (DeterministicEngine if deterministic else Engine)(step)
    kept = {"trainer": trainer, "model": model, "optimizer": optimizer}
    saver = Checkpoint(kept, DiskSaver(str(folder), create_dir=True, require_empty=False), n_saved=None)
    trainer.add_event_handler(Events.ITERATION_COMPLETED(once=save), saver)
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda engine: die_at(engine.state.iteration, die))
    for path in folder.glob("checkpoint_*.pt"):
        Checkpoint.load_objects(kept, torch.load(path, weights_only=False))
    trainer.run(loader_of(noisy, workers), max_epochs=EPOCHS)
    return model


def ignite_deterministic(*arguments: Any) -> nn.Module:
    return ignite(*arguments, deterministic=True)


def lightning(folder: Path, noisy: bool, workers: int, save: int, die: int | None, kind: Any = DataLoader) -> nn.Module:
    import lightning.pytorch as pl
    from lightning.pytorch.callbacks import ModelCheckpoint

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def training_step(self, batch: dict[str, torch.Tensor], index: int) -> torch.Tensor:
            return self.net(**batch)["loss"]  # type: ignore[no-any-return]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return adam(self)

    class Die(pl.Callback):
        def on_train_batch_end(self, trainer: Any, *others: Any) -> None:
            die_at(trainer.global_step, die)

    pl.seed_everything(1, workers=True, verbose=False)
    saved = folder / "saved.ckpt"
    saver = ModelCheckpoint(dirpath=folder, filename="saved", every_n_train_steps=save, save_top_k=-1)
    trainer = pl.Trainer(
        max_epochs=EPOCHS, accelerator="cpu", logger=False, callbacks=[saver, Die()], enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    module = Module()
    trainer.fit(module, loader_of(noisy, workers, kind), ckpt_path=str(saved) if saved.exists() else None)
    return module.net


def lightning_stateful(*arguments: Any) -> nn.Module:
    from torchdata.stateful_dataloader import StatefulDataLoader

    return lightning(*arguments, kind=StatefulDataLoader)


CONTENDERS: dict[str, tuple[str, Callable[..., nn.Module]]] = {
    "Tachograph": ("tachograph", tachograph),
    "transformers' Trainer": ("transformers", transformers),
    "Accelerate": ("accelerate", accelerate),
    "Accelerate, seedable sampler": ("accelerate", accelerate_seedable),
    "ignite": ("pytorch-ignite", ignite),
    "ignite, DeterministicEngine": ("pytorch-ignite", ignite_deterministic),
    "Lightning": ("lightning", lightning),
    "Lightning, StatefulDataLoader": ("lightning", lightning_stateful),
}

IMPORTED = {
    "tachograph": "tachograph.engine",
    "transformers": "transformers.trainer",
    "accelerate": "accelerate",
    "pytorch-ignite": "ignite.handlers",
    "lightning": "lightning.pytorch",
}


# -- the measurement ----------------------------------------------------------------------------------------


def _life(train: Callable[..., nn.Module], folder: Path, *arguments: Any) -> None:
    for name in ("lightning.pytorch", "lightning.fabric", "transformers", "ignite"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    torch.seed()
    torch.save(train(folder, *arguments).state_dict(), folder / "end")


def _live(*arguments: Any) -> None:
    life = multiprocessing.get_context("fork").Process(target=_life, args=arguments)
    life.start()
    life.join()


def exact(train: Callable[..., nn.Module], noisy: bool, workers: int) -> Iterator[str]:
    """What became of the run at each stop: "exact", "other bits" or "fails"."""
    with tempfile.TemporaryDirectory() as name:
        straight = Path(name, "straight")
        straight.mkdir()
        _live(train, straight, noisy, workers, BATCHES, None)
        ours = torch.load(straight / "end")
        for save in STOPS:
            killed = Path(name, str(save))
            killed.mkdir()
            _live(train, killed, noisy, workers, save, save + LATER)
            _live(train, killed, noisy, workers, save, None)
            if not (killed / "end").exists():
                yield "fails"
                continue
            theirs = torch.load(killed / "end")
            yield "exact" if all(torch.equal(ours[key], theirs[key]) for key in ours) else "other bits"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="*", default=list(CONTENDERS), help="names of contenders")
    asked = parser.parse_args().only
    torch.set_num_threads(1)
    print("| | " + " | ".join(WORK) + " |\n|---" + "|---" * len(WORK) + "|")
    for name in asked:
        distribution, train = CONTENDERS[name]
        try:
            version = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            print(f"{name}: not installed", file=sys.stderr)
            continue
        importlib.import_module(IMPORTED[distribution])  # once, and not in each life
        found = [list(exact(train, *work)) for work in WORK.values()]
        told = [f"{ends.count('exact')} of {len(ends)}" + (", fails" if "fails" in ends else "") for ends in found]
        print(f"| {name} {version} | " + " | ".join(told) + " |", flush=True)


if __name__ == "__main__":
    main()

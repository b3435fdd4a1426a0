"""transformers' Trainer, which stands on Accelerate: nothing is logged, saved or reported.

Clipping is off, the rate is constant, and the filter that looks for NaN in each loss is off too.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.optim import Adam, Optimizer
from torch.utils.data import default_collate
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from .work import BATCH, Model, Work

PACKAGES = ("transformers", "accelerate")


class Quiet(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        pass


LISTENER = Quiet.on_step_end


class Named(nn.Module):
    """The model, as this trainer calls it."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return self.model.train_step((x, labels))


def collate(rows: list[Any]) -> dict[str, Tensor]:
    x, labels = default_collate(rows)
    return {"x": x, "labels": labels}


def trainer(work: Work, listeners: int) -> Optimizer:
    model = Named()
    adam = Adam(model.parameters())
    arguments = TrainingArguments(
        output_dir=work.folder,
        num_train_epochs=1,
        per_device_train_batch_size=BATCH,
        use_cpu=True,
        max_grad_norm=0,
        lr_scheduler_type="constant",
        logging_strategy="no",
        logging_nan_inf_filter=False,
        save_strategy="no",
        eval_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
        remove_unused_columns=False,
    )
    callbacks = [type(f"Quiet{i}", (Quiet,), {}) for i in range(listeners)]  # one class twice is warned of
    made = Trainer(
        model=model,
        args=arguments,
        train_dataset=work.data,
        data_collator=collate,
        optimizers=(adam, None),
        callbacks=callbacks,
    )
    made.remove_callback(PrinterCallback)
    made.train()
    return adam


CONTENDERS = {"transformers": trainer}

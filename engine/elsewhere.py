"""What other libraries call the things that are here, for sentences to those who come from there.

Nothing of it is accepted, it is only answered. A name that means the same there and here isn't in the tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tachograph.states.errors import nearest

_EACH_BATCH = "on_train_batch_{} (each batch), or on_{}_optimizer_step (each update)"
_NOBODY = "no moment, since what is evaluated by hand is heard by nobody"

MOMENTS_ELSEWHERE: dict[str, str] = {
    # Lightning's hooks
    "on_fit_start": "on_train_begin",
    "on_fit_end": "on_train_end",
    "on_train_start": "on_train_begin",
    "on_train_epoch_start": "on_train_epoch_begin",
    "on_train_batch_start": "on_train_batch_begin",
    "on_sanity_check_start": "on_sanity_check_begin",
    "on_validation_start": "on_validate_begin",
    "on_validation_end": "on_validate_end",
    "on_validation_epoch_start": "on_validate_begin",
    "on_validation_epoch_end": "on_validate_end",
    "on_validation_batch_start": "on_validate_batch_begin",
    "on_validation_batch_end": "on_validate_batch_end",
    "on_epoch_start": "on_train_epoch_begin",
    "on_batch_start": "on_train_batch_begin",
    "on_keyboard_interrupt": "on_stop",
    "on_test_start": _NOBODY,
    "on_test_epoch_start": _NOBODY,
    "on_test_epoch_end": _NOBODY,
    "on_test_batch_start": _NOBODY,
    "on_predict_start": _NOBODY,
    "on_predict_epoch_start": _NOBODY,
    "on_predict_epoch_end": _NOBODY,
    "on_predict_batch_start": _NOBODY,
    # transformers' TrainerCallback, and Keras's
    "on_init_end": "on_after_trainer_initialized",
    "on_epoch_begin": "on_train_epoch_begin",
    "on_epoch_end": "on_train_epoch_end",
    "on_batch_begin": "on_train_batch_begin",
    "on_batch_end": "on_train_batch_end",
    "on_step_begin": _EACH_BATCH.format("begin", "before"),
    "on_step_end": _EACH_BATCH.format("end", "after"),
    "on_substep_end": "on_train_batch_end",
    "on_pre_optimizer_step": "on_before_optimizer_step",
    "on_optimizer_step": "on_after_optimizer_step",
    "on_evaluate": "on_validate_end",
    "on_prediction_step": "on_validate_batch_end",
    "on_save": "on_after_snapshot",
    "on_test_begin": _NOBODY,
    "on_test_end": _NOBODY,
    "on_test_batch_begin": _NOBODY,
    "on_test_batch_end": _NOBODY,
    "on_predict": _NOBODY,
    "on_predict_begin": _NOBODY,
    "on_predict_end": _NOBODY,
    "on_predict_batch_begin": _NOBODY,
    "on_predict_batch_end": _NOBODY,
    # torchtnt's steps, ignite's events as methods, and the like
    "on_start": "on_train_begin",
    "on_end": "on_train_end",
    "on_started": "on_train_begin",
    "on_completed": "on_train_end",
    "on_epoch_started": "on_train_epoch_begin",
    "on_epoch_completed": "on_train_epoch_end",
    "on_epoch_finish": "on_train_epoch_end",
    "on_train_epoch_finish": "on_train_epoch_end",
    "on_iteration_started": "on_train_batch_begin",
    "on_iteration_completed": "on_train_batch_end",
    "on_iteration_begin": "on_train_batch_begin",
    "on_iteration_start": "on_train_batch_begin",
    "on_iteration_end": "on_train_batch_end",
    "on_step_start": _EACH_BATCH.format("begin", "before"),
    "on_train_step_start": "on_train_batch_begin",
    "on_train_step_begin": "on_train_batch_begin",
    "on_train_step_end": "on_train_batch_end",
    "on_train_finish": "on_train_end",
    "on_eval_start": "on_validate_begin",
    "on_eval_begin": "on_validate_begin",
    "on_eval_end": "on_validate_end",
    "on_eval_epoch_start": "on_validate_begin",
    "on_eval_epoch_end": "on_validate_end",
    "on_eval_step_start": "on_validate_batch_begin",
    "on_eval_step_end": "on_validate_batch_end",
    "on_validation_begin": "on_validate_begin",
    "on_validation_step_end": "on_validate_batch_end",
    "on_validate_start": "on_validate_begin",
    "on_error": "on_exception",
}
"""A moment's name in another library -> the end of "here it is ..."."""

_CLIPPING = "a callback, GradClip(...)"
_LOGGING = "a callback, a logger such as TensorBoardLogger(...)"
_BATCHES = "n_batches (batches, not updates)"
_VALIDATING = "validate_dataloaders, with metrics"
_LOADER_S = "the DataLoader's"
_OPTIMIZER_S = "the optimizer's"
_MODEL_S = "the model's: its train_step (or forward pass) returns a dict with 'loss'"

ARGUMENTS_ELSEWHERE: dict[str, str] = {
    **dict.fromkeys(("epochs", "max_epochs", "num_epochs", "num_train_epochs", "total_epochs"), "n_epochs"),
    **dict.fromkeys(("max_steps", "num_steps", "n_steps", "total_steps", "max_iters", "max_iterations"), _BATCHES),
    "max_duration": "max_time",
    **dict.fromkeys(
        ("accumulate_grad_batches", "gradient_accumulation_steps", "grad_accumulation_steps", "grad_accum_steps"),
        "accumulation_steps",
    ),
    "average_tokens_across_devices": "loss_weight: the name of an output with the number of tokens, say",
    **dict.fromkeys(
        ("gradient_clip_val", "gradient_clip_algorithm", "max_grad_norm", "grad_clip", "clip_grad_norm", "grad_norm"),
        _CLIPPING,
    ),
    "val_check_interval": "validate_every: n batches, or '0.25 epoch'",
    "check_val_every_n_epoch": "validate_every=-n, for every n-th epoch",
    **dict.fromkeys(
        ("eval_steps", "eval_every", "eval_interval", "val_every", "val_interval"), "validate_every: '100 updates', say"
    ),
    **dict.fromkeys(("eval_strategy", "evaluation_strategy"), "validate_every: -1, or '100 updates'"),
    "limit_val_batches": "limit_validate_batches",
    "num_sanity_val_steps": "run(num_eval_sanity_batch=...)",
    **dict.fromkeys(("devices", "device_ids", "gpus", "accelerator"), "device: 'cuda', say"),
    "strategy": "driver: 'torch', 'torch_ddp', 'torch_fsdp' or 'auto'",
    **dict.fromkeys(("logger", "loggers", "report_to", "log_every_n_steps", "logging_steps"), _LOGGING),
    **dict.fromkeys(
        ("default_root_dir", "output_dir", "save_dir", "work_dir", "log_dir", "logging_dir", "project_dir"), "run_dir"
    ),
    **dict.fromkeys(
        ("resume", "resume_from", "resume_from_checkpoint", "ckpt_path", "checkpoint_path"), "run(resume_from=...)"
    ),
    **dict.fromkeys(
        ("enable_checkpointing", "save_steps", "save_strategy", "save_every", "checkpoint_every"), "snapshot_every"
    ),
    "save_total_limit": "keep_snapshots",
    **dict.fromkeys(("enable_progress_bar", "disable_tqdm", "show_progress", "verbose"), "progress_bar"),
    "enable_model_summary": "a callback, ModelSummary()",
    "profiler": "a callback, Profiler(...)",
    **dict.fromkeys(("early_stopping", "early_stopping_patience", "patience"), "a callback, EarlyStopping(...)"),
    **dict.fromkeys(("ema", "ema_decay"), "a callback, EMA(...)"),
    **dict.fromkeys(("scheduler", "schedulers", "lr_scheduler", "lr_schedulers"), "a callback, LRSchedule(...)"),
    **dict.fromkeys(("warmup_steps", "warmup_ratio", "num_warmup_steps"), "a callback, Warmup(...)"),
    **dict.fromkeys(("callback", "hooks"), "callbacks"),
    **dict.fromkeys(
        ("train_loader", "train_dataloaders", "train_dataset", "dataloader", "dataloaders", "loader"),
        "train_dataloader",
    ),
    **dict.fromkeys(("val_dataloaders", "val_dataloader", "val_loader", "valid_loader", "val_dataset"), _VALIDATING),
    **dict.fromkeys(("eval_dataloader", "eval_dataloaders", "eval_loader", "eval_dataset"), _VALIDATING),
    "compute_metrics": "metrics, a dict name -> metric",
    "optimizer": "optimizers",
    **dict.fromkeys(("loss", "loss_fn", "criterion"), _MODEL_S),
    **dict.fromkeys(("lr", "learning_rate", "weight_decay"), _OPTIMIZER_S),
    **dict.fromkeys(("batch_size", "num_workers", "shuffle", "per_device_train_batch_size"), _LOADER_S),
    **dict.fromkeys(("amp", "use_amp", "mixed_precision", "bf16"), "precision: 'bf16', say"),
    "torch_compile": "compile",
    "random_state": "seed",
    "use_distributed_sampler": "use_dist_sampler",
}
"""An argument's name in another library -> the end of "here it is ..."."""


def instead(name: str, elsewhere: Mapping[str, str], known: Iterable[str], n: int = 3) -> str:
    """Return the end of a sentence about a name that isn't known: what it is called here, else the nearest names.

    Args:
        name: what was given.
        elsewhere: one of the tables.
        known: the names that are legal here.
        n: how many near ones are offered.
    """
    return f": here it is {elsewhere[name]}" if name in elsewhere else f". {nearest(name, known, n)}"


__all__ = ["ARGUMENTS_ELSEWHERE", "MOMENTS_ELSEWHERE", "instead"]

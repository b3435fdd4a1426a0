"""`Accuracy` and `TransformersAccuracy`: which part of the predictions is right."""

from __future__ import annotations

from typing import Any

import torch

from tachograph.states.errors import CallerError

from .classes import classes_of, mask_of
from .metric import Metric

_NO_LABEL = -100  # what transformers' models leave out of their loss


class Accuracy(Metric):
    """The part of the predictions that is right, as "acc". Nothing is read from the device before the end.

    Args:
        backend: see `Metric`.
        aggregate_when_get_metric: see `Metric`.
    """

    def __init__(self, backend: str | None = "auto", aggregate_when_get_metric: bool | None = None) -> None:
        super().__init__(backend, aggregate_when_get_metric)
        self.register_element("correct", 0, "sum")
        self.register_element("total", 0, "sum")

    def update(self, pred: Any, target: Any, seq_len: Any = None) -> None:
        """Count a batch.

        Args:
            pred: classes, [B] or [B, L]; or scores of classes, [B, n_classes] or [B, L, n_classes].
            target: the right classes, [B] or [B, L].
            seq_len: how much of each row of [B, L] counts, [B]; None: all.

        Raises:
            CallerError: the shapes don't fit.
        """
        found, wanted = classes_of(pred, target)
        self._count(found, wanted, mask_of(seq_len, wanted))

    def get_metric(self) -> dict[str, float]:
        """Return {"acc": ...}; 0.0 where nothing counted."""
        total = self.total.get_scalar()
        return {"acc": self.correct.get_scalar() / total if total else 0.0}

    def _count(self, found: torch.Tensor, wanted: torch.Tensor, mask: torch.Tensor | None) -> None:
        right = found == wanted
        self.correct += (right if mask is None else right & mask).sum()
        self.total += wanted.numel() if mask is None else mask.sum()


class TransformersAccuracy(Accuracy):
    """Accuracy under the names that transformers' models use; labels of -100 don't count."""

    def update(self, logits: Any, labels: Any, attention_mask: Any = None) -> None:  # type: ignore[override]
        """Count a batch.

        Args:
            logits: scores of classes, [B, n_classes] or [B, L, n_classes]; or classes, [B] or [B, L].
            labels: the right classes, [B] or [B, L].
            attention_mask: which positions count, [B, L]; None: all. It says nothing of labels of the shape [B].

        Raises:
            CallerError: the shapes don't fit.
        """
        found, wanted = classes_of(logits, labels)
        mask = wanted != _NO_LABEL
        if attention_mask is not None and wanted.dim() > 1:
            attended = torch.as_tensor(attention_mask, device=wanted.device)
            if attended.shape != wanted.shape:
                raise CallerError(
                    f"attention_mask must have the shape of labels, {list(wanted.shape)}, not {list(attended.shape)}"
                )
            mask = mask & (attended != 0)
        self._count(found, wanted, mask)

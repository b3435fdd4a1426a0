"""What the metrics of classes share: which class was predicted, which positions count, what the classes are called."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from tachograph.states.errors import CallerError


def classes_of(pred: Any, target: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return predicted and true classes, of one shape; a last dimension of scores in `pred` is reduced to the highest.

    Args:
        pred: [B], [B, n_classes], [B, L] or [B, L, n_classes].
        target: [B] or [B, L].

    Raises:
        CallerError: the shapes don't fit.
    """
    pred, target = torch.as_tensor(pred), torch.as_tensor(target)
    if pred.dim() == target.dim() + 1 and pred.shape[:-1] == target.shape:
        if pred.shape[-1] == 1:
            raise CallerError(
                f"pred of the shape {list(pred.shape)} has scores of one class only, of which the highest is always "
                "the same: give classes, pred.squeeze(-1) > 0 for example"
            )
        return pred.argmax(-1), target.to(pred.device)
    if pred.shape == target.shape:
        return pred, target.to(pred.device)
    raise CallerError(
        f"pred must have the shape of target, {list(target.shape)}, or one more dimension for the classes, not "
        f"{list(pred.shape)}"
    )


def mask_of(seq_len: Any, target: torch.Tensor) -> torch.Tensor | None:
    """Return which positions of [B, L] lie within the lengths [B]; None where all count."""
    if seq_len is None or target.dim() < 2:
        return None
    lengths = torch.as_tensor(seq_len, device=target.device)
    if lengths.shape != target.shape[:1]:
        raise CallerError(f"seq_len must have the shape [{target.shape[0]}], not {list(lengths.shape)}")
    positions = torch.arange(target.shape[1], device=target.device)
    return positions.expand(target.shape[:2]) < lengths[:, None]


def names_of(tag_vocab: Any) -> dict[int, str] | None:
    """Return the classes' names by their numbers; None where they have none.

    Args:
        tag_vocab: a mapping number -> name, a mapping name -> number, a sequence of names, or an object with such a
            mapping in `idx2word` or `word2idx`; None.

    Raises:
        CallerError: it is something else.
    """
    if tag_vocab is None:
        return None
    held = tag_vocab
    for name in ("idx2word", "word2idx"):
        held = held if isinstance(held, Mapping) else getattr(tag_vocab, name, held)
    if isinstance(held, Sequence) and not isinstance(held, str):
        held = dict(enumerate(held))
    if isinstance(held, Mapping) and held:
        if all(isinstance(key, int) for key in held):
            return {key: str(name) for key, name in held.items()}
        if all(isinstance(number, int) for number in held.values()):
            return {number: str(name) for name, number in held.items()}
    raise CallerError(
        "tag_vocab must be a sequence of names, a dict number -> name or name -> number, or an object with one of "
        f"these in idx2word or word2idx, not {tag_vocab!r}"
    )


def f_pre_rec(tp: float, fp: float, fn: float, beta_squared: float) -> tuple[float, float, float]:
    """Return F, precision and recall of counts; 0 where there is nothing to divide by."""
    precision = tp / (tp + fp) if tp + fp else 0.0
    recall = tp / (tp + fn) if tp + fn else 0.0
    below = beta_squared * precision + recall
    return ((1 + beta_squared) * precision * recall / below if below else 0.0), precision, recall


class Counts:
    """True and false positives and false negatives, by class.

    Args:
        only_gross: leave out the classes' own values.
        f_type: "micro": of all classes' counts together; "macro": the mean over the classes there were.
        beta: F-beta weighs recall by beta^2.

    Raises:
        CallerError: an argument can't be used.
    """

    def __init__(self, only_gross: bool, f_type: str, beta: float) -> None:
        if f_type not in ("micro", "macro"):
            raise CallerError(f"f_type must be 'micro' or 'macro', not {f_type!r}")
        if not isinstance(beta, (int, float)) or isinstance(beta, bool) or not beta > 0:
            raise CallerError(f"beta must be a number > 0, not {beta!r}")
        self._only_gross, self._f_type, self._beta_squared = only_gross, f_type, beta**2
        self.held: tuple[Counter[Any], Counter[Any], Counter[Any]] = (Counter(), Counter(), Counter())

    def clear(self) -> None:
        """Begin anew."""
        self.held = (Counter(), Counter(), Counter())

    def add(self, tp: Iterable[Any], fp: Iterable[Any], fn: Iterable[Any]) -> None:
        """Count classes: of what was found, of what was found wrongly, of what was missed."""
        for held, classes in zip(self.held, (tp, fp, fn), strict=True):
            held.update(classes)

    def results(self, ranks: Sequence[Any], name_of: Callable[[Any], str]) -> dict[str, float]:
        """Return f, pre and rec, and those of each class that has a name, of what all ranks counted.

        Args:
            ranks: the `held` of each.
            name_of: `f(class) -> name`.
        """
        tp, fp, fn = (_sum(rank[i] for rank in ranks) for i in range(3))
        each = {c: f_pre_rec(tp[c], fp[c], fn[c], self._beta_squared) for c in sorted({*tp, *fp, *fn})}
        gross = f_pre_rec(tp.total(), fp.total(), fn.total(), self._beta_squared)
        if self._f_type == "macro":
            f, pre, rec = (sum(values) / len(each) for values in zip(*each.values(), strict=True)) if each else gross
            gross = f, pre, rec
        results = _named("", gross)
        for c, values in ({} if self._only_gross else each).items():
            if name_of(c):
                results |= _named(f"-{name_of(c)}", values)
        return results


def _sum(counters: Iterable[Counter[Any]]) -> Counter[Any]:
    total: Counter[Any] = Counter()
    for counter in counters:
        total.update(counter)
    return total


def _named(suffix: str, values: tuple[float, float, float]) -> dict[str, float]:
    return {f"{name}{suffix}": value for name, value in zip(("f", "pre", "rec"), values, strict=True)}

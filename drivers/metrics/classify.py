"""`ClassifyFPreRecMetric`: F, precision and recall of classes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .classes import Counts, classes_of, mask_of, names_of
from .metric import Metric


class ClassifyFPreRecMetric(Metric):
    """F, precision and recall of classes, as "f", "pre" and "rec", and as "f-<class>" and so on.

    Args:
        tag_vocab: the classes' names: a sequence, a dict number -> name or name -> number, or an object with one of
            these in `idx2word` or `word2idx`; None: they are called by their numbers.
        ignore_labels: classes that aren't counted, by their names.
        only_gross: leave out the classes' own values.
        f_type: "micro": of all classes' counts together; "macro": the mean over the classes that occurred.
        beta: F-beta weighs recall by beta^2.
        backend: see `Metric`.
        aggregate_when_get_metric: see `Metric`.

    Raises:
        CallerError: an argument can't be used.
    """

    def __init__(
        self,
        tag_vocab: Any = None,
        ignore_labels: Iterable[Any] | None = None,
        only_gross: bool = True,
        f_type: str = "micro",
        beta: float = 1,
        backend: str | None = "auto",
        aggregate_when_get_metric: bool | None = None,
    ) -> None:
        super().__init__(backend, aggregate_when_get_metric)
        self._names = names_of(tag_vocab)
        self._ignored = frozenset(map(str, ignore_labels or ()))
        self._counts = Counts(only_gross, f_type, beta)

    def update(self, pred: Any, target: Any, seq_len: Any = None) -> None:
        """Count a batch; it is read from the device.

        Args:
            pred: classes, [B] or [B, L]; or scores of classes, [B, n_classes] or [B, L, n_classes].
            target: the right classes, [B] or [B, L].
            seq_len: how much of each row of [B, L] counts, [B]; None: all.

        Raises:
            CallerError: the shapes don't fit.
        """
        found, wanted = classes_of(pred, target)
        mask = mask_of(seq_len, wanted)
        if mask is not None:
            found, wanted = found[mask], wanted[mask]
        right = found == wanted
        parts = (wanted[right], found[~right], wanted[~right])
        self._counts.add(*([c for c in part.long().tolist() if self._name(c) not in self._ignored] for part in parts))

    def get_metric(self) -> dict[str, float]:
        """Return f, pre and rec, and those of each class if that is wanted."""
        return self._counts.results(self.all_gather_object(self._counts.held), self._name)

    def reset(self) -> None:
        self._counts.clear()

    def _name(self, number: int) -> str:
        return str(number) if self._names is None else self._names.get(number, str(number))

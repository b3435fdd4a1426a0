"""`SpanFPreRecMetric`: F, precision and recall of spans in tagged sequences (named entities, say)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tachograph.states.errors import CallerError, nearest

from .classes import Counts, classes_of, mask_of, names_of
from .metric import Metric

ENCODINGS = {"bio": "bio", "bmes": "bmes", "bioes": "bioes", "bmeso": "bmeso"}
"""How tags encode spans: the letters that a tag may begin with. From the smallest to the largest."""


class SpanFPreRecMetric(Metric):
    """F, precision and recall of spans, as "f", "pre" and "rec", and as "f-<label>" and so on.

    A predicted span is right if its label, its beginning and its end are. A tag is a letter, or a letter, a separator
    and a label ("B-LOC"); labels are compared and named in lower case. A span begins with b or s, and goes on with i, m
    or e of its label; one of these where no such span is open begins one too, as in the reference trainer and in
    CoNLL's script. What is no tag of the encoding (`<pad>`, say) belongs to no span.

    Args:
        tag_vocab: the tags by their numbers: a sequence, a dict number -> tag or tag -> number, or an object with one
            of these in `idx2word` or `word2idx`.
        encoding_type: "bio", "bmes", "bioes" or "bmeso"; None: the smallest that has all the tags there are.
        ignore_labels: labels whose spans aren't counted.
        only_gross: leave out the labels' own values.
        f_type: "micro": of all labels' counts together; "macro": the mean over the labels that occurred.
        beta: F-beta weighs recall by beta^2.
        backend: see `Metric`.
        aggregate_when_get_metric: see `Metric`.

    Raises:
        CallerError: an argument can't be used, or there are tags that the encoding lacks.
    """

    def __init__(
        self,
        tag_vocab: Any,
        encoding_type: str | None = None,
        ignore_labels: Iterable[str] | None = None,
        only_gross: bool = True,
        f_type: str = "micro",
        beta: float = 1,
        backend: str | None = "auto",
        aggregate_when_get_metric: bool | None = None,
    ) -> None:
        super().__init__(backend, aggregate_when_get_metric)
        names = names_of(tag_vocab)
        if names is None:
            raise CallerError("SpanFPreRecMetric needs tag_vocab: the tags by their numbers")
        tags = {number: _split(name) for number, name in names.items()}
        self.encoding_type = _encoding({letter for letter, _ in tags.values()} - {""}, encoding_type)
        self._tags = tags
        self._ignored = frozenset(label.lower() for label in ignore_labels or ())
        self._counts = Counts(only_gross, f_type, beta)

    def update(self, pred: Any, target: Any, seq_len: Any = None) -> None:
        """Count a batch; it is read from the device.

        Args:
            pred: tags, [B, L]; or scores of tags, [B, L, n_tags].
            target: the right tags, [B, L].
            seq_len: how much of each row counts, [B]; None: all.

        Raises:
            CallerError: the shapes don't fit, or a number stands for no tag.
        """
        found, wanted = classes_of(pred, target)
        if wanted.dim() != 2:
            raise CallerError(f"target must have the shape [B, L], not {list(wanted.shape)}")
        mask = mask_of(seq_len, wanted)
        lengths = [wanted.shape[1]] * len(wanted) if mask is None else mask.sum(1).tolist()
        for row, true, length in zip(found.long().tolist(), wanted.long().tolist(), lengths, strict=True):
            ours, theirs = self._spans(row[:length]), self._spans(true[:length])
            parts = (ours & theirs, ours - theirs, theirs - ours)
            self._counts.add(*([label for label, _, _ in part] for part in parts))

    def get_metric(self) -> dict[str, float]:
        """Return f, pre and rec, and those of each label if that is wanted."""
        return self._counts.results(self.all_gather_object(self._counts.held), str)

    def reset(self) -> None:
        self._counts.clear()

    def _spans(self, numbers: Sequence[int]) -> set[tuple[str, int, int]]:
        try:
            tags = [self._tags[number] for number in numbers]
        except KeyError as error:
            raise CallerError(f"{error.args[0]} stands for no tag of tag_vocab") from None
        return {span for span in spans_of(tags) if span[0] not in self._ignored}


def spans_of(tags: Iterable[tuple[str, str]]) -> list[tuple[str, int, int]]:
    """Return the spans in a sequence of tags.

    Args:
        tags: of each, its letter in lower case ("" outside) and its label.

    Returns:
        Of each span, its label, its beginning, and the position behind its end.
    """
    spans: list[tuple[str, int, int]] = []
    before = ""
    for at, (letter, label) in enumerate(tags):
        if letter in ("i", "m", "e") and before in ("b", "i", "m") and spans[-1][0] == label:
            spans[-1] = (label, spans[-1][1], at + 1)
        elif letter not in ("", "o"):
            spans.append((label, at, at + 1))
        before = letter
    return spans


def _split(tag: str) -> tuple[str, str]:
    """Return a tag's letter and its label; ("", "") for what is no tag."""
    letter, separator, label = tag[:1].lower(), tag[1:2], tag[2:].lower()
    is_tag = letter in set("biomes") and len(letter) == 1 and separator in ("", "-", "_")
    return (letter, label) if is_tag else ("", "")


def _encoding(letters: set[str], asked: str | None) -> str:
    if asked is not None and str(asked).lower() not in ENCODINGS:
        known = nearest(asked, ENCODINGS)
        raise CallerError(f"encoding_type must be one of {', '.join(ENCODINGS)} or None, not {asked!r}. {known}")
    for name, has in ENCODINGS.items():
        if asked is None and letters and letters <= set(has):
            return name
    if asked is None:
        told = ", ".join(sorted(letters)) or "none"
        raise CallerError(f"tag_vocab has tags that begin with {told}, which is none of {', '.join(ENCODINGS)}")
    name = str(asked).lower()
    if more := letters - set(ENCODINGS[name]):
        raise CallerError(f"tag_vocab has tags that begin with {', '.join(sorted(more))}, which {name} hasn't")
    return name

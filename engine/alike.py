"""Work that ends alike on all ranks: what is done or found by rank 0 is so for all, and what fails on one has failed.

All ranks come here, in the same order; one that is `alone` works for itself. Once a rank has failed nobody waits any
more: then rank 0 writes what it can.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, TypeVar

from tachograph.drivers.ranks import RankFailed, Ranks

from .notes import message, note

T = TypeVar("T")

_NOBODY = object()  # was there to say anything


def alone(ranks: Ranks, act: Callable[[], Any]) -> None:
    """Do something for which this rank waits for no other."""
    with ranks.alone():
        act()


def by_first(ranks: Ranks, act: Callable[[], Any]) -> None:
    """Have rank 0 do something, and every rank wait for it.

    Raises:
        Exception: what `act` raised, on every rank.
    """

    def done() -> None:
        act()

    _first(ranks, done)


def found_by_first(ranks: Ranks, look: Callable[[], T]) -> T:
    """Return on every rank what rank 0 finds, where others may come too late, or see a disk otherwise.

    Args:
        ranks: who ask.
        look: changes nothing; what it returns can be pickled.

    Raises:
        Exception: what `look` raised, on every rank.
    """
    found = _first(ranks, look)
    return look() if found is _NOBODY else found  # type: ignore[no-any-return]


def by_each(ranks: Ranks, act: Callable[[], T]) -> T:
    """Do something on every rank; what goes wrong on one is raised on all.

    Raises:
        Exception: what `act` raised here, or else what it raised on the lowest rank that it failed on.
    """
    if ranks.world_size == 1:
        return act()
    done, error = _tried(act)
    told = ranks.gather(_sent(error, ranks))
    if error is not None:
        raise error
    for other in filter(None, told):
        raise other
    return done  # type: ignore[no-any-return]


def _first(ranks: Ranks, act: Callable[[], Any]) -> Any:
    if ranks.world_size == 1:
        return act()
    done, error = _tried(act) if ranks.first else (_NOBODY, None)
    done, told = ranks.share((done, _sent(error, ranks)))
    if error is not None:
        raise error
    if told is not None:
        raise told
    return done


def _tried(act: Callable[[], Any]) -> tuple[Any, Exception | None]:
    try:
        return act(), None
    except RankFailed:  # it has been told already
        raise
    except Exception as error:
        return None, error


def _sent(error: Exception | None, ranks: Ranks) -> Exception | None:
    """Return an error as other ranks raise it: itself, if it can travel; its traceback and its causes stay here."""
    if error is None:
        return None
    try:
        sent: Exception = pickle.loads(pickle.dumps(error))
        if type(sent) is not type(error) or str(sent) != str(error):
            raise TypeError
    except Exception:
        sent = RankFailed(f"{type(error).__name__}: {message(error)}")
    note(sent, f"it struck rank {ranks.rank}")
    return sent


__all__ = ["alone", "by_each", "by_first", "found_by_first"]

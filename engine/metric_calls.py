"""Metrics as an evaluator sees them: checked when they are given, filled by name, read as plain data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tachograph.drivers import Driver, MatchFault
from tachograph.drivers.matching import Signature, as_mapping
from tachograph.states.errors import CallerError

from .notes import note

_INNER = ("metric", "base_metric", "_base_metric")  # what wraps one metric keeps it under one of these


def checked_metrics(metrics: Any) -> dict[str, Any]:
    """Return metrics by their names.

    Raises:
        CallerError: there is none, or one lacks a method.
    """
    if not isinstance(metrics, Mapping) or not metrics:
        raise CallerError(f"metrics must be a dict name -> metric with one metric at least, not {metrics!r}")
    first: dict[int, Any] = {}
    for name, metric in metrics.items():
        if first.setdefault(id(metric), name) != name:
            raise CallerError(
                f"the metrics {first[id(metric)]!r} and {name!r} are one object, which would count every batch twice"
            )
        if not isinstance(name, str):
            raise CallerError(f"the name of a metric must be a string, not {name!r}")
        if isinstance(metric, type):
            raise CallerError(f"metric {name!r} is the class {metric.__name__}: give an object of it")
        has = {
            method: callable(getattr(metric, method, None)) for method in ("update", "compute", "get_metric", "reset")
        }
        lacking = [method for method in ("update", "reset") if not has[method] and not _is_called(metric)]
        if not has["compute"] and not has["get_metric"]:
            lacking.append("compute")
        if lacking:
            raise CallerError(
                f"metric {name!r} must have update, compute and reset; {type(metric).__name__} lacks {lacking[0]}"
            )
    return dict(metrics)


def _is_called(metric: Any) -> bool:
    """Say whether it is a metric of allennlp's kind, which is called instead of updated."""
    has = {method: callable(getattr(metric, method, None)) for method in ("update", "get_metric", "reset")}
    return callable(metric) and has == {"update": False, "get_metric": True, "reset": True}


def update_of(name: str, metric: Any) -> Callable[[Any, Any], None]:
    """Compile `update(outputs, batch)` for a metric: its parameters are filled by name, from the outputs first."""
    signature, take = _signature(f"metric {name!r}", metric), _taking(metric)

    def update(outputs: Any, batch: Any) -> None:
        sources = [found for found in (as_mapping(outputs), as_mapping(batch)) if found is not None]
        if not sources:
            raise MatchFault(
                f"metric {name!r} needs names, but outputs are a {type(outputs).__name__} and the batch a "
                f"{type(batch).__name__}: return a dict from the model, or map with output_mapping"
            )
        picked = signature.pick(*sources)
        try:
            take(**picked)
        except BaseException as error:
            note(error, f"in the update of metric {name!r}")
            raise

    return update


def _taking(metric: Any) -> Callable[..., Any]:
    return metric if _is_called(metric) else metric.update  # type: ignore[no-any-return]


def _signature(name: str, metric: Any) -> Signature:
    """Read what a metric's `update` takes; one that takes anything and holds other metrics takes what those do."""
    signature = Signature(_taking(metric), name)
    inner = _inner(metric) if signature.takes_all else []
    if not inner:
        return signature
    parts = [_signature(name, one) for one in inner]
    signature.takes_all = any(part.takes_all for part in parts)
    signature.names = tuple(dict.fromkeys(n for part in parts for n in part.names))
    signature.required = tuple(dict.fromkeys(n for part in parts for n in part.required))
    return signature


def _inner(metric: Any) -> list[Any]:
    """Return the metrics in a collection of them, or in what wraps one; [] for any other."""
    values = getattr(metric, "values", None)
    held: Any = list(values()) if callable(values) else getattr(metric, "metrics", None)
    if not isinstance(held, Iterable):
        held = [getattr(metric, name) for name in _INNER if hasattr(metric, name)][:1]
    found = list(held)
    return found if all(_is_metric(one) for one in found) else []


def _is_metric(one: Any) -> bool:
    return all(callable(getattr(one, method, None)) for method in ("update", "compute", "reset"))


def computed(name: str, metric: Any, driver: Driver) -> Any:
    """Compute a metric, as plain data.

    Raises:
        CallerError: what it gives is none.
    """
    try:
        value = (metric.compute if hasattr(metric, "compute") else metric.get_metric)()
        return _plain(driver.plain(value), name)
    except BaseException as error:
        note(error, f"when metric {name!r} was computed")
        raise


def _plain(value: Any, name: str) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return value
    held = as_mapping(value)
    if held is not None:
        return {str(key): _plain(v, name) for key, v in held.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v, name) for v in value]
    if hasattr(value, "tolist"):  # numpy's
        return _plain(value.tolist(), name)
    raise CallerError(
        f"metric {name!r} gave a {type(value).__name__}, which no record can hold: let it give numbers, strings, "
        "tensors, or lists and dicts of these"
    )

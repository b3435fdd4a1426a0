"""Metrics as an evaluator sees them: checked when they are given, filled by name, read as plain data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tachograph.drivers import Driver, MatchFault
from tachograph.drivers.matching import Signature, as_mapping
from tachograph.states.errors import CallerError, nearest

from .articles import a_kind
from .notes import note
from .output_mean import OutputMean

_INNER = ("metric", "base_metric", "_base_metric")  # what wraps one metric keeps it under one of these


def checked_metrics(metrics: Any) -> tuple[dict[str, Any], dict[str, Mapping[str, str]]]:
    """Return metrics by their names, and what each takes its arguments from where that isn't their own name.

    Raises:
        CallerError: there is none, or one lacks a method.
    """
    if not isinstance(metrics, Mapping) or not metrics:
        raise CallerError(f"metrics must be a dict name -> metric with one metric at least, not {metrics!r}")
    held, sources = {}, {}
    for name, given in metrics.items():
        held[name], sources[name] = _unfolded(given)
    _check(held)
    return held, sources


def _unfolded(given: Any) -> tuple[Any, Mapping[str, str]]:
    """Return what a string or a pair stands for: a metric, and parameter -> where it is taken from."""
    if isinstance(given, str) and given:
        return OutputMean(given), {}
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], Mapping):
        return given
    return given, {}


def _check(metrics: Mapping[str, Any]) -> None:
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
        if lacking and isinstance(metric, tuple):
            raise CallerError(f"metric {name!r} must be (metric, {{parameter: name of an output}}), not {metric!r}")
        if lacking:
            raise CallerError(
                f"metric {name!r} must have update, compute and reset; {type(metric).__name__} lacks {lacking[0]}"
            )


def _is_called(metric: Any) -> bool:
    """Say whether it is a metric of allennlp's kind, which is called instead of updated."""
    has = {method: callable(getattr(metric, method, None)) for method in ("update", "get_metric", "reset")}
    return callable(metric) and has == {"update": False, "get_metric": True, "reset": True}


def unjoined(metrics: Mapping[str, Any], driver: Driver) -> str:
    """Say that every rank must evaluate all the data, since a metric can't be joined over ranks; "" if all can be."""
    for name, metric in metrics.items():
        if not hasattr(metric, "gather_with") and not driver.joins(metric):
            return (
                f"metric {name!r}, {a_kind(metric)}, can't be joined over ranks, so that every rank evaluates all the "
                "data: metrics of torchmetrics and of tachograph.drivers.metrics can be, and any that has "
                "gather_with(gather, distributed)"
            )
    return ""


def update_of(
    name: str, metric: Any, sources: Mapping[str, str], mean_of: Callable[[Any], Any], samples_of: Callable[[Any], int]
) -> Callable[[Any, Any], None]:
    """Compile `update(outputs, batch)` for a metric: its parameters are filled by name, from the outputs first.

    Args:
        name: of the metric, for messages.
        metric: one that was checked.
        sources: parameter -> what it is called in the outputs or the batch, where that's another name.
        mean_of: gives the mean of an output, None if it has none.
        samples_of: gives the number of samples in a batch.

    Raises:
        CallerError: the metric has no such parameter.
    """
    if isinstance(metric, OutputMean):
        sources = {"mean": metric.of}
    signature, take = _signature(f"metric {name!r}", metric), _taking(name, metric, mean_of, samples_of)
    filled = _filled_from(signature, sources)

    def update(outputs: Any, batch: Any) -> None:
        found = [held for held in (as_mapping(outputs), as_mapping(batch)) if held is not None]
        if not found:
            raise MatchFault(
                f"metric {name!r} needs names, but outputs are {a_kind(outputs)} and the batch {a_kind(batch)}: "
                "return a dict from the model, or map with output_mapping"
            )
        try:
            picked = signature.pick(*found)
        except MatchFault as fault:
            raise MatchFault(f"{fault}{_way_out(name, metric, signature, sources, found)}") from None
        arguments = dict(picked) if signature.takes_all else {}
        arguments.update((parameter, picked[source]) for parameter, source in filled.items() if source in picked)
        try:
            take(arguments, batch)
        except BaseException as error:
            note(error, f"in the update of metric {name!r}")
            raise

    return update


def _filled_from(signature: Signature, sources: Mapping[str, str]) -> dict[str, str]:
    """Return parameter -> the name that it is filled from, and let the signature pick those names."""
    for parameter, source in sources.items():
        if parameter not in signature.names and not signature.takes_all:
            raise CallerError(f"{signature.name} takes no {parameter!r}. {nearest(parameter, signature.names)}")
        if not isinstance(source, str):
            raise CallerError(f"{signature.name}: {parameter!r} must be filled from a name, not from {source!r}")
    filled = {name: sources.get(name, name) for name in (*signature.names, *sources)}
    needed = [filled[name] for name in signature.required]
    signature.names = tuple(dict.fromkeys(filled.values()))
    signature.required = tuple(dict.fromkeys([*needed, *sources.values()]))
    return filled


def _way_out(
    name: str, metric: Any, signature: Signature, sources: Mapping[str, str], found: list[Mapping[str, Any]]
) -> str:
    """Say what else may be given in place of a metric that lacks an argument."""
    missing = next((n for n in signature.required if not any(n in held for held in found)), None)
    if isinstance(metric, OutputMean):
        return "; a string in place of a metric is the name of an output, whose mean is taken" if missing else ""
    if missing is None or missing in sources.values():
        return ""
    alone = f"; for this metric alone: metrics={{{name!r}: (metric, {{{missing!r}: 'its name there'}})}}"
    mean = f"; the mean of an output: metrics={{{name!r}: 'its name'}}" if len(signature.required) == 1 else ""
    return alone + mean


def _taking(
    name: str, metric: Any, mean_of: Callable[[Any], Any], samples_of: Callable[[Any], int]
) -> Callable[[dict[str, Any], Any], Any]:
    """Return what is called with a metric's arguments and the batch."""
    if not isinstance(metric, OutputMean):
        fn = metric if _is_called(metric) else metric.update
        return lambda arguments, batch: fn(**arguments)

    def take(arguments: dict[str, Any], batch: Any) -> None:
        mean = mean_of(arguments["mean"])
        if mean is None:
            held = a_kind(arguments["mean"])
            raise CallerError(
                f"metric {name!r} is the mean of {metric.of!r}, which must be a number or a tensor of them, not {held}"
            )
        metric.update(mean, samples_of(batch))

    return take


def _signature(name: str, metric: Any) -> Signature:
    """Read what a metric's `update` takes; one that takes anything and holds other metrics takes what those do."""
    signature = Signature(metric if _is_called(metric) else metric.update, name)
    if isinstance(metric, OutputMean):
        signature.names = signature.required = ("mean",)
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

"""Samplers: one contract that all of them keep, then what each of them is for."""

from __future__ import annotations

import copy
import inspect
import io
import itertools
import random
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, ConcatDataset, DataLoader, Dataset, IterableDataset, WeightedRandomSampler
from torch.utils.data import RandomSampler as TorchRandomSampler

from tachograph.drivers import (
    BucketedBatchSampler,
    DopedSampler,
    MixSequentialSampler,
    PollingSampler,
    RandomBatchSampler,
    RandomSampler,
    ReproduceBatchSampler,
    ReproducibleBatchSampler,
    SamplerFault,
    SequentialSampler,
    SortedSampler,
    UnrepeatedRandomSampler,
    UnrepeatedSequentialSampler,
    UnrepeatedSortedSampler,
    generators,
    replace_batch_sampler,
    replace_sampler,
)
from tachograph.states.errors import CallerError

N = 23
LENGTHS = [(7 * i) % 11 for i in range(N)]
PARTS = [4, 12, 7]
"""Three datasets that hold `N` samples together."""

SAMPLERS: dict[str, Callable[..., Any]] = {
    "random": lambda: RandomSampler(N, seed=3),
    "random, not shuffled": lambda: RandomSampler(N, shuffle=False),
    "sequential": lambda: SequentialSampler(N),
    "sorted": lambda: SortedSampler(N, LENGTHS),
    "random batches": lambda: RandomBatchSampler(N, 4, seed=3),
    "random batches, the last dropped": lambda: RandomBatchSampler(N, 4, drop_last=True),
    "bucketed": lambda: BucketedBatchSampler(N, LENGTHS, 3, 2, seed=3),
    "bucketed, not shuffled": lambda: BucketedBatchSampler(N, LENGTHS, 3, 2, shuffle=False),
    "bucketed, the last dropped": lambda: BucketedBatchSampler(N, LENGTHS, 4, 2, drop_last=True),
    "written down": lambda: ReproduceBatchSampler(BatchSampler(TorchRandomSampler(range(N)), 5, False), 4, False),
    "unrepeated random": lambda: UnrepeatedRandomSampler(N, shuffle=True, seed=3),
    "unrepeated sorted": lambda: UnrepeatedSortedSampler(N, LENGTHS),
    "unrepeated sequential": lambda: UnrepeatedSequentialSampler(N),
    "unrepeated chunks": lambda: UnrepeatedSequentialSampler(N, chunk_dist=True),
    "doped": lambda: DopedSampler(PARTS, 4, "rand", seed=3),
    "doped, padded": lambda: DopedSampler(PARTS, 4, "rand", "pad_to_most"),
    "one after the other": lambda: MixSequentialSampler(PARTS, 3, "rand", seed=3),
    "one after the other, short ones dropped": lambda: MixSequentialSampler(PARTS, 3, "rand", drop_last=True),
    "in turn": lambda: PollingSampler(PARTS, 3, "rand", ds_ratio=None, seed=3),
    "in turn, padded": lambda: PollingSampler(PARTS, 3, "rand"),
    "in turn, short ones dropped": lambda: PollingSampler(PARTS, 3, ds_ratio=None, drop_last=True),
    "in turn, by ratio": lambda: PollingSampler(PARTS, 3, "rand", ds_ratio=[2, 0.5, 1.2]),
}
FIXED = {
    "random, not shuffled",
    "sequential",
    "sorted",
    "bucketed, not shuffled",
    "unrepeated sorted",
    "unrepeated sequential",
    "unrepeated chunks",
    "in turn, short ones dropped",
}
"""Those whose epochs all have one order."""
SHARED = [name for name in SAMPLERS if name != "written down"]
each_sampler = pytest.mark.parametrize("name", SAMPLERS)
each_shared_sampler = pytest.mark.parametrize("name", SHARED)


def flat(entries: Any) -> list[int]:
    """The samples of entries, which are samples or batches of them."""
    return [i for entry in entries for i in (entry if isinstance(entry, list) else [entry])]


def at(name: str, epoch: int = 0, consumed: int = 0, replicas: int = 1, rank: int = 0) -> Any:
    """A sampler that stands in an epoch."""
    sampler = SAMPLERS[name]()
    if replicas > 1:
        sampler.set_distributed(replicas, rank)
    sampler.seek(epoch, consumed)
    return sampler


# -- the order ---------------------------------------------------------------------------------------------


@each_sampler
def test_the_order_of_an_epoch_is_a_pure_function_of_the_seed_and_the_epoch(name: str) -> None:
    """SA1: whatever was asked before, and whatever the global generators stand at."""
    one, other = SAMPLERS[name](), SAMPLERS[name]()
    orders = [one.order(epoch).tolist() for epoch in (0, 1, 2)]
    torch.rand(3), np.random.rand(3), random.random()
    list(other)
    assert [other.order(epoch).tolist() for epoch in (2, 0, 1)] == [orders[2], orders[0], orders[1]]
    assert (len(set(map(tuple, orders))) == 1) == (name in FIXED)
    if name not in FIXED:
        other.seed += 1
        assert other.order(7).tolist() != one.order(7).tolist()
    assert all(len(other.order(epoch)) for epoch in (-1, -7, 1 << 40))


@each_sampler
def test_an_epoch_hands_out_its_order_and_no_global_generator_moves(name: str) -> None:
    """R29."""
    torch.manual_seed(1)
    before = generators.capture()
    for epoch in (0, 5):
        sampler = at(name, epoch)
        entries = list(sampler)
        assert flat(entries) == sampler.order(epoch)[: len(flat(entries))].tolist()
        assert all(type(i) is int for i in flat(entries))
        if "dropped" not in name and "padded" not in name and "ratio" not in name:
            assert sorted(flat(entries)) == list(range(N))
    after = generators.capture()
    assert torch.equal(before["torch"], after["torch"])
    assert torch.equal(before["numpy"]["keys"], after["numpy"]["keys"])
    assert before["numpy"]["position"] == after["numpy"]["position"]
    assert torch.equal(before["python"]["words"], after["python"]["words"])


@each_sampler
def test_a_length_is_what_an_epoch_hands_out_and_what_is_left_is_what_follows(name: str) -> None:
    for replicas, rank in [(1, 0)] if name == "written down" else [(1, 0), (2, 1), (3, 0), (4, 3)]:
        sampler = at(name, 2, 0, replicas, rank)
        entries = list(at(name, 2, 0, replicas, rank))
        assert len(sampler) == len(entries)
        assert sampler.num_left_samples == len(flat(entries))
        for done, entry in enumerate(sampler, 1):
            assert sampler.num_left_samples == len(flat(entries[done:]))
            assert getattr(sampler, "num_left_batches", len(entries) - done) == len(entries) - done
            assert len(sampler) == len(entries)
            assert sampler.num_consumed_samples >= len(flat([entry]))
        assert (sampler.epoch, sampler.num_consumed_samples) == (3, 0)
        assert sampler.num_left_samples == len(flat(at(name, 3, 0, replicas, rank)))


@each_sampler
def test_a_loop_that_never_says_an_epoch_gets_one_after_the_other(name: str) -> None:
    sampler = SAMPLERS[name]()
    assert [list(sampler) for _ in range(3)] == [list(at(name, epoch)) for epoch in range(3)]


@each_sampler
def test_an_epoch_begins_at_its_beginning_once_it_is_set_or_was_left(name: str) -> None:
    """R09: what was handed out before doesn't matter, since a loader fetches ahead."""
    sampler, whole = SAMPLERS[name](), list(at(name, 1))
    sampler.set_epoch(1)
    for _ in range(2):
        walk = iter(sampler)
        next(walk)
        del walk
    assert list(sampler) == whole
    sampler.set_epoch(1)
    assert list(sampler) == whole


# -- ranks -------------------------------------------------------------------------------------------------


@each_shared_sampler
@pytest.mark.parametrize("replicas", [2, 3, 5])
def test_ranks_share_an_epoch(name: str, replicas: int) -> None:
    """SA1, SA5: equally many each, or every sample once."""
    shares = [list(at(name, 1, 0, replicas, rank)) for rank in range(replicas)]
    seen = Counter(flat(itertools.chain(*shares)))
    if name.startswith("unrepeated"):
        assert seen == Counter(range(N))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
        return
    assert len({tuple(len(flat([entry])) for entry in share) for share in shares}) == 1, "ranks in step"
    if "dropped" not in name and "padded" not in name and "ratio" not in name:
        assert set(seen) == set(range(N))
        assert sum(seen.values()) - N < replicas * (3 if "one after" in name or "in turn" in name else 1)


@each_shared_sampler
def test_without_padding_the_tail_is_dropped(name: str) -> None:
    if name.startswith("unrepeated"):
        return
    shares = [list(SAMPLERS[name]().set_distributed(4, rank, pad=False)) for rank in range(4)]
    assert len({tuple(len(flat([entry])) for entry in share) for share in shares}) == 1
    if "padded" not in name and "ratio" not in name:
        assert max(Counter(flat(itertools.chain(*shares))).values()) == 1


@pytest.mark.parametrize("name", ["random", "sorted", "sequential", "random batches"])
def test_padding_wraps_around_to_the_head_of_the_order(name: str) -> None:
    """SA1."""
    order = SAMPLERS[name]().order(0).tolist()
    shares = [flat(at(name, 0, 0, 4, rank)) for rank in range(4)]
    assert flat(map(list, zip(*shares, strict=True))) == order + order[:1]
    few = [list(RandomSampler(2).set_distributed(5, rank)) for rank in range(5)]
    head = RandomSampler(2).order(0).tolist()
    assert flat(few) == [*head, *head, head[0]]


@pytest.mark.parametrize("arguments", [(0, 0), (2, 2), (2, -1), (-1, 0), (1.0, 0), (True, 0), ("2", 0), (2, 0, "yes")])
def test_a_rank_that_there_is_not_is_refused(arguments: Any) -> None:
    sampler = RandomSampler(N)
    with pytest.raises(CallerError, match=r"num_replicas|rank|pad"):
        sampler.set_distributed(*arguments)
    assert (sampler.num_replicas, sampler.rank) == (1, 0)


# -- going on ----------------------------------------------------------------------------------------------


def saved(state: dict[str, Any]) -> Any:
    """A state as a snapshot keeps it."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@each_sampler
def test_a_state_taken_anywhere_goes_on_there_in_a_new_sampler_and_in_the_same_one(name: str) -> None:
    """SA1, SA2, SA3, SA4, SA5, SA6, R09, R19, R26: the rest of the epoch, then whole ones."""
    whole, following = list(at(name, 1)), list(at(name, 2))
    for done in range(len(whole) + 1):
        sampler = at(name, 1)
        walk = iter(sampler)
        assert list(itertools.islice(walk, done)) == whole[:done]
        state = saved(sampler.state_dict())
        del walk
        for resumed in (SAMPLERS[name](), sampler):
            resumed.load_state_dict(state)
            if done == len(whole):
                assert (resumed.epoch, resumed.num_consumed_samples) in [(1, len(flat(whole))), (2, 0)]
                continue
            assert resumed.num_left_samples == len(flat(whole[done:]))
            assert list(resumed) == whole[done:]
            assert list(resumed) == following


@each_sampler
def test_samples_that_were_only_fetched_ahead_are_not_consumed(name: str) -> None:
    """B8: 6 entries were handed to workers, 2 were trained on."""
    whole = list(at(name, 1))
    for fetched in (4, len(whole)):
        sampler = at(name, 1)
        walk = iter(sampler)
        assert len(list(itertools.islice(walk, fetched))) == fetched
        assert fetched < len(whole) or next(walk, None) is None
        consumed = len(flat(whole[:2]))
        state = sampler.state_dict(consumed=consumed)
        assert (state["epoch"], state["num_consumed_samples"]) == (1, consumed)
        resumed = SAMPLERS[name]()
        resumed.load_state_dict(state)
        assert list(resumed) == whole[2:]


@each_sampler
def test_a_position_is_found_again_by_its_number_alone(name: str) -> None:
    whole = list(at(name, 3))
    for done in range(len(whole) + 1):
        assert list(at(name, 3, len(flat(whole[:done])))) == whole[done:]


@each_sampler
def test_a_loaded_position_stays_in_its_epoch_and_is_used_once(name: str) -> None:
    whole = list(at(name, 1))
    state = at(name, 1).state_dict(consumed=len(flat(whole[:2])))
    sampler = SAMPLERS[name]()
    sampler.load_state_dict(state)
    sampler.set_epoch(1)
    assert list(sampler) == whole[2:]
    sampler.load_state_dict(state)
    sampler.set_epoch(4)
    assert list(sampler) == list(at(name, 4))
    sampler.load_state_dict(state)
    next(iter(sampler))
    sampler.set_epoch(1)
    assert list(sampler) == whole


@each_sampler
def test_what_is_all_consumed_is_the_beginning_of_the_next_epoch(name: str) -> None:
    """SA1."""
    sampler = SAMPLERS[name]()
    sampler.load_state_dict(at(name, 1).state_dict(consumed=1000))
    assert (sampler.epoch, sampler.num_consumed_samples) == (2, 0)
    assert list(sampler) == list(at(name, 2))


@each_shared_sampler
@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (2, 3), (4, 2), (1, 5)])
def test_the_number_of_ranks_may_change_in_the_middle_of_an_epoch(name: str, before: int, after: int) -> None:
    """SA1, SA4: the samples that nobody saw follow, and none that was seen."""
    steps = len(at(name, 1, 0, before)) - 1
    for done in range(steps):
        old = [at(name, 1, 0, before, rank) for rank in range(before)]
        seen = flat(itertools.chain(*(itertools.islice(iter(sampler), done) for sampler in old)))
        state = old[0].state_dict()
        assert state["num_consumed_samples"] == len(seen)
        rest: list[int] = []
        for rank in range(after):
            sampler = SAMPLERS[name]().set_distributed(after, rank)
            sampler.load_state_dict(state)
            if sampler.epoch == 1:  # what is left may make no batch of the new size
                assert sampler.num_left_samples == len(flat(copy.copy(sampler)))
                rest += flat(sampler)
        if "padded" in name or "ratio" in name:
            continue
        assert not set(seen) & (set(rest) - set(SAMPLERS[name]().order(1)[:after].tolist()))
        if "dropped" not in name:
            assert set(seen) | set(rest) == set(range(N))


# -- what is refused ---------------------------------------------------------------------------------------


@each_sampler
def test_nothing_is_loaded_and_nothing_shared_while_an_iteration_is_under_way(name: str) -> None:
    """SA1: the iteration goes on, and once it's let go of, all is well."""
    sampler, whole = at(name, 1), list(at(name, 1))
    state = sampler.state_dict()
    walk = iter(sampler)
    assert sampler.during_iter
    with pytest.raises(SamplerFault, match="iteration over it is under way"):
        sampler.load_state_dict(state)
    if name != "written down":
        with pytest.raises(SamplerFault, match="iteration over it is under way"):
            sampler.set_distributed(2, 0)
    assert list(walk) == whole
    assert not sampler.during_iter
    walk = iter(sampler)
    next(walk)
    with pytest.raises(SamplerFault):
        sampler.load_state_dict(state)
    copied = copy.deepcopy(sampler)
    copied.load_state_dict(state)
    sampler.seek(7)
    sampler.load_state_dict(state)
    assert list(walk) == list(at(name, 2))[1:], "its holder gets the rest, which doesn't count"
    assert list(sampler) == list(copied) == whole


@each_sampler
def test_a_state_that_does_not_fit_is_refused_and_nothing_is_changed(name: str) -> None:
    """SA1: type and length, unknown and missing keys, by name."""
    sampler = SAMPLERS[name]()
    state = at(name, 1).state_dict(consumed=4)
    kept = sampler.state_dict()
    other = RandomSampler(N) if "random" not in name or "un" in name or "batches" in name else SequentialSampler(N)
    wrong: list[tuple[Any, str]] = [
        (other.state_dict(), f"the state of a {type(other).__name__}, and it can't be loaded into a "),
        ({**state, "length": N + 1}, "length"),
        ({**state, "color": 1}, "has 'color', which isn't known"),
        ({**state, "epoch": "1"}, "'epoch' in the state must be an integer, not '1'"),
        ({**state, "num_consumed_samples": -1}, "'num_consumed_samples' in the state must be an integer >= 0, not -1"),
        ({**state, "num_consumed_samples": True}, "num_consumed_samples"),
        ([1, 2], "is a dict"),
        *(({k: v for k, v in state.items() if k != key}, f"lacks '{key}'") for key in state),
    ]
    for bad, said in wrong:
        with pytest.raises(CallerError, match=said):
            sampler.load_state_dict(bad)
    after = sampler.state_dict()
    assert {k: str(v) for k, v in after.items()} == {k: str(v) for k, v in kept.items()}
    assert list(sampler) == list(at(name, 0))


@each_sampler
def test_a_sampler_keeps_the_arguments_it_was_built_with(name: str) -> None:
    """SA7: so it can be built anew."""
    sampler = SAMPLERS[name]()
    again = type(sampler)(**{p: getattr(sampler, p) for p in inspect.signature(type(sampler)).parameters})
    assert [list(again) for _ in range(2)] == [list(at(name, 0)), list(at(name, 1))]


@each_sampler
def test_a_sampler_may_be_copied_in_the_middle_of_an_epoch(name: str) -> None:
    sampler = at(name, 1)
    walk = iter(sampler)
    next(walk)
    for copied in (copy.copy(sampler), copy.deepcopy(sampler)):
        assert copied.state_dict().keys() == sampler.state_dict().keys()
        assert not copied.during_iter
        assert list(copied) == list(at(name, 1))
    assert len(list(walk)) == len(list(at(name, 1))) - 1


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: RandomSampler(iter([])), "has no length"),
        (lambda: RandomSampler(-1), "length of a dataset must be an integer >= 0"),
        (lambda: RandomSampler(3, shuffle="yes"), "shuffle must be True or False, not 'yes'"),
        (lambda: RandomSampler(3, seed=0.5), "seed must be an integer, not 0.5"),
        (lambda: RandomSampler(3, seed=None), "seed must be an integer, not None"),
        (lambda: RandomBatchSampler(3, 0), "batch_size must be an integer >= 1, not 0"),
        (lambda: RandomBatchSampler(3, True), "batch_size must be an integer >= 1, not True"),
        (lambda: RandomBatchSampler(3, 2, drop_last=1), "drop_last must be True or False, not 1"),
        (lambda: SortedSampler(3, [1, 2]), "one number for each of the 3 samples"),
        (lambda: SortedSampler(3, "text"), r"for a column of texts: list\(map\(len, dataset\['text'\]\)\)"),
        (lambda: SortedSampler(2, ["a", "b"]), "a sequence of numbers"),
        (lambda: SortedSampler(2, [[1], [2, 3]]), "a sequence of numbers"),
        (lambda: BucketedBatchSampler(2, [1, 2], 1, 0), "num_batch_per_bucket must be an integer >= 1"),
        (lambda: UnrepeatedSequentialSampler(4, chunk_dist=2), "chunk_dist must be True or False"),
        (lambda: ReproduceBatchSampler(iter([1]), 1, False), "must give its indices in every epoch again"),
        (lambda: ReproduceBatchSampler(3, 1, False), "must give its indices in every epoch again"),
        (lambda: list(ReproduceBatchSampler(["a"], 1, False)), "keeps integers, and its sampler gave 'a'"),
        (lambda: DopedSampler(7, 2), "dataset must be a list or dict of datasets, not 7"),
        (lambda: DopedSampler([], 2), "dataset must be a list or dict of datasets"),
        (lambda: DopedSampler([3, 4], 2, "shuffle"), "sampler must be None"),
        (lambda: DopedSampler([3, 4], 2, [SequentialSampler(3)]), "sampler must hold one value for each of the 2"),
        (lambda: DopedSampler([3], 2, [RandomBatchSampler(3)]), "must give single indices"),
        (lambda: DopedSampler([3], 2, ["rand"]), "must give single indices"),
        (lambda: list(DopedSampler([3, 4], 2, [SequentialSampler(4)] * 2)), "not below its 3 samples"),
        (lambda: DopedSampler({"a": 3}, 2, ds_ratio={"b": 1}), r"ds_ratio must have the keys of dataset, \['a'\]"),
        (lambda: DopedSampler([3, 4], 2, ds_ratio=[1]), "ds_ratio must hold one value for each of the 2 datasets"),
        (lambda: DopedSampler([3, 4], 2, ds_ratio=[1, -1]), "a ratio in ds_ratio must be a number >= 0, not -1"),
        (lambda: DopedSampler([3, 4], 2, ds_ratio=[1, float("nan")]), "a ratio in ds_ratio must be a number >= 0"),
        (lambda: DopedSampler([3, 4], 2, ds_ratio="pad"), "ds_ratio must be one value for each dataset, not 'pad'"),
        (lambda: DopedSampler([3, 0], 2, ds_ratio="pad_to_most"), "dataset 1 is empty, and 3 samples of it are asked"),
    ],
)
def test_arguments_that_can_not_be_used_are_refused_in_one_sentence(make: Any, said: str) -> None:
    with pytest.raises(CallerError, match=said):
        make()


def test_a_seed_of_another_run_is_taken_over_with_a_word() -> None:
    """The order of the epoch that goes on must stay what it was."""
    state = RandomSampler(N, seed=1).state_dict(consumed=3)
    sampler = RandomSampler(N, seed=2)
    with pytest.warns(UserWarning, match="was saved with seed=1; it is used, rather than seed=2"):
        sampler.load_state_dict(state)
    assert list(sampler) == RandomSampler(N, seed=1).order(0)[3:].tolist()
    again = RandomSampler(N, shuffle=False, seed=1)
    with pytest.warns(UserWarning, match="was saved with shuffle=True"):
        again.load_state_dict(state)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again.load_state_dict(state)


# -- random, sequential, sorted ----------------------------------------------------------------------------


def test_an_order_of_a_million_is_made_in_numpy_and_handed_out_as_it_goes() -> None:
    sampler = RandomSampler(1_000_000)
    first = list(itertools.islice(iter(sampler), 3))
    sampler.seek(0, 999_998)
    assert len(list(sampler)) == 2
    assert first == sampler.order(0)[:3].tolist()


def test_a_dataset_that_grows_is_as_long_as_it_is_in_each_epoch() -> None:
    data = [0, 1]
    sampler = SequentialSampler(data)
    assert list(sampler) == [0, 1]
    data.append(2)
    assert (list(sampler), len(sampler)) == ([0, 1, 2], 3)


def test_an_empty_dataset_has_empty_epochs() -> None:
    for sampler in (RandomSampler(0), RandomBatchSampler([]), BucketedBatchSampler(0, []), DopedSampler([0, 0], 2)):
        assert (list(sampler), len(sampler), sampler.num_left_samples) == ([], 0, 0)


def test_a_sorted_sampler_gives_the_longest_first_and_equal_ones_in_their_order() -> None:
    """SA2: whatever the lengths come in."""
    lengths = [3, 1, 3, 2, 3]
    for held in (lengths, tuple(lengths), np.array(lengths), torch.tensor(lengths), np.array(lengths, np.uint8)):
        assert list(SortedSampler(5, held)) == [0, 2, 4, 3, 1]
        assert list(UnrepeatedSortedSampler(5, held)) == [0, 2, 4, 3, 1]


def test_other_lengths_of_the_same_data_are_another_order() -> None:
    for make in (SortedSampler, UnrepeatedSortedSampler, BucketedBatchSampler):
        state = make(3, [1, 2, 3]).state_dict()
        with pytest.raises(CallerError, match="saved with lengths"):
            make(3, [1, 2, 4]).load_state_dict(state)


# -- batches -----------------------------------------------------------------------------------------------


@given(st.integers(0, 60), st.integers(1, 9), st.integers(1, 9), st.integers(0, 60), st.booleans(), st.booleans())
def test_random_batches_go_on_in_the_same_order_with_another_batch_size(
    n: int, old: int, new: int, done: int, shuffle: bool, drop_last: bool
) -> None:
    """SA4."""
    state = RandomBatchSampler(n, old, shuffle, seed=5).state_dict(consumed=min(done, n) // old * old)
    consumed = state["num_consumed_samples"]
    sampler = RandomBatchSampler(n, new, shuffle, drop_last, seed=5)
    sampler.load_state_dict(state)
    rest = sampler.order(0).tolist()[consumed:]
    if sampler.epoch:
        assert len(rest) < (new if drop_last else 1)
        return
    expected = [rest[i : i + new] for i in range(0, len(rest), new)]
    assert list(sampler) == [batch for batch in expected if len(batch) == new or not drop_last]


@given(st.integers(1, 80), st.integers(1, 5), st.integers(1, 4), st.integers(1, 3), st.booleans())
def test_bucketed_batches_are_of_like_length_and_hold_every_sample_once(
    n: int, batch: int, bucket: int, replicas: int, shuffle: bool
) -> None:
    """SA4: a batch of all ranks lies within one bucket; the last one alone may be short."""
    lengths = [(i * 7919) % 97 for i in range(n)]
    shares = [
        list(BucketedBatchSampler(n, lengths, batch, bucket, shuffle).set_distributed(replicas, rank))
        for rank in range(replicas)
    ]
    together = [flat(map(list, zip(*batches, strict=True))) for batches in zip(*shares, strict=True)]
    assert set(flat(together)) == set(range(n))
    assert all(len(batches) == batch * replicas for batches in together[:-1])
    place = {sample: i for i, sample in enumerate(SortedSampler(n, lengths).order(0).tolist())}
    for batches in together:
        assert len({place[sample] // (batch * replicas * bucket) for sample in batches}) == 1
    if not shuffle:
        assert flat(together)[:n] == SortedSampler(n, lengths).order(0).tolist()


def test_buckets_and_batches_are_shuffled_in_every_epoch_anew() -> None:
    sampler = BucketedBatchSampler(64, list(range(64)), 4, 4)
    one, two = list(sampler), list(sampler)
    assert sorted(map(sorted, one)) != sorted(map(sorted, two)), "within the buckets"
    assert [max(batch) // 16 for batch in one] not in ([3] * 4 + [2] * 4 + [1] * 4 + [0] * 4,)
    assert [max(batch) // 16 for batch in one] != [max(batch) // 16 for batch in two]


@given(st.data())
def test_bucketed_batches_may_be_cut_again_and_again(data: Any) -> None:
    """SA4, SV16: another batch size, bucket size or number of ranks, twice in one epoch and more; none seen twice."""
    n = data.draw(st.integers(1, 60))
    lengths = [(i * 31) % 17 for i in range(n)]
    seen: Counter[int] = Counter()
    state, number = None, 0
    for _ in range(4):
        batch, bucket, replicas = (data.draw(st.integers(1, 5)) for _ in range(3))
        ranks = [
            BucketedBatchSampler(n, lengths, batch, bucket, seed=9).set_distributed(replicas, r)
            for r in range(replicas)
        ]
        for rank in ranks:
            if state is not None:
                rank.load_state_dict(state)
        if ranks[0].epoch:
            break
        walks = [iter(rank) for rank in ranks]
        for _ in range(data.draw(st.integers(0, 4))):
            handed = [next(walk, []) for walk in walks]
            assert len(set(map(len, handed))) == 1
            seen.update(flat(handed))
            number += len(flat(handed))
        if ranks[0].epoch:
            break
        assert ranks[0].num_consumed_samples == number
        state = ranks[0].state_dict()
        assert all(rank.state_dict() == state for rank in ranks)
        del walks
    else:
        last = BucketedBatchSampler(n, lengths, 3, 2, seed=9)
        last.load_state_dict(state)
        seen.update(flat(last) if not last.epoch else [])
    assert set(seen) == set(range(n))
    assert sum(seen.values()) <= n + 4


def test_a_cut_stays_in_the_history_of_its_epoch_only() -> None:
    lengths = list(range(40))
    state = BucketedBatchSampler(40, lengths, 4, 2).state_dict(consumed=8)
    sampler = BucketedBatchSampler(40, lengths, 5, 2)
    sampler.load_state_dict(state)
    rest = list(sampler)
    assert [len(batch) for batch in rest] == [5] * 6 + [2]
    again = BucketedBatchSampler(40, lengths, 5, 2)
    again.load_state_dict(saved(sampler.state_dict(consumed=18)))
    assert list(again) == rest[2:], "the history travels"
    assert list(again) == list(sampler) == list(BucketedBatchSampler(40, lengths, 5, 2).order(1).reshape(8, 5).tolist())


def test_a_history_may_be_older_than_the_position() -> None:
    """A run knows its position better than the state of a sampler that was taken before."""
    old, lengths = BucketedBatchSampler(40, list(range(40)), 4, 2), list(range(40))
    next(walk := iter(old))
    new = BucketedBatchSampler(40, lengths, 5, 2)
    new.load_state_dict(old.state_dict(consumed=0))
    new.seek(0, 8)
    assert sorted(flat(new)) == sorted(old.order(0)[8:].tolist())
    assert len(list(walk)) == 9


def test_a_history_that_can_not_be_is_refused() -> None:
    sampler = BucketedBatchSampler(40, list(range(40)), 4, 2)
    state = sampler.state_dict(consumed=8)
    (cut,) = state["cuts"]
    for cuts, said in [
        ([{**cut, "at": 3}], "must begin at 0 and ascend"),
        ([cut, cut], "must begin at 0 and ascend"),
        ([], "a cut in the state"),
        ([{"at": 0}], "a cut in the state of a BucketedBatchSampler has at, batch_size"),
        ([{**cut, "batch_size": "4"}], "a cut in the state"),
        ("none", "a cut in the state"),
        (3, "a cut in the state"),
        ([{**cut, "batch_size": 0}], "a cut in the state"),
    ]:
        with pytest.raises(CallerError, match=said):
            sampler.load_state_dict({**state, "cuts": cuts})


# -- written down ------------------------------------------------------------------------------------------


class Own:
    """A user's sampler with a generator of its own, which nobody can set back."""

    def __init__(self, n: int = 12) -> None:
        self.n, self.rng, self.asked, self.epochs = n, np.random.default_rng(), 0, []

    def __iter__(self) -> Iterator[Any]:
        self.asked += 1
        order = self.rng.permutation(self.n)
        return iter([order[:5].tolist(), tuple(order[5:8]), torch.tensor(order[8:])])

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)


def test_any_sampler_is_resumable_once_it_is_written_down() -> None:
    """SA3: its indices, in batches of a size of one's own; the saved list is used, not another one."""
    own = Own()
    sampler = ReproduceBatchSampler(own, 4, False)
    walk = iter(sampler)
    first = next(walk)
    state = saved(sampler.state_dict())
    rest = list(walk)
    assert sorted(flat([first, *rest])) == list(range(12))
    assert [len(batch) for batch in [first, *rest]] == [4, 4, 4]
    assert (own.asked, own.epochs) == (1, [0])
    resumed = ReproduceBatchSampler(Own(), 4, False)
    resumed.load_state_dict(state)
    assert list(resumed) == rest
    assert len(list(resumed)) == 3
    with pytest.raises(CallerError, match="saved with length 12, and here length is 13"):
        ReproduceBatchSampler(Own(13), 4, False).load_state_dict(state)
    with pytest.raises(CallerError, match="'index_list' in the state"):
        resumed.load_state_dict({**state, "index_list": [1.5]})


def test_what_a_sampler_draws_from_the_global_generators_is_a_function_of_seed_and_epoch() -> None:
    """SA3: also what is weighted."""
    weighted = WeightedRandomSampler([1.0] * 10 + [5.0] * 10, 14)
    epochs = [list(ReproduceBatchSampler(weighted, 4, True, seed)) for seed in (1, 2, 1)]
    assert epochs[0] == epochs[2] != epochs[1]
    assert [len(batch) for batch in epochs[0]] == [4, 4, 4]


def test_a_sampler_that_is_written_down_can_not_be_shared() -> None:
    """SA3."""
    sampler = ReproduceBatchSampler([1, 2, 3], 2, False)
    with pytest.raises(RuntimeError, match="can't be shared by ranks"):
        sampler.set_distributed(2, 0)
    assert list(sampler) == [[1, 2], [3]]


def test_a_length_that_is_asked_for_while_an_epoch_is_fetched_ahead_costs_no_list() -> None:
    """B8: the state is still that of the epoch that is trained on."""
    sampler = ReproduceBatchSampler(Own(), 4, False)
    whole = list(sampler)
    assert len(sampler) == 3
    resumed = ReproduceBatchSampler(Own(), 4, False)
    resumed.load_state_dict(sampler.state_dict(consumed=4))
    assert list(resumed) == whole[1:]


# -- evaluation --------------------------------------------------------------------------------------------


@given(st.integers(1, 50), st.data())
def test_every_sample_is_evaluated_on_exactly_one_rank(n: int, data: Any) -> None:
    """SA5."""
    replicas = data.draw(st.integers(1, n))
    for make in (
        lambda: UnrepeatedRandomSampler(n, True, 1),
        lambda: UnrepeatedSortedSampler(n, range(n)),
        lambda: UnrepeatedSequentialSampler(n),
        lambda: UnrepeatedSequentialSampler(n, True),
    ):
        samplers = [make().set_distributed(replicas, rank) for rank in range(replicas)]
        shares = [list(sampler) for sampler in samplers]
        assert sorted(flat(shares)) == list(range(n))
        assert list(map(len, shares)) == list(map(len, samplers))


def test_chunks_are_neighbours_and_everything_else_is_dealt_in_turn() -> None:
    """SA5."""

    def shares(chunk_dist: bool, n: int = 10) -> list[list[int]]:
        return [list(UnrepeatedSequentialSampler(n, chunk_dist).set_distributed(3, rank)) for rank in range(3)]

    assert shares(False) == [[0, 3, 6, 9], [1, 4, 7], [2, 5, 8]]
    assert shares(True) == [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9]]
    assert shares(True, 3) == shares(False, 3) == [[0], [1], [2]]


def test_more_ranks_than_samples_and_padding_are_refused_for_evaluation() -> None:
    """SA5."""
    for sampler in (UnrepeatedRandomSampler(3), UnrepeatedSortedSampler(3, [1, 2, 3]), UnrepeatedSequentialSampler(3)):
        with pytest.raises(
            SamplerFault, match="4 ranks can't share 3 samples so that each has one: use at most 3 ranks"
        ):
            sampler.set_distributed(4, 0)
        with pytest.raises(CallerError, match="repeats no sample: pad must be False"):
            sampler.set_distributed(2, 0, pad=True)
        sampler.set_distributed(3, 2)
        assert len(list(sampler)) == 1


# -- several datasets --------------------------------------------------------------------------------------

MIXES = [DopedSampler, MixSequentialSampler, PollingSampler]
each_mix = pytest.mark.parametrize("mix", MIXES)


def whose(batches: Any, lengths: list[int]) -> list[Any]:
    """Which dataset the samples of each batch are of."""
    bounds = np.cumsum(lengths)
    return [sorted(set(np.searchsorted(bounds, batch, "right").tolist())) for batch in batches]


@each_mix
@pytest.mark.parametrize("order", [None, "seq", "rand"])
@pytest.mark.parametrize(
    ("ratio", "counts"),
    [
        (None, [2, 5, 3]),
        ("pad_to_most", [5, 5, 5]),
        ("truncate_to_least", [2, 2, 2]),
        ([0.5, 2, 1.5], [1, 10, 4]),
        ({"a": 0, "b": 1, "c": 0.4}, [0, 5, 1]),
    ],
)
def test_an_epoch_has_of_each_dataset_what_ds_ratio_says(mix: Any, order: Any, ratio: Any, counts: list[int]) -> None:
    """SA6: a dataset is gone through whole before a sample of it comes again."""
    data = {"a": "xy", "b": range(5), "c": [0, 0, 0]}
    sampler = mix(data, 2, order, ds_ratio=ratio)
    samples = flat(sampler)
    for first, n, count in zip([0, 2, 7], [2, 5, 3], counts, strict=True):
        of_one = [i - first for i in samples if first <= i < first + n]
        assert len(of_one) == count
        times = Counter(of_one)
        assert not times or max(times.values()) - min(times[i] for i in range(n)) <= 1
        if order != "rand":
            assert of_one == [i % n for i in range(count)]
    assert sampler.num_samples == sum(counts)


@each_mix
def test_the_indices_are_those_of_a_concat_dataset(mix: Any) -> None:
    """SA6: in a plain loader."""
    parts = [[f"a{i}" for i in range(4)], [f"b{i}" for i in range(6)]]
    loader = DataLoader(ConcatDataset(parts), batch_sampler=mix(parts, 2, "rand", ds_ratio=None), collate_fn=list)  # type: ignore[arg-type]
    assert sorted(flat(list(loader))) == sorted(parts[0] + parts[1])


def test_a_ratio_means_what_it_says_where_its_product_is_no_binary_fraction() -> None:
    """0.29 * 100 is 28.999999999999996."""
    assert DopedSampler([100, 10], 2, ds_ratio=[0.29, 0.75]).num_samples == 29 + 7


def test_a_doped_epoch_is_one_shuffled_mix() -> None:
    """SA6."""
    sampler = DopedSampler([50, 50], 10, "seq")
    one, two = list(sampler), list(sampler)
    assert whose(one, [50, 50]) == [[0, 1]] * 10
    assert [i for i in flat(one) if i < 50] == list(range(50)), "each dataset in its own order"
    assert one != two


def test_datasets_come_one_after_the_other_in_batches_of_their_own() -> None:
    """SA6."""
    assert list(MixSequentialSampler([5, 3], 2)) == [[0, 1], [2, 3], [4], [5, 6], [7]]
    assert list(MixSequentialSampler([5, 3], 2, drop_last=True)) == [[0, 1], [2, 3], [5, 6]]
    ranks = [list(MixSequentialSampler([5, 3], 2).set_distributed(2, rank)) for rank in range(2)]
    assert ranks == [[[0, 2], [4], [5, 7]], [[1, 3], [4], [6, 5]]]
    dropped = [
        list(MixSequentialSampler([5, 3], 2, rank=rank, word_size=2).set_distributed(2, rank, False))
        for rank in range(2)
    ]
    assert dropped == [[[0, 2], [5]], [[1, 3], [6]]]


def test_datasets_come_in_turn_and_one_that_is_at_its_end_is_passed_over() -> None:
    """SA6."""
    assert list(PollingSampler([5, 3], 2, ds_ratio=None)) == [[0, 1], [5, 6], [2, 3], [7], [4]]
    assert list(PollingSampler([5, 3], 2, ds_ratio=None, drop_last=True)) == [[0, 1], [5, 6], [2, 3]]
    assert list(PollingSampler([5, 3], 2)) == [[0, 1], [5, 6], [2, 3], [7, 5], [4], [6]]
    assert list(PollingSampler([2, 0, 6], 2, ds_ratio=None)) == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_each_dataset_may_have_a_sampler_of_its_own() -> None:
    """SA6: of ours, or any that has a length."""
    samplers = {"b": TorchRandomSampler(range(3)), "a": SortedSampler(4, [1, 4, 2, 3])}
    mix = MixSequentialSampler({"a": 4, "b": 3}, 4, samplers)
    before = torch.get_rng_state()
    one = list(mix)
    assert torch.equal(before, torch.get_rng_state())
    assert one[0] == [1, 3, 2, 0]
    assert sorted(one[1]) == [4, 5, 6]
    torch.rand(1)
    assert list(MixSequentialSampler({"a": 4, "b": 3}, 4, samplers)) == one
    subset = PollingSampler([10, 10], 2, [[3, 5], [1, 2, 9]], ds_ratio="pad_to_most")
    assert list(subset) == [[3, 5], [11, 12], [3], [19]]
    with pytest.raises(CallerError, match="saved with sampler"):
        MixSequentialSampler({"a": 4, "b": 3}, 4).load_state_dict(mix.state_dict())


@given(st.lists(st.integers(0, 20), min_size=1, max_size=4), st.integers(1, 5), st.integers(1, 5), st.data())
def test_mixes_may_go_on_with_another_batch_size_and_no_sample_is_lost(
    parts: list[int], old: int, new: int, data: Any
) -> None:
    """SA6: and batches of one dataset stay so."""
    for mix in MIXES:
        before = mix(parts, old, "rand", ds_ratio=None, seed=2)
        walk = iter(before)
        seen = flat(itertools.islice(walk, data.draw(st.integers(0, 6))))
        after = mix(parts, new, "rand", ds_ratio=None, seed=2)
        after.load_state_dict(before.state_dict())
        rest = [] if after.epoch else list(after)
        if not before.epoch:
            assert sorted(seen + flat(rest)) == list(range(sum(parts)))
        assert mix is DopedSampler or all(len(kinds) == 1 for kinds in whose(rest, parts))


# -- building a loader anew --------------------------------------------------------------------------------


class Plain(Dataset[int]):
    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> int:
        return index


def test_a_loader_is_built_anew_with_another_sampler() -> None:
    """SA7: everything else stays, and the given loader is as it was."""
    settings: dict[str, Any] = {"num_workers": 2, "prefetch_factor": 3, "persistent_workers": True, "timeout": 30}
    loader = DataLoader(Plain(), 4, shuffle=True, drop_last=True, collate_fn=list, **settings)
    kept = dict(vars(loader))
    sampler = SequentialSampler(loader.dataset)  # type: ignore[arg-type]
    again = replace_sampler(loader, sampler)
    assert again.sampler is sampler
    assert (again.batch_size, again.drop_last, again.collate_fn) == (4, True, list)
    assert {name: getattr(again, name) for name in settings} == settings
    assert vars(loader) == kept
    bucketed = BucketedBatchSampler(N, LENGTHS, 3)
    batched = replace_batch_sampler(loader, bucketed)
    assert batched.batch_sampler is bucketed
    assert {name: getattr(batched, name) for name in settings} == settings
    one = replace_batch_sampler(DataLoader(Plain(), 4), bucketed)
    assert [batch.tolist() for batch in one] == list(BucketedBatchSampler(N, LENGTHS, 3))
    assert replace_sampler(one, sampler).batch_size == 3
    assert list(replace_sampler(DataLoader(Plain(), None), sampler)) == list(range(N))


class Keeping(DataLoader[Any]):
    """A loader that keeps its arguments."""

    def __init__(self, texts: Any, batch_size: int, scale: float = 1.0, **kwargs: Any) -> None:
        super().__init__(texts, batch_size=batch_size, **kwargs)
        self.texts, self.scale = texts, scale


class Passing(DataLoader[Any]):
    """A loader that passes all on."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)


class Forgetting(DataLoader[Any]):
    def __init__(self, dataset: Any, tokenizer: str = "none", **kwargs: Any) -> None:
        super().__init__(dataset, **kwargs)


class Closed(DataLoader[Any]):
    def __init__(self, dataset: Any) -> None:
        super().__init__(dataset)


class Deciding(DataLoader[Any]):
    def __init__(self, dataset: Any, **kwargs: Any) -> None:
        super().__init__(dataset, num_workers=2, **kwargs)


class Foreign:
    """A loader that is no DataLoader."""

    def __init__(self, dataset: Any, batch_size: int = 1, sampler: Any = None) -> None:
        self.dataset, self.batch_size, self.sampler = dataset, batch_size, sampler


def test_a_loader_of_a_user_s_own_class_is_built_anew_if_it_keeps_its_arguments() -> None:
    """SA7."""
    sampler, batches = RandomSampler(N), RandomBatchSampler(N, 5)
    passed = replace_sampler(Passing(Plain(), 4, num_workers=1, drop_last=True), sampler)
    assert type(passed) is Passing
    assert (passed.sampler, passed.batch_size, passed.drop_last, passed.num_workers) == (sampler, 4, True, 1)
    foreign = replace_sampler(Foreign(Plain(), 7), sampler)
    assert (foreign.sampler, foreign.batch_size) == (sampler, 7)
    assert replace_batch_sampler(Passing(Plain(), 4), batches).batch_sampler is batches


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: replace_sampler(Forgetting(Plain()), RandomSampler(N)),
            r"a Forgetting can't be built anew: its constructor takes 'tokenizer', and the loader has no attribute of "
            r"that name. Keep it there \(self.tokenizer = tokenizer\)",
        ),
        (
            lambda: replace_batch_sampler(Closed(Plain()), RandomBatchSampler(N)),
            "its constructor takes no 'batch_sampler'. Give it a parameter batch_sampler=None",
        ),
        (lambda: replace_batch_sampler(Foreign(Plain()), RandomBatchSampler(N)), "takes no 'batch_sampler'"),
        (
            lambda: replace_sampler(Deciding(Plain()), RandomSampler(N)),
            "a Deciding couldn't be built anew .* num_workers",
        ),
        (
            lambda: replace_sampler(DataLoader(Plain()), RandomBatchSampler(N)),
            "gives batches: use replace_batch_sampler",
        ),
        (
            lambda: replace_batch_sampler(DataLoader(Plain()), RandomSampler(N)),
            "gives single samples: use replace_sampler",
        ),
        (
            lambda: replace_sampler(DataLoader(Plain(), batch_sampler=[[1], [2]]), RandomSampler(N)),
            "are made by a list, which doesn't say their batch_size: use replace_batch_sampler",
        ),
        (
            lambda: replace_sampler(DataLoader(Stream()), RandomSampler(N)),
            "couldn't be built anew with another sampler",
        ),
    ],
)
def test_a_loader_that_can_not_be_built_anew_is_refused_with_a_word_on_what_to_do(make: Any, said: str) -> None:
    """SA7."""
    with pytest.raises(CallerError, match=said):
        make()


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


# -- in a plain loop ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "workers"),
    [*((name, 0) for name in SAMPLERS), ("random", 2), ("bucketed", 2), ("in turn", 2), ("written down", 2)],
)
def test_a_loop_of_one_s_own_over_a_data_loader_goes_on_where_it_stopped(name: str, workers: int) -> None:
    """B8: workers fetch ahead; the loop counts what it trained on."""

    def loader(sampler: Any) -> DataLoader[Any]:
        kind = "batch_sampler" if isinstance(sampler, ReproducibleBatchSampler) else "sampler"
        data = ConcatDataset([range(n) for n in PARTS]) if hasattr(sampler, "ds_ratio") else Plain()  # type: ignore[list-item]
        size = {} if kind == "batch_sampler" else {"batch_size": 4}
        return DataLoader(data, collate_fn=len, num_workers=workers, **size, **{kind: sampler})  # type: ignore[arg-type]

    straight = [list(loader(at(name, epoch))) for epoch in (1, 2)]
    sampler, consumed = at(name, 1), 0
    for batch in itertools.islice(loader(sampler), 2):
        consumed += batch
    state = sampler.state_dict(consumed=consumed)
    resumed = SAMPLERS[name]()
    resumed.load_state_dict(state)
    again = loader(resumed)
    assert list(again) == straight[0][2:]
    assert list(again) == straight[1]

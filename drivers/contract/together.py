"""What is promised of the ranks; with one process, of being alone."""

from __future__ import annotations

from .subject import Subject, expect, overrides


class TogetherContract(Subject):
    """Tests of `ranks`, `world_size` and `all_gather`, and of weights being equal on all ranks."""

    def test_every_rank_has_its_number(self) -> None:
        driver = self.ready()
        ranks = driver.ranks
        expect(driver.world_size == ranks.world_size, "world_size must be that of ranks")
        numbers = ranks.gather(ranks.rank)
        expect(numbers == list(range(ranks.world_size)), f"ranks must be numbered from 0 on, not {numbers}")
        expect(ranks.first == (ranks.rank == 0), "rank 0 must be the first")

    def test_what_every_rank_holds_is_gathered_in_their_order(self) -> None:
        driver = self.ready()
        told = driver.plain(driver.all_gather({"rank": driver.ranks.rank, "of": [1.5]}))
        expected = [{"rank": rank, "of": [1.5]} for rank in range(driver.world_size)]
        expect(told == expected, f"all_gather must return {expected}, not {told}")

    def test_ranks_agree(self) -> None:
        ranks = self.ready().ranks
        every = (1 << ranks.world_size) - 1
        expect(ranks.agree(1 << ranks.rank) == every, "agree must return the bits of all ranks")
        total = sum(range(ranks.world_size))
        expect(ranks.sums([ranks.rank, 1]) == [total, ranks.world_size], "sums must add up what the ranks give")
        expect(ranks.share(f"of rank {ranks.rank}") == "of rank 0", "share must return what rank 0 gave")
        expect(ranks.failure() is None, "no rank has failed")
        ranks.barrier()

    def test_the_weights_are_the_same_on_every_rank(self) -> None:
        course = self.straight(self.length() + 1)
        driver = course.driver
        if overrides(driver, "weights"):
            with driver.forked(), driver.evaluating(driver.model):
                for weights in driver.ranks.gather(driver.weights()):
                    expect(driver.has_weights(weights), "every rank must evaluate the same weights")


__all__ = ["TogetherContract"]

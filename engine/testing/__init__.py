"""For the tests of users: is a training run deterministic, and does it go on exactly wherever it is cut?

Both assertions take the function that builds the trainer, and compare runs bit by bit: every record, every weight,
every optimizer state, every generator. What differs is said in an `AssertionError`: where, why, and what to try.
"""

from .assertions import assert_deterministic, assert_resumes_exactly

__all__ = ["assert_deterministic", "assert_resumes_exactly"]

"""Every promise is shown by a test or says what it waits for; `docs/features.md` is the list.

`python -m tests.test_docs` writes the page anew.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import features

FILES = [pytest.param(path, id=str(path.relative_to(features.ROOT / "tests"))) for path in features.files()]
IDS = [feature.id for feature in features.features()]


def test_every_feature_is_listed_once_with_a_sentence() -> None:
    assert len(IDS) == len(set(IDS))
    assert all(feature.sentence and feature.heading for feature in features.features())


def test_every_feature_is_shown_by_a_test_or_waits_with_a_reason() -> None:
    shown = features.shown()
    assert [id for id in IDS if id not in shown and id not in features.WAITING] == []


def test_what_waits_is_listed_and_is_shown_by_no_test() -> None:
    assert set(features.WAITING) <= set(IDS)
    assert set(features.WAITING) & set(features.shown()) == set()


def test_what_is_shown_in_part_is_listed_and_shown() -> None:
    assert set(features.PARTLY) <= set(features.shown()) & set(IDS)


@pytest.mark.parametrize("path", FILES)
def test_a_docstring_names_features_that_exist(path: Path) -> None:
    unknown = [(named.id, named.where) for named in features.named_in(path) if named.id not in IDS]
    assert not unknown, "R1 is A2.R1 or R01, C5 is C5 or A8.C5"


@pytest.mark.parametrize("path", FILES)
def test_a_docstring_names_each_feature_and_no_range_of_them(path: Path) -> None:
    assert list(features.ranges_in(path)) == []


def test_the_page_is_what_the_tests_say() -> None:
    page = (features.ROOT / "docs" / "features.md").read_text(encoding="utf-8")
    assert features.table() in page, "say `python -m tests.test_docs`"


def test_a_test_that_is_expected_to_fail_shows_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "ROOT", tmp_path)
    (tmp_path / "tests").mkdir()
    path = tmp_path / "tests" / "test_it.py"
    path.write_text(
        '"""Of T1."""\nimport pytest\n'
        'class TestAll:\n    """T2."""\n'
        '    def test_one(self):\n        """T3, (A2.R1), not A3 or SIGUSR1 or T4-T6."""\n'
        '@pytest.mark.xfail(strict=True)\ndef test_two():\n    """T7."""\n'
        'def helper():\n    """T8."""\n'
    )
    assert [(named.id, named.where.partition("::")[2], named.shows) for named in features.named_in(path)] == [
        ("T1", "", True),
        ("T2", "TestAll", True),
        ("T3", "TestAll::test_one", True),
        ("A2.R1", "TestAll::test_one", True),
        ("T4", "TestAll::test_one", True),
        ("T7", "test_two", False),
    ]
    assert list(features.ranges_in(path)) == ["tests/test_it.py::TestAll::test_one: T4-T6"]

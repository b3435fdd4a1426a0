"""The tree of runs: what a run goes on from and what goes on from it, found by their `run.json` alone."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from tachograph.engine import recording
from tachograph.engine.family import family
from tests.test_cli_support import Said, cli
from tests.toys import stub


def run_of(path: Path, parent: Path | None = None, **told: Any) -> Path:
    """A directory with the `run.json` of a run that goes on from another one."""
    path.mkdir(parents=True)
    above = None
    if parent is not None:
        about = recording.load(parent)
        above = {"run": about["run"], "incarnation": 0, "seq": 7, "chain": "0" * 16, **told}
    (path / "run.json").write_text(json.dumps(recording.about({}, {}, path.name, above), indent=2))
    return path


def found(path: Path) -> Any:
    return family(path, recording.load(path))


def shape(kin: Any) -> Any:
    return {kin["run"]: [shape(child) for child in kin["children"]]}


def tree_of(path: Path) -> Any:
    held = found(path)
    return None if held is None else shape(held["tree"])


def drawn(said: Said) -> list[str]:
    begin = said.lines.index("Tree of runs")
    return [line.rstrip() for line in said.lines[begin + 1 : said.lines.index("", begin)]]


def test_runs_that_go_on_from_each_other_are_drawn_as_a_tree_on_each_of_their_pages(tmp_path: Path) -> None:
    """Runs as the trainer makes them: resumes into other directories."""
    stub(run_dir=tmp_path / "base").run()
    for name, source in (("a", "base"), ("b", "base"), ("a-a", "a")):
        n_epochs = 3 if source == "base" else 4
        stub(run_dir=tmp_path / name, n_epochs=n_epochs).run(resume_from=tmp_path / source)
    stub(run_dir=tmp_path / "alone").run()
    for name in ("base", "a", "b", "a-a"):
        said = cli("show", tmp_path / name)
        lines = [line.split("  20")[0].strip() + ("  <-" if "<- this run" in line else "") for line in drawn(said)]
        names = [line.rsplit("/", 1)[-1].removesuffix("  <-") for line in lines]
        assert names == ["base", "a", "a-a", "b"]
        assert [n for n, line in zip(names, lines, strict=True) if line.endswith("<-")] == [name]
    _, a, a_a, b = drawn(cli("show", tmp_path / "a"))
    assert a.startswith("  |- from 18: ")
    assert a_a.startswith("  |  `- from ")
    assert b.startswith("  `- from 18: ")
    assert "Tree of runs" not in cli("show", tmp_path / "alone").out
    assert cli("show", tmp_path / "alone", "--json").json()["tree"] is None
    told = cli("show", tmp_path / "a", "--json").json()["tree"]
    assert (told["incomplete"], told["tree"]["children"][0]["seq"]) == (False, 18)


def test_a_parent_elsewhere_is_found_by_the_path_that_was_recorded(tmp_path: Path) -> None:
    base = run_of(tmp_path / "there" / "base")
    child = run_of(tmp_path / "here" / "child", base, run_dir=str(base))
    run_of(tmp_path / "there" / "other", base)
    assert tree_of(child) == {"base": [{"child": []}, {"other": []}]}
    assert found(child)["tree"]["run_dir"] == str(base)


def test_a_parent_of_another_name_is_found_beside_its_child_by_its_id(tmp_path: Path) -> None:
    base = run_of(tmp_path / "base")
    child = run_of(tmp_path / "child", base, run_dir="gone/base")
    base.rename(tmp_path / "renamed")
    assert tree_of(child) == {"base": [{"child": []}]}
    assert found(child)["tree"]["run_dir"] == str(tmp_path / "renamed")


def test_a_parent_that_is_gone_is_named_by_its_id_and_its_children_stay_together(tmp_path: Path) -> None:
    base = run_of(tmp_path / "base")
    child, _ = run_of(tmp_path / "child", base), run_of(tmp_path / "sister", base)
    shutil.rmtree(base)
    assert tree_of(child) == {"base": [{"child": []}, {"sister": []}]}
    (child / "journal").mkdir()
    said = cli("show", child)
    assert said.status == 2 or drawn(said)[0] == "  run base, which isn't found here"


def test_another_run_at_the_recorded_path_is_not_taken_for_the_parent(tmp_path: Path) -> None:
    base = run_of(tmp_path / "there" / "base")
    child = run_of(tmp_path / "here" / "child", base, run_dir=str(base))
    shutil.rmtree(base)
    run_of(tmp_path / "there" / "x").rename(base)
    assert found(child)["tree"]["run_dir"] is None


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_circle_ends(n: int, tmp_path: Path) -> None:
    """Nobody makes one, but a file can be edited."""
    paths = [run_of(tmp_path / f"r{i}") for i in range(n)]
    for i, path in enumerate(paths):
        about = recording.load(path)
        above = {"run": f"r{(i + 1) % n}", "seq": 1}
        recording.write_json(path / "run.json", {**about, "parent": above})
    held = found(paths[0])
    assert held is None or json.dumps(held).count('"run":') == n


def test_a_run_json_that_is_none_is_passed_over(tmp_path: Path) -> None:
    base = run_of(tmp_path / "base")
    child = run_of(tmp_path / "child", base)
    for name, text in {"a": "", "b": "[]", "c": "{", "d": '{"run": 3, "parent": [1]}', "e": "\xff"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_bytes(text.encode("latin-1"))
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "run.json").mkdir()
    assert tree_of(child) == {"base": [{"child": []}]}


def test_hundreds_of_siblings_and_a_deep_line_are_drawn_in_part_and_soon(tmp_path: Path) -> None:
    base = run_of(tmp_path / "base")
    stub(run_dir=tmp_path / "me").run()
    about = recording.load(tmp_path / "me")
    recording.write_json(tmp_path / "me" / "run.json", {**about, "parent": {"run": "base", "seq": 9}})
    before = base
    for i in range(80):
        before = run_of(tmp_path / f"deep{i:03}", before)
    for i in range(400):
        run_of(tmp_path / f"wide{i:03}", base)
    began = time.process_time()
    lines = drawn(cli("show", tmp_path / "me"))
    assert time.process_time() - began < 5.0
    assert len(lines) < 70
    assert sum("<- this run" in line for line in lines) == 1
    assert any(line.strip() == "... 379 more" or "more" in line for line in lines)
    assert len(json.dumps(found(before))) > 480 * 50


def test_children_stand_in_the_order_of_their_transitions(tmp_path: Path) -> None:
    base = run_of(tmp_path / "base")
    for name, seq in (("late", 90), ("early", 3), ("middle", 20)):
        run_of(tmp_path / name, base, seq=seq)
    assert tree_of(base) == {"base": [{"early": []}, {"middle": []}, {"late": []}]}

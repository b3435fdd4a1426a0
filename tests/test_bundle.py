"""A part of a run in one file: what is in it, what is masked, that it proves itself, and that no file can do harm."""

from __future__ import annotations

import io
import json
import os
import random
import re
import shutil
import stat
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tachograph.drivers import storage
from tachograph.engine import Fingerprints, Journal, Trainer, diff
from tachograph.engine.bundle import BundleFault, gather, masking, pack, unpack
from tachograph.engine.bundle.archive import MANIFEST
from tachograph.engine.bundle.unpacking import _BLOCK
from tachograph.engine.journal.notes import add_note
from tachograph.engine.journal.writer import SEAL_RECORDS
from tachograph.engine.recording import load, write_json
from tachograph.engine.samples import samples_of
from tachograph.engine.snapshots import catalogue, digest_of_commit
from tachograph.states import CallerError, TachographError
from tests.jobs.builders import Net, points, sound, trainer
from tests.test_cli_ranks import Run
from tests.test_cli_support import cli
from tests.test_journal_support import run as transitions

TOKEN = "hf_" + "a" * 34


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 2 epochs of 8 batches with a snapshot every 4, stopped and gone on with in a third epoch."""
    run_dir = tmp_path_factory.mktemp("bundle") / "demo"
    sound(run_dir=run_dir, n_epochs=2, snapshot_every=4).run()
    trainer = sound(run_dir=run_dir, n_epochs=3, snapshot_every=4)
    trainer.state["mine"] = "kept"
    trainer.run(resume_from="auto")
    add_note(run_dir, 36, "it looks odd from here", now=1.0)
    add_note(run_dir, 3, "far away", now=2.0)
    return run_dir


def steps(run_dir: Path) -> list[int]:
    return [record.seq for record in Journal(run_dir) if record.event == "Stepped"]


# -- there and back ----------------------------------------------------------------------------------------


def test_a_bundle_becomes_a_run_directory_that_proves_itself(demo: Path, tmp_path: Path) -> None:
    packed = pack(demo, 40, tmp_path / "b.zip", before=6, after=5)
    found = unpack(tmp_path / "b.zip", tmp_path / "away" / "run")
    whole, part = Journal(demo), Journal(found.run_dir)
    seqs = [record.seq for record in part]
    assert seqs == list(range(packed.first, 46))
    assert packed.first <= 34
    assert [record.line.split(b',"crc"')[0] for record in part] == [
        whole.seek(seq).line.split(b',"crc"')[0] for seq in seqs
    ]
    assert part.verify_chain() == whole.seek(45).chain
    assert part.beginning.chain == whole.seek(packed.first - 1).chain
    assert part.seek(40).state == whole.seek(40).state
    assert [note.text for note in part.notes()] == ["it looks odd from here"]
    assert diff(demo, found.run_dir) is None


def test_everything_reads_what_was_unpacked(demo: Path, tmp_path: Path) -> None:
    pack(demo, 40, tmp_path / "b.zip", before=6, after=5)
    away = unpack(tmp_path / "b.zip", tmp_path / "away").run_dir
    for words in (
        ("show", away),
        ("show", away, "--at", "40"),
        ("show", away, "--check", "--json"),
        ("show", away, "--rank", "all", "--grep", "Stepped"),
        ("snapshots", "ls", away),
        ("snapshots", "verify", away),
        ("diff", demo, away),
        ("export", away, "--to", "csv", "-o", tmp_path / "b.csv"),
    ):
        said = cli(*words)
        assert (said.status, said.err) == (0, ""), (words, said)
    assert "packed: its journal goes on to transition" in cli("show", away).out
    assert cli("show", away, "--follow").status == 0  # it ends by itself: nobody will write there


def test_the_snapshot_is_the_nearest_from_which_the_transition_can_be_executed_again(
    demo: Path, tmp_path: Path
) -> None:
    taken = [snapshot.seq for snapshot in catalogue(demo)[0]]
    for around in (taken[2], taken[2] + 1, taken[3] - 1):
        packed = pack(demo, around, tmp_path / f"{around}.zip", before=2, after=2)
        nearest = max(seq for seq in taken if seq < around)
        assert packed.snapshot is not None
        assert int(packed.snapshot[:12]) == nearest
        assert packed.first == min(nearest, around - 2)


def test_the_window_is_executed_again_from_its_own_snapshot(demo: Path, tmp_path: Path) -> None:
    """R66."""
    pack(demo, 40, tmp_path / "b.zip", before=6, after=5)
    away = unpack(tmp_path / "b.zip", tmp_path / "away").run_dir
    first = catalogue(away)[0][0].seq + 1
    assert sound().verify(away, first, 45) is None
    faulty = sound()
    faulty.on("step -> fetch", lambda trainer: trainer.model.body[0].weight.data.mul_(1 + 1e-6))
    found = faulty.verify(away, first, 45)
    assert found is not None
    assert first < found.seq <= 45
    state = sound().rewind(away, seq=40)
    assert state.seq == 39


def test_a_run_goes_on_from_a_bundle_with_the_same_bits(demo: Path, tmp_path: Path) -> None:
    """R01."""
    pack(demo, 40, tmp_path / "b.zip", before=0, after=0)
    away = unpack(tmp_path / "b.zip", tmp_path / "away").run_dir
    sound(run_dir=away, n_epochs=3).run(resume_from="auto")
    assert Journal(away).chain == Journal(demo).chain
    assert Journal(away).verify_chain() == Journal(demo).chain


@pytest.mark.parametrize(("around", "before", "after"), [(1, 0, 0), (1, 100, 3), (20, 1000, 1000)])
def test_windows_at_the_borders_of_a_run(demo: Path, tmp_path: Path, around: int, before: int, after: int) -> None:
    last = Journal(demo).last
    assert last is not None
    packed = pack(demo, around, tmp_path / "b.zip", before=before, after=after)
    away = unpack(tmp_path / "b.zip", tmp_path / "away").run_dir
    assert packed.first == max(1, min(around - before, int((packed.snapshot or "999")[:12])))
    assert packed.last == min(around + after, last.seq)
    assert [record.seq for record in Journal(away)] == list(range(packed.first, packed.last + 1))
    if packed.last == last.seq:
        assert Journal(away).chain == Journal(demo).chain
        assert "packed" not in cli("show", away).out


def test_the_lives_in_it_are_counted_anew_and_keep_their_settings(demo: Path, tmp_path: Path) -> None:
    resumed = next(iter(Journal(demo).sides("resumed")))
    lives = {}
    for name, around, before, after in (("early", resumed.seq, 3, 0), ("both", resumed.seq + 2, 6, 4)):
        pack(demo, around, tmp_path / f"{name}.zip", before=before, after=after)
        away = unpack(tmp_path / f"{name}.zip", tmp_path / name).run_dir
        lives[name] = [(life.number, life.first_seq, life.last_seq) for life in Journal(away).incarnations]
        assert load(away)["settings"]["n_epochs"] == 2
    assert lives["early"] == [(0, resumed.seq - 3, resumed.seq)]
    assert lives["both"] == [
        (0, min(lives["both"][0][1], resumed.seq), resumed.seq), (1, resumed.seq + 1, resumed.seq + 6)
    ]  # fmt: skip
    assert next(iter(Journal(tmp_path / "both").sides("resumed"))).incarnation == 1
    assert sound().verify(tmp_path / "both") is None

    later = Journal(demo).last
    assert later is not None
    pack(demo, later.seq - 2, tmp_path / "late.zip", before=3, after=9)
    away = unpack(tmp_path / "late.zip", tmp_path / "late").run_dir
    assert load(away)["settings"]["n_epochs"] == 3
    assert [life.number for life in Journal(away).incarnations] == [0]
    assert [snapshot.incarnation for snapshot in catalogue(away)[0]] == [0]
    assert sound(n_epochs=3).verify(away) is None


def test_a_long_window_has_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tachograph.engine.bundle import window

    assert window.SEAL_RECORDS == SEAL_RECORDS
    monkeypatch.setattr(window, "SEAL_RECORDS", 7)
    run = Run(tmp_path / "run", 1)
    run.rank(0, transitions(40), close=True)
    pack(run.path, 30, tmp_path / "b.zip", before=20, after=3)
    away = unpack(tmp_path / "b.zip", tmp_path / "away").run_dir
    assert [path.name for path in Journal(away).incarnations[0].files] == [
        f"{seq:012d}.i0.jsonl" for seq in (10, 17, 24, 31)
    ]
    assert Journal(away).verify_chain() == Journal(run.path).seek(33).chain
    assert Journal(away).seek(24).state == Journal(run.path).seek(24).state


def test_every_ranks_journal_is_in_it(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", 3)
    records = list(transitions(40))
    for rank in range(3):
        run.rank(rank, records, close=rank < 2)
    pack(run.path, 30, tmp_path / "b.zip", before=5, after=4)
    away = unpack(tmp_path / "b.zip", tmp_path / "away").run_dir
    for rank in range(3):
        assert Journal(away, rank=rank).verify_chain() == Journal(run.path, rank=rank).seek(34).chain
    assert len(list(Journal(away, rank="all"))) == 3 * 10
    assert cli("show", away).status == 0


def test_the_same_run_makes_the_same_bytes(demo: Path, tmp_path: Path) -> None:
    one, other = tmp_path / "1.zip", tmp_path / "2.zip"
    pack(demo, 40, one)
    copied = tmp_path / "elsewhere" / "demo"
    shutil.copytree(demo, copied)
    pack(copied, 40, other)
    assert one.read_bytes() == other.read_bytes()


def test_a_run_that_goes_on_from_another_one_is_packed_from_its_own_beginning_on(demo: Path, tmp_path: Path) -> None:
    start = next(snapshot for snapshot in catalogue(demo)[0] if snapshot.seq > 30)
    child = tmp_path / "child"
    sound(run_dir=child, n_epochs=3).run(resume_from=start.path)
    packed = pack(child, start.seq + 2, tmp_path / "b.zip", before=50, after=3)
    assert (packed.first, packed.last) == (start.seq + 1, start.seq + 5)
    away = unpack(tmp_path / "b.zip", tmp_path / "away").run_dir
    assert Journal(away).verify_chain() == Journal(child).seek(start.seq + 5).chain
    assert load(away)["parent"] == load(child)["parent"]
    assert sound(n_epochs=3).verify(away) is None


def test_a_bundle_can_be_packed_again(demo: Path, tmp_path: Path) -> None:
    pack(demo, 40, tmp_path / "b.zip", before=10, after=5)
    away = unpack(tmp_path / "b.zip", tmp_path / "away").run_dir
    again = pack(away, 42, tmp_path / "c.zip", before=2, after=2, snapshot=False)
    assert (again.first, again.last) == (40, 44)
    assert Journal(unpack(tmp_path / "c.zip", tmp_path / "again").run_dir).chain == Journal(demo).seek(44).chain


# -- samples and batches -----------------------------------------------------------------------------------


def test_the_sample_ids_are_in_it_and_the_batches_if_asked_for(demo: Path, tmp_path: Path) -> None:
    packed = pack(demo, 40, tmp_path / "b.zip", before=12, after=3, trainer=sound())
    away = unpack(tmp_path / "b.zip", tmp_path / "away").run_dir
    fetched = [record.seq for record in Journal(demo) if record.event == "Fetched" and 28 <= record.seq <= 43]
    ids = json.loads((away / "samples.json").read_text())["rank-0"]
    assert ids == {str(seq): samples_of(demo, seq) for seq in fetched}
    assert not packed.unknown
    data = sound().train_dataloader.dataset
    for seq in fetched:
        held = storage.read(away / "batches" / f"{seq:012d}.pt")
        assert held["ids"] == ids[str(seq)]
        assert torch.equal(held["data"][0], torch.stack([data[i][0] for i in held["ids"]]))
    assert [path.name for path in sorted((away / "batches").iterdir())] == [f"{seq:012d}.pt" for seq in fetched]


def test_batches_whose_values_were_changed_are_found_where_the_run_has_fingerprints(tmp_path: Path) -> None:
    def build(data: Any = None, **settings: Any) -> Trainer:
        return trainer(settings, callbacks=Fingerprints(every=1), accumulation_steps=1, data=data)

    build(run_dir=tmp_path / "run", n_batches=6).run()
    pack(tmp_path / "run", 8, tmp_path / "b.zip", trainer=build())
    changed = points(24)
    changed.tensors[0].add_(1)
    with pytest.raises(CallerError, match="has the run's sample ids, and other values than it had"):
        pack(tmp_path / "run", 8, tmp_path / "c.zip", trainer=build(changed))


def test_batches_of_zeros_are_no_bomb(tmp_path: Path) -> None:
    from torch.utils.data import TensorDataset

    zeros = TensorDataset(torch.zeros(24, 40_000), torch.zeros(24, 1))

    def build(**settings: Any) -> Trainer:
        return trainer(settings, net=lambda: Wide(40_000), data=zeros)

    build(run_dir=tmp_path / "run", n_batches=4).run(num_eval_sanity_batch=0)
    pack(tmp_path / "run", 5, tmp_path / "b.zip", trainer=build(), snapshot=False)
    away = unpack(tmp_path / "b.zip", tmp_path / "away").run_dir
    assert len(list((away / "batches").iterdir())) == 4


class Wide(Net):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = torch.nn.Linear(width, 1)


def test_a_trainer_with_other_data_makes_no_batches(demo: Path, tmp_path: Path) -> None:
    from torch.utils.data import DataLoader

    other = sound()
    other.train_dataloader = DataLoader(other.train_dataloader.dataset, 3)
    with pytest.raises(TachographError, match=r"another batch than the one of transition|data is .*fixed"):
        pack(demo, 40, tmp_path / "b.zip", trainer=other)
    with pytest.raises(CallerError, match="accumulation_steps"):
        pack(demo, 40, tmp_path / "b.zip", trainer=sound(accumulation_steps=2))
    assert not list(tmp_path.iterdir())


# -- secrets -----------------------------------------------------------------------------------------------

MASKED: list[tuple[Any, Any]] = [
    (["--token", "abc", "--lr", "0.1"], ["--token", "***", "--lr", "0.1"]),
    (["--api-key=abc"], ["--api-key=***"]),
    (["wandb_api_key=abc", "x=1"], ["wandb_api_key=***", "x=1"]),
    (["--password", "--next"], ["--password", "--next"]),
    ("key=abc other", "key=*** other"),
    ("Authorization: Bearer abc.def", "Authorization: ***"),
    ("{'password': 'a b', 'n': 1}", "{'password': ***, 'n': 1}"),
    ("https://host/x?token=abc&n=1", "https://host/x?token=***&n=1"),
    ("postgres://me:pw@db.host/x?y=1", "postgres://***@db.host/x?y=1"),
    (f"login {TOKEN}", "login ***"),
    ("AKIAIOSFODNN7EXAMPLE", "***"),
    ("ghp_" + "x" * 36, "***"),
    ({"password": "abc", "n": 1}, {"password": "***", "n": 1}),
    ({"hub": {"token": "abc", "tokens": 512}}, {"hub": {"token": "***", "tokens": 512}}),
    ({"SECRET": ""}, {"SECRET": ""}),
    ("/home/alice/data/x.pt", "~/data/x.pt"),
    ("/Users/alice/x", "~/x"),
    ("C:\\Users\\alice\\x", "~\\x"),
    ("ran on node17 and node175", f"ran on {masking.called('node17')} and node175"),
]
KEPT = [
    *("tokenizer=bpe", "--tokens", "n_tokens 512", "monkey=1", "keyword", "the author: me", "KeyError: 'x'"),
    *("https://host/path:80", "a key of the results", "loss: 0.5", "--monitor", "key: x"),
]


@pytest.mark.parametrize(("value", "wanted"), MASKED)
def test_what_looks_like_a_secret_is_masked_and_listed(value: Any, wanted: Any) -> None:
    told: list[str] = []
    assert masking.masked(value, "run.json", told.append, host="node17") == wanted
    assert bool(told) == ("***" in json.dumps(wanted))
    assert all(place.startswith("run.json") for place in told)


@pytest.mark.parametrize("text", KEPT)
def test_what_only_sounds_like_one_is_left(text: str) -> None:
    told: list[str] = []
    assert masking.masked([text, "after"], "x", told.append) == [text, "after"]
    assert not told


def test_a_secret_across_two_blocks_is_found() -> None:
    raw = b"\0" * 5000 + TOKEN.encode() + b"\0" * 5000
    for cut in range(4990, 5050, 3):
        assert masking.secrets_in_blocks([raw[:cut], raw[cut:]]) == "a token of Hugging Face"
    assert masking.secrets_in_blocks([random.Random(0).randbytes(4 << 20)]) == ""


def secretive(demo: Path, tmp_path: Path, **told: Any) -> Path:
    run_dir = tmp_path / "demo"
    shutil.copytree(demo, run_dir)
    write_json(run_dir / "run.json", {**load(run_dir), **told})
    return run_dir


def text_of(path: Path) -> str:
    with zipfile.ZipFile(path) as archive:
        return "\n".join(archive.read(name).decode("utf-8", "replace") for name in archive.namelist())


def test_no_secret_of_run_json_a_note_or_a_side_record_is_in_the_file(demo: Path, tmp_path: Path) -> None:
    command = ["train.py", "--hub-token", "sesame", f"--login={TOKEN}", "/home/alice/code"]
    environment = {"torch": "2", "PYTHONHASHSEED": "0", "WANDB_HOST": "sesame", "HOME": "/home/alice", "deep": None}
    run_dir = secretive(demo, tmp_path, command=command, host="alices-laptop", environment=environment)
    add_note(run_dir, 41, "password: sesame, on alices-laptop", now=3.0)
    journal = next((run_dir / "journal" / "rank-0").glob("*.i1.jsonl"))
    packed = pack(run_dir, 40, tmp_path / "b.zip", snapshot=False)
    text = text_of(packed.path)
    assert not re.search(f"sesame|{TOKEN}|alice", text), text
    told = load(unpack(packed.path, tmp_path / "away").run_dir)
    assert told["environment"] == {**environment, "WANDB_HOST": "***", "HOME": "***"}
    assert told["command"] == ["train.py", "--hub-token", "***", "--login=***", "~/code"]
    assert told["host"] == masking.called("alices-laptop")
    assert journal.is_file()
    for place in ("run.json.command[2]", "run.json.environment.WANDB_HOST", "run.json.host", "notes.jsonl."):
        assert any(held.startswith(place) for held in packed.masked), packed.masked
    with zipfile.ZipFile(packed.path) as archive:
        assert json.loads(archive.read(MANIFEST))["masked"] == packed.masked


def noted(tmp_path: Path, text: str) -> Path:
    trainer = sound(run_dir=tmp_path / "run", n_batches=6)
    trainer.on("step -> fetch", lambda trainer: trainer._note(text))
    trainer.run()
    return tmp_path / "run"


def test_a_side_record_is_masked_and_the_chain_stays_right(tmp_path: Path) -> None:
    run_dir = noted(tmp_path, "pushed to https://me:sesame@hub.example/x")
    packed = pack(run_dir, 10, tmp_path / "b.zip", snapshot=False)
    away = unpack(packed.path, tmp_path / "away").run_dir
    assert "sesame" not in text_of(packed.path)
    assert {side.data["text"] for side in Journal(away).sides("noted")} >= {"pushed to https://***@hub.example/x"}
    assert Journal(away).verify_chain() == Journal(run_dir).chain
    assert packed.masked[-1] == "journal.noted.text (a password in an address)"


def failed(tmp_path: Path, text: str) -> Path:
    trainer = sound(run_dir=tmp_path / "run", n_batches=6)

    def fail(trainer: Trainer) -> None:
        if trainer.global_forward_batches == 4:
            raise ValueError(text)

    trainer.on("step -> fetch", fail)
    with pytest.raises(ValueError, match="refused"):
        trainer.run()
    return tmp_path / "run"


def test_a_secret_in_a_transition_cant_be_masked_so_it_is_refused(tmp_path: Path) -> None:
    run_dir = failed(tmp_path, f"refused: {TOKEN}")
    last = Journal(run_dir).last
    assert last is not None
    said = cli("pack", run_dir, "--around", str(last.seq - 1), "-o", tmp_path / "b.zip")
    assert said.status == 2
    assert said.err == (
        f"tachograph: transition {last.seq}.data.error (a token of Hugging Face) looks like a secret, and a transition "
        "can't be changed without breaking the chain: leave it out with --after or --before, or leave all secrets in "
        "with --keep-secrets\n"
    )
    assert not (tmp_path / "b.zip").exists()
    pack(run_dir, last.seq - 1, tmp_path / "b.zip", after=0)
    pack(run_dir, last.seq, tmp_path / "c.zip", keep_secrets=True)
    assert Journal(unpack(tmp_path / "c.zip", tmp_path / "away").run_dir).chain == last.chain


def test_a_secret_in_trainer_state_is_refused_and_named_as_in_the_snapshot(tmp_path: Path) -> None:
    trainer = sound(run_dir=tmp_path / "run", n_batches=6, snapshot_every=2)
    trainer.state["login"] = TOKEN
    trainer.run()
    with pytest.raises(CallerError, match=r"rank-0\.pt holds what looks like a token of Hugging Face"):
        gather(tmp_path / "run", 12)
    pack(tmp_path / "run", 12, tmp_path / "b.zip", snapshot=False)
    assert TOKEN not in text_of(tmp_path / "b.zip")


# -- files that aren't meant well --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bundle(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("good") / "good.zip"
    pack(demo, 40, path, before=5, after=2)
    return path


Change = Callable[[dict[str, bytes], dict[str, Any]], None]


def forged(bundle: Path, path: Path, change: Change, *, sign: bool = True) -> Path:
    """Write a bundle anew with other entries or another manifest, whose digests are made to fit."""
    with zipfile.ZipFile(bundle) as archive:
        files = {name: archive.read(name) for name in archive.namelist() if name != MANIFEST}
        manifest = json.loads(archive.read(MANIFEST))
    del manifest["digest"]
    change(files, manifest)
    if sign:
        import hashlib

        for name, raw in files.items():
            manifest["files"][name] = [len(raw), hashlib.blake2b(raw, digest_size=16).hexdigest()]
        manifest["digest"] = digest_of_commit(manifest)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, raw in files.items():
            archive.writestr(name, raw)
        archive.writestr(MANIFEST, json.dumps(manifest))
    return path


def refused(path: Path, tmp_path: Path) -> str:
    """Unpack from the command line; return the one sentence, and see to it that nothing is left."""
    folder = tmp_path / "into"
    folder.mkdir()
    said = cli("unpack", path, "-o", folder / "deep" / "run")
    assert said.status == 2
    assert said.err.startswith("tachograph: ")
    assert said.err.count("\n") == 1
    assert "Traceback" not in said.err
    assert not list(folder.iterdir())
    return said.err


EVIL = [
    "../out", "journal/../../out", "/etc/out", "journal//x", "./run.json", "journal/rank-0/", "C:/out", "journal\\out",
    "elsewhere.txt", "journal/a\nb",
]  # fmt: skip


@pytest.mark.parametrize("name", EVIL)
def test_names_that_leave_the_folder_or_are_strange_are_refused(bundle: Path, tmp_path: Path, name: str) -> None:
    path = forged(bundle, tmp_path / "evil.zip", lambda files, manifest: files.update({name: b"x"}))
    assert re.search(
        "no name of a file within a folder|nothing that a bundle holds|no plain file", refused(path, tmp_path)
    )


def test_a_link_is_refused(bundle: Path, tmp_path: Path) -> None:
    path = forged(bundle, tmp_path / "evil.zip", lambda files, manifest: None)
    with zipfile.ZipFile(path, "a") as archive:
        entry = zipfile.ZipInfo("batches/x.pt")
        entry.create_system, entry.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
        archive.writestr(entry, "/etc/passwd")
    assert "'batches/x.pt' is no plain file" in refused(path, tmp_path)


def test_a_bomb_is_refused_before_it_is_written(bundle: Path, tmp_path: Path) -> None:
    zeros = b"\0" * (40 << 20)
    path = forged(bundle, tmp_path / "bomb.zip", lambda files, manifest: files.update({"batches/x.pt": zeros}))
    assert os.path.getsize(path) < _BLOCK
    assert re.search(r"says it grows from [\d,]+ bytes to 41,943,040", refused(path, tmp_path))


def test_more_than_the_disk_holds_is_refused(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    assert re.search(r"takes [\d,]+ bytes, and .* has 1,000 free", refused(bundle, tmp_path))


def an_older_chain(files: dict[str, bytes], manifest: dict[str, Any]) -> None:
    manifest["ranks"]["0"]["before"] = "0" * 16


def another_loss(files: dict[str, bytes], manifest: dict[str, Any]) -> None:
    name = next(name for name in files if name.startswith("journal/"))
    files[name] = re.sub(rb'"loss":\d', b'"loss":7', files[name], count=1)


def another_weight(files: dict[str, bytes], manifest: dict[str, Any]) -> None:
    name = next(name for name in files if name.endswith("model.pt"))
    files[name] = files[name][:-1] + b"x"


def lost(files: dict[str, bytes], manifest: dict[str, Any]) -> None:
    del files["run.json"]


def newer(files: dict[str, bytes], manifest: dict[str, Any]) -> None:
    manifest["format"] = 2


def shapeless(files: dict[str, bytes], manifest: dict[str, Any]) -> None:
    manifest["files"] = [1, 2]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (an_older_chain, "the chain of rank 0 isn't the one in its manifest"),
        (another_loss, "damaged at byte"),
        (another_weight, "model.pt isn't what was written"),
        (lost, "'run.json' is missing"),
        (newer, "is of format 2, this version reads up to 1: upgrade tachograph"),
    ],
)
def test_what_was_changed_by_someone_who_knows_the_digests_is_found(
    bundle: Path, tmp_path: Path, change: Change, said: str
) -> None:
    assert said in refused(forged(bundle, tmp_path / "evil.zip", change), tmp_path)


def test_a_manifest_without_its_digest_or_shape_is_refused(bundle: Path, tmp_path: Path) -> None:
    path = forged(bundle, tmp_path / "1.zip", an_older_chain, sign=False)
    assert "bundle.json isn't what was written: its digest differs" in refused(path, tmp_path)
    with pytest.raises(BundleFault, match="can't be read"):
        unpack(forged(bundle, tmp_path / "2.zip", shapeless, sign=False), tmp_path / "x")


def test_flipped_bits_anywhere_are_found_or_change_nothing(bundle: Path, demo: Path, tmp_path: Path) -> None:
    raw, draw = bundle.read_bytes(), random.Random(4)
    good = {path.relative_to(tmp_path / "good"): path.read_bytes() for path in all_files(unpacked(bundle, tmp_path))}
    found = 0
    for _ in range(120):
        at = draw.randrange(len(raw))
        path, target = tmp_path / "flipped.zip", tmp_path / "flipped"
        path.write_bytes(raw[:at] + bytes([raw[at] ^ 1 << draw.randrange(8)]) + raw[at + 1 :])
        try:
            unpack(path, target)
        except BundleFault:
            found += 1
            assert not target.exists()
        else:  # a field of the zip that nobody reads
            assert {p.relative_to(target): p.read_bytes() for p in all_files(target)} == good, at
            shutil.rmtree(target)
    assert found > 100
    assert not [path for path in tmp_path.iterdir() if "unpacking" in path.name]


def unpacked(bundle: Path, tmp_path: Path) -> Path:
    return unpack(bundle, tmp_path / "good").run_dir


def all_files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file())


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.999])
def test_a_file_that_was_cut_short_is_refused(bundle: Path, tmp_path: Path, share: float) -> None:
    raw = bundle.read_bytes()
    (tmp_path / "cut.zip").write_bytes(raw[: int(share * len(raw))])
    assert re.search("isn't a bundle, or is damaged|isn't a whole bundle", refused(tmp_path / "cut.zip", tmp_path))


def test_foreign_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no zip")
    with zipfile.ZipFile(tmp_path / "zip", "w") as archive:
        archive.writestr("a.txt", "x")
    assert "isn't a bundle" in refused(tmp_path / "text", tmp_path)
    (tmp_path / "into").rmdir()
    assert "isn't a whole bundle, as `tachograph pack` writes it: it has no bundle.json" in refused(
        tmp_path / "zip", tmp_path
    )
    assert cli("unpack", tmp_path / "nowhere").err.endswith("nowhere: No such file or directory\n")
    assert cli("unpack", tmp_path).status == 2


def test_a_pickle_that_would_run_something_isnt_run(bundle: Path, tmp_path: Path) -> None:
    """A batch is only ever read by `torch.load(weights_only=True)`, and unpacking reads none."""

    class Evil:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "ran"),)

    held = io.BytesIO()
    torch.save(Evil(), held)
    path = forged(
        bundle, tmp_path / "e.zip", lambda files, m: files.update({"batches/000000000001.pt": held.getvalue()})
    )
    away = unpack(path, tmp_path / "away").run_dir
    with pytest.raises(TachographError, match="nothing else is unpickled"):
        storage.read(away / "batches" / "000000000001.pt")
    assert not (tmp_path / "ran").exists()


# -- the commands ------------------------------------------------------------------------------------------


def test_a_folder_that_holds_something_is_left_alone(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "x").write_text("x")
    said = cli("unpack", bundle, "-o", tmp_path / "mine")
    assert (said.status, said.err) == (
        2,
        f"tachograph: {tmp_path / 'mine'} is there already: give -o a folder that isn't, or is empty\n",
    )
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["x"]
    (tmp_path / "empty").mkdir()
    assert cli("unpack", bundle, "-o", tmp_path / "empty").status == 0


def test_list_says_what_would_be_in_the_file_and_writes_nothing(
    demo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = cli("pack", demo, "--around", "40", "--list")
    assert said.status == 0
    assert not list(tmp_path.iterdir())
    written = cli("pack", demo, "--around", "40")
    assert written.lines[: len(said.lines)] == said.lines
    packed = tmp_path / "demo-40.tachograph.zip"
    with zipfile.ZipFile(packed) as archive:
        held = {entry.filename: entry.file_size for entry in archive.infolist() if entry.filename != MANIFEST}
    listed = [line.split()[0] for line in said.lines if re.match(r"  \S+ +[\d.]+ \w?B", line)]
    assert listed == list(held)
    assert "trainer.state and what callbacks remember" in said.out
    assert cli("unpack", packed).status == 0  # into the file's name
    assert (tmp_path / "demo-40" / "run.json").is_file()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--around", "900"], "has no transition 900: it holds 1 to"),
        (["--around", "40", "--before", "-1"], "before and after are numbers of transitions >= 0, not -1"),
        (
            ["--around", "40", "--batches"],
            "--batches and --trainer belong together: --trainer module:function is missing",
        ),
        (["--around", "40", "--trainer", "a:b"], "--batches and --trainer belong together: --batches is missing"),
        (["--around", "40", "--batches", "--trainer", "a:b"], "a can't be imported"),
        (["--around", "40", "-o", "/nowhere/x.zip"], "No such file or directory"),
    ],
)
def test_what_cant_be_packed_is_said_in_a_sentence(demo: Path, options: list[str], said: str) -> None:
    found = cli("pack", demo, *options)
    assert found.status == 2
    assert said in found.err
    assert found.err.count("\n") == 1


def test_no_run_an_empty_one_and_a_damaged_one(demo: Path, tmp_path: Path) -> None:
    assert "there is no run at" in cli("pack", tmp_path / "x", "--around", "1").err
    run_dir = tmp_path / "demo"
    shutil.copytree(demo, run_dir)
    segment = sorted((run_dir / "journal" / "rank-0").glob("*.jsonl"))[-1]
    raw = bytearray(segment.read_bytes())
    raw[len(raw) // 2] ^= 4
    segment.write_bytes(raw)
    last = Journal(demo).last
    assert last is not None
    said = cli("pack", run_dir, "--around", str(last.seq - 1), "-o", tmp_path / "b.zip")
    assert said.status == 2
    assert "damaged" in said.err
    assert [path.name for path in tmp_path.iterdir()] == ["demo"]
    shutil.rmtree(run_dir / "journal" / "rank-0")
    (run_dir / "journal" / "rank-0").mkdir()
    assert "empty" in cli("pack", run_dir, "--around", "1").err


def test_damaged_snapshots_are_passed_over(demo: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "demo"
    shutil.copytree(demo, run_dir)
    before = [snapshot for snapshot in catalogue(run_dir)[0] if snapshot.seq < 40]
    model = before[-1].path / "model.pt"
    model.write_bytes(model.read_bytes()[:-1] + b"x")
    packed = pack(run_dir, 40, tmp_path / "b.zip", before=2, after=2)
    assert packed.snapshot == before[-2].path.name
    for snapshot in before:
        shutil.rmtree(snapshot.path)
    assert (
        "around 40: transitions 38 to 42, and no snapshot"
        in cli("pack", run_dir, "--around", "40", "--before", "2", "--after", "2", "-o", tmp_path / "c.zip").out
    )
    away = unpack(tmp_path / "c.zip", tmp_path / "away").run_dir
    with pytest.raises(TachographError, match="no snapshot at or before"):
        sound().verify(away, 40, 41)

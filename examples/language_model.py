"""A recurrent network learns the English of Python's own documentation, word by word, from paragraphs of any length.

Batches of like length are padded, and four make an update, in which every *word* counts alike: `loss_weight="words"`.
The learning rate is warmed up and then lowered to 0. It is validated four times an epoch, ends early when four in a row
brought nothing better, and with the best weights.

    python examples/language_model.py --run-dir runs/words     kill it however you like, and add --resume
"""

import argparse
import ast
import re
import sysconfig
from collections import Counter
from itertools import islice
from pathlib import Path

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

from tachograph.drivers import BucketedBatchSampler, Metric
from tachograph.engine import EarlyStopping, LoadBestModel, Trainer, Warmup

WORDS, WIDTH, LONGEST = 1000, 128, 60
PAD, BEGIN, END, UNKNOWN = range(4)


def paragraphs():
    """Yield the words of each paragraph of the docstrings in the standard library's modules."""
    for module in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        for node in ast.walk(ast.parse(module.read_bytes())):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                for text in re.split(r"\n\s*\n", ast.get_docstring(node) or ""):
                    words = re.findall(r"[a-z']+|[.,;:()]", text.lower())
                    if len(words) >= 4:
                        yield words[:LONGEST]


class Text:
    """The first so many paragraphs as numbers, each of them once; every 20th is held out."""

    def __init__(self, most=None):
        texts = dict.fromkeys(map(tuple, islice(paragraphs(), most)))
        known = Counter(word for text in texts for word in text).most_common(WORDS - 4)
        self.words = ["", "", "", "*", *(word for word, _ in known)]
        number = {word: n for n, word in enumerate(self.words) if n > UNKNOWN}
        coded = [torch.tensor([BEGIN, *(number.get(word, UNKNOWN) for word in text), END]) for text in texts]
        self.held_out = coded[::20]
        self.known = [text for n, text in enumerate(coded) if n % 20]


def padded(texts):
    return {"text": pad_sequence(texts, batch_first=True, padding_value=PAD)}


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH, padding_idx=PAD)
        nn.init.normal_(self.embedding.weight, std=0.1)
        self.memory = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.dropout = nn.Dropout(0.3)
        self.scores = nn.Linear(WIDTH, WORDS)
        self.scores.weight = self.embedding.weight  # which word comes is told by what it means

    def read(self, text, memory=None):
        read, memory = self.memory(self.dropout(self.embedding(text)), memory)
        return self.scores(self.dropout(read)), memory

    def forward(self, text):
        scores, following = self.read(text[:, :-1])[0], text[:, 1:]
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), following.flatten(), ignore_index=PAD)
        return {"loss": loss, "words": (following != PAD).sum()}  # the mean over so many words


class Perplexity(Metric):
    """Between how many words the model is undecided, on average over all words."""

    def __init__(self):
        super().__init__()
        self.register_element("total", 0.0, aggregate_method="sum")
        self.register_element("words", 0, aggregate_method="sum")

    def update(self, loss, words):
        self.total += loss * words
        self.words += words

    def get_metric(self):
        return {"perplexity": (self.total / self.words).exp()}


def written(model, words, most=40):
    """Return a text that the model begins and ends by itself."""
    text, memory, word = [], None, torch.tensor([[BEGIN]])
    while len(text) < most:
        scores, memory = model.read(word, memory)
        scores[..., [PAD, BEGIN, UNKNOWN]] = -torch.inf
        word = (scores[0] / 0.7).softmax(-1).multinomial(1)
        if word == END:
            break
        text.append(words[word])
    return re.sub(r" ([.,;:)])", r"\1", " ".join(text)).replace("( ", "(")


def guessed(text):
    """Return the perplexity of whoever knows of the words only how often each of them comes."""
    seen, held_out = (torch.cat([words[1:] for words in part]) for part in (text.known, text.held_out))
    times = seen.bincount(minlength=WORDS) + 1.0
    return (times / times.sum()).log()[held_out].mean().neg().exp()


def build(run_dir=None, n_epochs=6, text=None, **settings):
    torch.manual_seed(0)  # for the first weights; what follows draws from the trainer's seed
    model, text = Reader(), text or Text()
    alike = BucketedBatchSampler(text.known, [len(each) for each in text.known], batch_size=16)
    return Trainer(
        model,
        "torch",
        DataLoader(text.known, batch_sampler=alike, collate_fn=padded),
        torch.optim.AdamW(model.parameters(), lr=4e-3),
        n_epochs=n_epochs,
        accumulation_steps=4,
        loss_weight="words",
        validate_dataloaders=DataLoader(text.held_out, batch_size=32, collate_fn=padded),
        metrics={"held_out": Perplexity()},
        validate_every="0.25 epoch",
        monitor="perplexity",
        larger_better=False,
        callbacks=[Warmup(0.1, "cosine"), EarlyStopping(patience=4), LoadBestModel()],
        run_dir=run_dir,
        seed=0,
        **settings,
    )


if __name__ == "__main__":
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--run-dir", default="auto", help="where the journal and the snapshots go")
    asked.add_argument("--resume", action="store_true", help="go on with the run in --run-dir, if it holds one")
    args = asked.parse_args()
    torch.set_num_threads(1)  # more would only wait for each other
    text = Text()
    trainer = build(args.run_dir, text=text)
    trainer.run(resume_from="auto" if args.resume else None)
    found = trainer.validate()["perplexity#held_out"]
    print(f"Of {WORDS} words it is undecided between {found:.0f}; by their frequency it would be {guessed(text):.0f}.")
    print("It writes:", *(written(trainer.model.eval(), text.words) for _ in range(5)), sep="\n  ")

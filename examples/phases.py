"""Two phases in turns: an encoder learns from images without labels, then a head on top of it from 50 labels.

*pretrain* fills in what was hidden of an image; *freeze* holds the encoder still; *finetune* classifies; *thaw* lets
the encoder go again. One optimizer moves whatever isn't frozen. No weight tells what is, so `Kept` saves that too.

    python examples/phases.py --run-dir runs/phases     kill it however you like, and add --resume
"""

import argparse

import attrs
import torch
from sklearn.datasets import load_digits
from torch import nn

from tachograph.drivers import choose_driver
from tachograph.engine import Engine, Kept
from tachograph.states import Event, Failed, Machine, Row, Stopped

torch.set_num_threads(1)
LABELS, SPLIT, WIDTH, HIDDEN = 50, 1200, 512, 0.25  # the images after the split were written by other people


@attrs.frozen(kw_only=True)
class Alternating:
    state: str = "pretrain"
    seq: int = 0
    step: int = 0  # of the phase
    cycle: int = 0
    cycles: int
    pretrain: int  # steps
    finetune: int


@attrs.frozen(kw_only=True)
class Learned(Event):
    loss: float

    def fold(self, state, dest):
        return attrs.evolve(state, state=dest, seq=state.seq + 1, step=state.step + 1)


@attrs.frozen(kw_only=True)
class Turned(Event):
    """The encoder was frozen for the phase to come, or let go."""

    frozen: bool

    def fold(self, state, dest):
        return attrs.evolve(state, state=dest, seq=state.seq + 1, step=0)


@attrs.frozen(kw_only=True)
class Scored(Event):
    accuracy: float

    def fold(self, state, dest):
        return attrs.evolve(state, state=dest, seq=state.seq + 1, cycle=state.cycle + 1)


def phase_over(state, event):
    """the phase had all its steps"""
    return state.step + 1 >= getattr(state, state.state)


def cycles_left(state, event):
    """cycles left"""
    return state.cycle + 1 < state.cycles


MACHINE = Machine([
    Row("pretrain", Learned, "freeze", phase_over),
    Row("pretrain", Learned, "pretrain"),
    Row("freeze", Turned, "finetune"),
    Row("finetune", Learned, "score", phase_over),
    Row("finetune", Learned, "finetune"),
    Row("score", Scored, "thaw", cycles_left),
    Row("score", Scored, "done"),
    Row("thaw", Turned, "pretrain"),
    Row("*", Stopped, "done"),
    Row("*", Failed, "exception"),
], initial="pretrain")  # fmt: skip


class Freezing:
    def __init__(self, module):
        self.module = module

    def freeze(self, frozen):
        self.module.requires_grad_(not frozen).train(not frozen)

    def state_dict(self):
        return {"frozen": not self.module.training}

    def load_state_dict(self, held):
        self.freeze(**held)


def build(run_dir=None, cycles=4, pretrain=300, finetune=100):
    torch.manual_seed(0)  # for the first weights; what follows draws from the engine's seed
    pixels, digits = (torch.tensor(held) for held in load_digits(return_X_y=True))
    images = pixels.float() / 16
    encoder = nn.Sequential(nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU())
    net = nn.ModuleDict({"encoder": encoder, "decoder": nn.Linear(WIDTH, 64), "head": nn.Linear(WIDTH, 10)})
    driver, freezing = choose_driver("torch", net), Freezing(encoder)
    driver.set_optimizers(torch.optim.Adam(net.parameters(), lr=2e-3))

    def learn_from(loss):
        driver.backward(loss, 1)
        driver.optimizer_step()
        driver.zero_grad()
        return loss.item()

    def reconstruct(state):
        shown = images[torch.randint(SPLIT, (64,))]
        hidden = torch.rand_like(shown) < HIDDEN
        filled = net["decoder"](encoder(shown.masked_fill(hidden, 0)))
        return Learned(loss=learn_from(nn.functional.mse_loss(filled[hidden], shown[hidden])))

    def turn(state):
        freezing.freeze(state.state == "freeze")
        return Turned(frozen=state.state == "freeze")

    def classify(state):
        chosen = torch.randint(LABELS, (32,))
        scores = net["head"](encoder(images[chosen]))
        return Learned(loss=learn_from(nn.functional.cross_entropy(scores, digits[chosen])))

    @torch.no_grad()
    def score(state):
        found = net["head"](encoder(images[SPLIT:])).argmax(1)
        return Scored(accuracy=(found == digits[SPLIT:]).double().mean().item())

    work = {"pretrain": reconstruct, "freeze": turn, "finetune": classify, "score": score, "thaw": turn}
    begin, kept = Alternating(cycles=cycles, pretrain=pretrain, finetune=finetune), Kept(freezing=freezing)
    engine = Engine(MACHINE, work, state=begin, driver=driver, run_dir=run_dir, callbacks=kept, seed=0)
    engine.on(Turned, lambda engine: engine.request_snapshot())
    return engine


if __name__ == "__main__":
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--run-dir", default="auto", help="where the journal and the snapshots go")
    asked.add_argument("--resume", action="store_true", help="go on with the run in --run-dir, if it holds one")
    args = asked.parse_args()
    engine = build(args.run_dir)
    engine.run(resume_from="auto" if args.resume else None)
    found = [f"{record.data['accuracy']:.1%}" for record in engine.journal if record.event == "Scored"]
    print(f"of other people's digits it reads {', then '.join(found)}")

"""A machine of one's own: a forger and a judge of handwritten digits take turns, and get better by each other.

The judge learns in *discriminate*, five times for each time the forger learns in *generate*: a guard says whose turn it
is. They are two networks with two optimizers; losses and penalty are those of WGAN-GP (Gulrajani et al., 2017). How
good the forgeries are is told by their Fréchet distance from real digits that the judge has never seen.

    python examples/gan.py --run-dir runs/gan     kill it however you like, and add --resume
"""

import argparse

import attrs
import torch
from sklearn.datasets import load_digits
from torch import nn

from tachograph.drivers import choose_driver
from tachograph.engine import Engine, Filter
from tachograph.states import Event, Failed, Machine, Row, Stopped

NOISE, WIDTH, SHOWN, TURNS, PENALTY = 32, 256, 64, 5, 10.0


@attrs.frozen(kw_only=True)
class Game:
    """Where the game is: in which state, after how many transitions, and how many lessons of the judge."""

    state: str = "discriminate"
    seq: int = 0
    lessons: int = 0
    planned: int


@attrs.frozen(kw_only=True)
class Judged(Event):
    """The judge learned; `distance` is how far apart it holds real digits and forged ones."""

    distance: float

    def fold(self, state, dest):
        return attrs.evolve(state, state=dest, seq=state.seq + 1, lessons=state.lessons + 1)


@attrs.frozen(kw_only=True)
class Forged(Event):
    """The forger learned."""


def forgers_turn(state, event):
    """after every 5th lesson of the judge"""
    return (state.lessons + 1) % TURNS == 0


def enough(state, event):
    """the judge had all its lessons"""
    return state.lessons >= state.planned


MACHINE = Machine(
    [
        Row("discriminate", Judged, "generate", forgers_turn),
        Row("discriminate", Judged, "discriminate"),
        Row("generate", Forged, "done", enough),
        Row("generate", Forged, "discriminate"),
        Row("*", Stopped, "done"),
        Row("*", Failed, "exception"),
    ],
    initial="discriminate",
)


def network(into, out):
    first, second = nn.Linear(into, WIDTH), nn.Linear(WIDTH, WIDTH)
    return nn.Sequential(first, nn.LeakyReLU(0.2), second, nn.LeakyReLU(0.2), nn.Linear(WIDTH, out))


class Players(nn.Module):
    def __init__(self):
        super().__init__()
        self.judge, self.forger = network(64, 1), network(NOISE, 64)

    def forge(self, count):
        return self.forger(torch.randn(count, NOISE)).sigmoid()

    def steepness(self, between):
        """Return the norms of the judge's gradients at these images."""
        between.requires_grad_()
        return torch.autograd.grad(self.judge(between).sum(), between, create_graph=True)[0].norm(dim=1)


def digits():
    """Return the images that the judge is shown, and some that it never is."""
    return torch.tensor(load_digits().data / 16).float().split([1497, 300])


def frechet(a, b):
    """Return the Fréchet distance between two sets of images, taken for normally distributed ones."""
    of_a, of_b = a.double().T.cov(), b.double().T.cov()
    shared = torch.linalg.eigvals(of_a @ of_b).real.clamp(min=0).sqrt().sum()
    return ((a.mean(0) - b.mean(0)).square().sum() + of_a.trace() + of_b.trace() - 2 * shared).item()


def build(run_dir=None, lessons=5000):
    torch.manual_seed(0)  # for the first weights; what follows draws from the engine's seed
    players, (real, _) = Players(), digits()
    driver = choose_driver("torch", players)
    both = players.judge, players.forger
    judges, forgers = (torch.optim.Adam(player.parameters(), lr=1e-3, betas=(0.5, 0.9)) for player in both)
    driver.set_optimizers([judges, forgers])

    def discriminate(state):
        shown = real[torch.randint(len(real), (SHOWN,))]
        forged = players.forge(SHOWN).detach()
        distance = players.judge(shown).mean() - players.judge(forged).mean()
        too_steep = players.steepness(shown.lerp(forged, torch.rand(SHOWN, 1))) - 1
        judges.zero_grad()
        (PENALTY * too_steep.square().mean() - distance).backward()
        judges.step()
        return Judged(distance=distance.item())

    def generate(state):
        forgers.zero_grad()
        players.judge(players.forge(SHOWN)).mean().neg().backward()
        forgers.step()
        return Forged()

    work, game = {"discriminate": discriminate, "generate": generate}, Game(planned=lessons)
    return Engine(MACHINE, work, state=game, driver=driver, run_dir=run_dir, snapshot_every=600, seed=0)


if __name__ == "__main__":
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--run-dir", default="auto", help="where the journal and the snapshots go")
    asked.add_argument("--resume", action="store_true", help="go on with the run in --run-dir, if it holds one")
    args = asked.parse_args()
    torch.set_num_threads(1)  # more would only wait for each other
    engine, (real, unseen) = build(args.run_dir), digits()

    @engine.on("discriminate -> generate")
    @Filter(every=200)
    def tell(engine, event):
        print(f"{engine.trainer_state.lessons:,} lessons: to the judge, real and forged are {event.distance:.2f} apart")

    engine.run(resume_from="auto" if args.resume else None)
    forged = engine.driver.model.forge(2000).detach()
    for row in range(8):
        print("   ".join("".join(" .:-=+*#%@"[int(9.9 * dot)] for dot in image[8 * row :][:8]) for image in forged[:9]))
    ours, theirs = frechet(forged, unseen), frechet(real, unseen)
    print(f"From unseen digits, forged ones are {ours:.2f} away, and the real ones that the judge knows {theirs:.2f}.")

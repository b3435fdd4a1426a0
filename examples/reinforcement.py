"""Reinforcement learning as a machine of its own: collect -> learn -> collect ... until a pole is balanced.

PPO on gymnasium's CartPole, which has no epoch and no loader: its states, events and counters stand below. A snapshot
holds the environment with its generator too, and what was collected and not learned from yet.

    python examples/reinforcement.py --run-dir runs/pole     kill it however you like, and add --resume
"""

import argparse

import attrs
import torch
from gymnasium.envs.classic_control import CartPoleEnv
from torch import nn

from tachograph.drivers import choose_driver
from tachograph.engine import Engine, Kept
from tachograph.states import Event, Failed, Machine, Row, Stopped

torch.set_num_threads(1)
STEPS, PASSES, PART, DISCOUNT, SMOOTHING, CLIP = 512, 6, 64, 0.99, 0.95, 0.2


@attrs.frozen(kw_only=True)
class Playing:
    state: str = "collect"
    seq: int = 0
    rounds: int = 0
    recent: tuple = attrs.field(default=(), converter=tuple)  # how long the last 20 episodes were
    limit: int  # in rounds


@attrs.frozen(kw_only=True)
class Collected(Event):
    """So many steps were played; `lengths`: of the episodes that ended in them."""

    lengths: list

    def fold(self, state, dest):
        recent = (*state.recent, *self.lengths)[-20:]
        return attrs.evolve(state, state=dest, seq=state.seq + 1, recent=recent)


@attrs.frozen(kw_only=True)
class Learned(Event):
    """The policy learned from what was collected."""

    loss: float

    def fold(self, state, dest):
        return attrs.evolve(state, state=dest, seq=state.seq + 1, rounds=state.rounds + 1)


def balanced(state, event):
    """475 steps in the mean of 20 episodes, or the limit"""
    return state.rounds + 1 == state.limit or (len(state.recent) == 20 and sum(state.recent) >= 475 * 20)


MACHINE = Machine([
    Row("collect", Collected, "learn"),
    Row("learn", Learned, "done", balanced),
    Row("learn", Learned, "collect"),
    Row("*", Stopped, "done"),
    Row("*", Failed, "exception"),
], initial="collect")  # fmt: skip


class Pole(CartPoleEnv):
    """The environment, with all that its next step depends on in its `state_dict`; an episode has 500 steps at most."""

    stood = 0

    def play(self, action):
        after, _, fell, *_ = self.step(action)
        self.stood += 1
        ended = self.stood if fell or self.stood == 500 else 0
        if ended:
            self.reset()
            self.stood = 0
        return torch.tensor(after), fell, ended

    def state_dict(self):
        place, generator = [float(x) for x in self.state], self.np_random.bit_generator.state
        return {"place": place, "stood": self.stood, "generator": generator}

    def load_state_dict(self, held):
        self.state, self.stood = held["place"], held["stood"]
        self.np_random.bit_generator.state = held["generator"]


def network(outputs):
    return nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))


def build(run_dir=None, limit=100, steps=STEPS, **settings):
    torch.manual_seed(0)  # for the first weights; what follows draws from the engine's seed
    player, pole = nn.ModuleDict({"policy": network(2), "value": network(1)}), Pole()
    pole.reset(seed=0)
    driver = choose_driver("torch", player)
    driver.set_optimizers(torch.optim.Adam(player.parameters(), lr=1e-3))

    @torch.no_grad()
    def collect(state):
        columns, lengths = [], []
        for _ in range(steps):
            seen = torch.tensor(pole.state, dtype=torch.float32)
            odds = player["policy"](seen).softmax(-1)
            action = odds.multinomial(1)
            after, fell, ended = pole.play(action.item())
            columns.append((seen, action, odds[action].log(), after, torch.tensor([fell, ended > 0])))
            lengths += [ended] if ended else []
        engine.batch = [torch.stack(column) for column in zip(*columns, strict=True)]  # in snapshots while it's in hand
        return Collected(lengths=lengths)

    def learn(state):
        seen, action, odds, after, (fell, ended) = *engine.batch[:4], engine.batch[4].float().T
        with torch.no_grad():
            value, later = player["value"](seen)[:, 0], player["value"](after)[:, 0] * (1 - fell)
            better = 1 + DISCOUNT * later - value  # than was foreseen, by each step and what came of it
            for n in reversed(range(steps - 1)):
                better[n] += DISCOUNT * SMOOTHING * (1 - ended[n]) * better[n + 1]
        for part in torch.cat([torch.randperm(steps) for _ in range(PASSES)]).split(PART):
            ratio = (player["policy"](seen[part]).log_softmax(-1).gather(1, action[part]) - odds[part]).exp()[:, 0]
            gain = (better[part] - better[part].mean()) / (better[part].std() + 1e-8)
            loss = -torch.minimum(ratio * gain, ratio.clamp(1 - CLIP, 1 + CLIP) * gain).mean()
            wrong = nn.functional.mse_loss(player["value"](seen[part])[:, 0], (better + value)[part])
            driver.backward(loss + wrong / 2, 1)
            driver.clip_gradients_by_norm(0.5)
            driver.optimizer_step()
            driver.zero_grad()
        engine.batch = None
        return Learned(loss=loss.item())

    settings = {"seed": 0, "snapshot_every": 9, "callbacks": Kept(pole=pole), **settings}  # every 9 transitions
    work = {"collect": collect, "learn": learn}
    engine = Engine(MACHINE, work, state=Playing(limit=limit), driver=driver, run_dir=run_dir, **settings)
    return engine


if __name__ == "__main__":
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--run-dir", default="auto", help="where the journal and the snapshots go")
    asked.add_argument("--resume", action="store_true", help="go on with the run in --run-dir, if it holds one")
    args = asked.parse_args()
    engine = build(args.run_dir)
    end = engine.run(resume_from="auto" if args.resume else None)
    stood = [n for record in engine.journal if record.event == "Collected" for n in record.data["lengths"]]
    for part, lengths in (("first", stood[:20]), ("last", stood[-20:])):
        print(f"in the {part} 20 of {len(stood)} episodes the pole stood for {sum(lengths) / 20:.0f} steps on average")

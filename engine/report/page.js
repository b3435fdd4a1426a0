// Where the page stands, which runs it shows, and what is marked in them.

class Page {
  constructor(facts, runs) {
    this.facts = facts;
    this.runs = runs;
    this.first = Math.min(...runs.filter((run) => run.count).map((run) => run.first), Infinity);
    this.last = Math.max(...runs.map((run) => run.last), 0);
    this.first = Math.min(this.first, this.last);
    this.seq = this.last;
    this.names = [...new Set(runs.flatMap((run) => run.facts.machine.states.map((state) => state.name)))];
    this.sight = new Sight(this.first, this.last);
    this.marks = runs.flatMap(marksOf).concat(partings(facts));
    this.marks.sort((a, b) => a.seq - b.seq);
    this.paint();
    this.followers = [];
  }

  shadeOf(state) {
    return this.names.indexOf(state) % 10;
  }

  // Reads the colours from the style sheet, which knows light and dark.
  paint() {
    const style = getComputedStyle(document.documentElement), read = (name) => style.getPropertyValue(name).trim();
    const all = (name, many) => Array.from({ length: many }, (_, i) => read(`--${name}-${i}`));
    this.colours = { dim: read("--dim"), line: read("--line"), bad: read("--bad"), note: read("--note"), lines: all("line", 8), shades: all("shade", 10) };
  }

  repaint() {
    this.paint();
    this.sight.heard.forEach((hear) => hear());
  }

  // Goes to a transition; one that isn't there is the nearest that is.
  go(seq) {
    const wanted = Math.max(Math.min(Math.round(Number(seq)) || this.first, this.last), this.first);
    this.seq = this.there(wanted);
    this.sight.reveal(this.seq);
    this.followers.forEach((follow) => follow());
  }

  there(seq) {
    if (!this.runs.some((run) => run.count) || this.runs.some((run) => run.placeOf(seq) >= 0)) return seq;
    const near = this.runs.filter((run) => run.count).flatMap((run) => {
      const place = lastUpTo(run.seqs, seq);
      return [run.seqs[Math.max(place, 0)], run.seqs[Math.min(place + 1, run.count - 1)]];
    });
    const ahead = near.filter((other) => (seq > this.seq ? other > seq : other < seq));
    return (ahead.length ? ahead : near).reduce((a, b) => (Math.abs(b - seq) < Math.abs(a - seq) ? b : a));
  }

  // Goes to the next transition into a state, or back to the one before; around the end of the run.
  enter(run, state, way) {
    const wanted = new Set(run.facts.rows.flatMap((row, i) => (row[2] === state ? [i] : [])));
    const begin = Math.max(lastUpTo(run.seqs, this.seq), 0);
    for (let i = 1; i <= run.count; i++) {
      const place = (begin + way * i + 2 * run.count) % run.count;
      if (wanted.has(run.took[place])) return this.go(run.seqs[place]);
    }
    return undefined;
  }

  toMark(way) {
    const ahead = this.marks.filter((mark) => (mark.seq - this.seq) * way > 0);
    if (ahead.length) this.go(ahead[way > 0 ? 0 : ahead.length - 1].seq);
  }

  // The records that the other runs have of the transition.
  others(run) {
    return this.runs.filter((other) => other !== run).map((other) => {
      const place = other.placeOf(this.seq);
      return place < 0 ? null : other.record(place);
    });
  }

  get leap() {
    return Math.max(Math.round((this.sight.to - this.sight.from) / 20), 10);
  }
}

const MARKS = { divergence: "where runs part", error: "error", note: "note", snapshot: "snapshot", life: "incarnation" };

function marksOf(run) {
  const { facts, number: whose } = run;
  const at = (kind, rows) => rows.filter((row) => row.seq !== undefined).map((row) => ({ seq: row.seq, kind, run: whose }));
  const lives = facts.lives.slice(1).map(([place]) => ({ seq: run.seqs[place], kind: "life", run: whose }));
  return [...at("error", facts.errors.rows.filter((e) => e.live)), ...at("note", facts.notes.rows), ...at("snapshot", facts.snapshots.rows), ...lives];
}

function partings(facts) {
  return facts.compared.filter(({ divergence }) => divergence).map(({ divergence }) => ({ seq: divergence.seq, kind: "divergence" }));
}

// The page: it stands at one transition, and everything on it follows.

const PANELS_OPEN = 8;

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

// -- the transition --------------------------------------------------------------------------------------------

// What a run did at the transition where the page stands.
class Card {
  constructor(page, run) {
    this.page = page;
    this.run = run;
    this.drawing = new Drawing(run, (state, way) => page.enter(run, state, way));
    this.title = make("h3");
    this.summary = make("div", { class: "summary" });
    this.fields = make("div", { class: "fields" });
    const told = run.facts.training ? null : make("p", { class: "remark" }, "Drawn from the transitions that the run took: of a machine of its own, a run keeps no more.");
    this.element = make("section", { class: "card", "aria-label": `transition of ${run.facts.name}` },
      make("div", { class: "scrolls" }, this.drawing.svg), told, this.title, this.summary, this.fields);
  }

  async follow() {
    const { run, page } = this, place = run.placeOf(page.seq);
    this.drawing.light(place < 0 ? null : run.row(place));
    this.drawing.reveal();
    this.element.dataset.seq = place < 0 ? "" : page.seq;
    if (place < 0) return this.none();
    const [source, event, dest] = run.row(place);
    this.title.replaceChildren(recorded(event), " ", make("span", { class: "way" }, recorded(source), " → ", recorded(dest)));
    this.summary.replaceChildren(...this.facts(place));
    const wanted = page.seq, records = await Promise.all([run.record(place), place ? run.record(place - 1) : null, ...page.others(run)]);
    if (wanted !== page.seq) return undefined;
    return this.tell(place, ...records);
  }

  none() {
    const { run, page } = this;
    this.title.textContent = run.count ? `No transition ${count(page.seq)}` : "No transition yet";
    const there = run.count ? `This run has transitions ${count(run.first)} to ${count(run.last)}.` : "The run wrote no record.";
    this.summary.replaceChildren(there);
    this.fields.replaceChildren();
  }

  facts(place) {
    const { run } = this, seconds = run.times[place] / 1e6, [, incarnation] = run.life(place), spent = run.dwell(place);
    const since = (run.times[place] - run.times[0]) / 1e6;
    const told = [milliseconds(seconds), `${duration(Math.max(since, 0))} after the first`];
    if (spent !== null) told.push(`${duration(spent)} in ${run.row(place)[0]}`);
    if (run.facts.incarnations.length > 1) told.push(`incarnation ${incarnation}`);
    return told.map((text) => make("span", {}, recorded(text)));
  }

  // The fingerprint of the update, and which parts of it another run has with other bits.
  fingerprint() {
    const { seq, runs } = this.page, own = this.run.prints.get(seq);
    if (!own) return [];
    const theirs = runs.filter((run) => run !== this.run && run.prints.has(seq)).map((run) => new Map(run.prints.get(seq)));
    const digits = new Map(own), differs = (part) => (theirs.some((other) => other.has(part) && other.get(part) !== digits.get(part)) ? "differs" : null);
    return [make("h4", {}, "Fingerprint"), pairs(own, differs)];
  }

  tell(place, record, before, ...others) {
    if (!record) {
      this.fields.replaceChildren(make("p", { class: "remark" }, "The data of this transition isn't in the page, which would have grown too large. "),
        make("p", { class: "remark" }, make("code", {}, `tachograph show ${this.run.facts.name} --at ${this.page.seq}`), " prints it."));
      this.element.dataset.shown = this.page.seq;
      return;
    }
    const flat = (held, part) => new Map(held ? leaves(held[part]) : []);
    const differs = (part) => {
      const theirs = others.filter((other) => other).map((other) => flat(other, part)), own = flat(record, part);
      return (name) => (theirs.some((other) => exact(other.get(name)) !== exact(own.get(name))) ? "differs" : null);
    };
    const data = leaves(record.data), state = leaves(record.state), was = flat(before, "state");
    const notes = this.run.facts.notes.rows.filter((note) => note.seq === this.page.seq);
    this.fields.replaceChildren(
      ...notes.map((note) => make("p", { class: "note" }, recorded(note.text))),
      make("h4", {}, "Data"), data.length ? pairs(data.map(([name, value]) => [name, exact(value)]), differs("data")) : make("p", { class: "remark" }, "none"),
      make("h4", {}, "State"), pairs(state.map(([name, value]) => [name, changed(name, value, was)]), differs("state")),
      ...this.fingerprint(),
      ...(record.chain ? [make("h4", {}, "Chain"), make("p", { class: "number" }, record.chain)] : []));
    this.element.dataset.shown = this.page.seq;
  }
}

function changed(name, value, before) {
  const was = before.has(name) ? exact(before.get(name)) : exact(value);
  if (was === exact(value) || name === "seq") return exact(value);
  return make("span", {}, make("b", {}, recorded(exact(value))), make("span", { class: "was" }, " was ", recorded(was)));
}

// -- the bar ---------------------------------------------------------------------------------------------------

const KEYS = {
  ArrowLeft: (page) => page.go(page.seq - 1),
  ArrowRight: (page) => page.go(page.seq + 1),
  ArrowDown: null,
  ArrowUp: null,
  PageUp: (page) => page.go(page.seq - page.leap),
  PageDown: (page) => page.go(page.seq + page.leap),
  Home: (page) => page.go(page.first),
  End: (page) => page.go(page.last),
  n: (page) => page.toMark(1),
  p: (page) => page.toMark(-1),
  "+": (page) => page.sight.zoom(0.5, page.seq),
  "=": (page) => page.sight.zoom(0.5, page.seq),
  "-": (page) => page.sight.zoom(2, page.seq),
  "[": (page) => page.sight.move((page.sight.from - page.sight.to) / 4),
  "]": (page) => page.sight.move((page.sight.to - page.sight.from) / 4),
  0: (page) => page.sight.all(),
};

function heard(page, event) {
  const act = KEYS[event.key], into = event.target;
  if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
  if (into instanceof HTMLInputElement && into.type !== "range") return;
  if (into.closest?.(".wide") && /^(Arrow|Page|Home|End)/.test(event.key)) return; // it scrolls there
  event.preventDefault();
  act(page);
}

function bar(page) {
  const slider = make("input", { type: "range", min: page.first, max: page.last, step: 1, value: page.seq, id: "slider", "aria-label": "transition" });
  const field = make("input", { type: "number", min: page.first, max: page.last, value: page.seq, id: "seq", "aria-label": "go to transition" });
  const button = (name, text, act) => make("button", { type: "button", id: name, "aria-label": name, title: name, onclick: act }, text);
  const follow = () => {
    slider.value = field.value = page.seq;
    slider.setAttribute("aria-valuetext", `transition ${count(page.seq)} of ${count(page.last)}`);
  };
  slider.addEventListener("input", () => page.go(slider.value));
  field.addEventListener("change", () => page.go(field.value));
  page.followers.push(follow);
  follow();
  return make("div", { class: "bar-row" },
    make("div", { class: "buttons", role: "group", "aria-label": "step" },
      button("first", "|‹", () => page.go(page.first)), button("back", "‹", () => page.go(page.seq - 1)),
      button("forward", "›", () => page.go(page.seq + 1)), button("last", "›|", () => page.go(page.last))),
    make("label", { class: "seq" }, "transition ", field, make("span", { class: "of" }, ` of ${count(page.last)}`)),
    slider);
}

// -- the whole -------------------------------------------------------------------------------------------------

function chip(run, many) {
  return many ? make("i", { class: `chip colour-${run.number % 8}` }, run.letter) : null;
}

function header(page) {
  const many = page.runs.length > 1;
  const rows = page.runs.map((run) => {
    const { facts } = run, life = facts.incarnations[facts.incarnations.length - 1], stands = facts.stands;
    const told = [life ? ended(life) : "no transition yet", `${count(run.count)} transitions`];
    if (stands?.global_forward_batches) told.push(`${count(stands.global_forward_batches)} batches`);
    if (run.count) told.push(duration(facts.incarnations.reduce((sum, held) => sum + held.seconds, 0)));
    if (facts.ranks || facts.rank) told.push(`records of rank ${facts.rank}`);
    const bad = life && ["failed", "killed"].includes(life.ended);
    return make("div", { class: "run" }, chip(run, many), make("h1", {}, recorded(facts.name)),
      ...told.map((text, i) => make("span", { class: i === 0 && bad ? "bad" : "fact" }, recorded(text))));
  });
  const theme = make("button", { type: "button", id: "theme", "aria-label": "light or dark" }, "light / dark");
  theme.addEventListener("click", () => switchTheme(page));
  return make("header", {}, make("div", { class: "runs" }, ...rows), theme);
}

function switchTheme(page) {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  page.repaint();
}

function banners(page) {
  return page.facts.compared.map(({ divergence: found, fault }, i) => {
    const [a, b] = [page.runs[0], page.runs[i + 1]], between = `${a.letter} and ${b.letter}`;
    if (fault) return make("p", { class: "banner" }, `${between} can't be compared: `, recorded(fault));
    if (!found) return make("p", { class: "banner same" }, `${between} don't part: they are equal, as far as both go.`);
    const rank = found.rank ? ` of rank ${found.rank}` : "";
    return make("div", { class: "banner parts", role: "note" },
      make("p", {}, make("b", {}, `${between} part at transition `, leading(found.seq, (seq) => page.go(seq)), rank), ": ", recorded(found.field),
        " is ", make("code", {}, recorded(exact(found.a))), ` in ${a.letter} and `, make("code", {}, recorded(exact(found.b))), ` in ${b.letter}.`),
      found.cause ? make("p", {}, recorded(found.cause)) : null,
      found.hint ? make("p", { class: "remark" }, "Next: ", make("code", {}, recorded(found.hint))) : null);
  });
}

// Gathers the curves of all runs by what they show.
function panels(page) {
  const held = new Map();
  for (const run of page.runs) {
    for (const curve of run.curves) {
      if (!held.has(curve.panel)) held.set(curve.panel, []);
      held.get(curve.panel).push({ ...curve, run });
    }
  }
  const many = page.runs.length > 1;
  return [...held].map(([name, lines]) => new Plot(page, name, lines.map((line, i) => ({
    ...line, colour: (many ? line.run.number : i) % 8, label: many ? [line.run.letter, line.name === name ? "" : line.name].join(" ").trim() : line.name,
  }))));
}

function curves(page) {
  const many = page.runs.length > 1, bands = page.runs.map((run) => new Band(page, run, run.facts.name)), plots = panels(page);
  const follow = () => [...bands, ...plots].forEach((canvas) => canvas.point());
  page.followers.push(follow);
  const rows = bands.map((band) => make("div", { class: "band" }, chip(band.run, many), band.element));
  const figures = plots.map((plot) => plot.figure), more = figures.slice(PANELS_OPEN);
  const rest = more.length ? make("details", {}, make("summary", {}, `${more.length} more curves`), make("div", { class: "figures" }, ...more)) : null;
  const left = page.runs.reduce((sum, run) => sum + run.facts.curves_left_out, 0);
  const remark = left ? make("p", { class: "remark" }, `${count(left)} values of further curves were left out.`) : null;
  const section = make("section", { class: "curves", "aria-label": "curves" }, ...rows, shades(page),
    make("div", { class: "figures" }, ...figures.slice(0, PANELS_OPEN)), rest, remark);
  const tell = () => { section.dataset.sight = `${page.sight.from} ${page.sight.to}`; };
  page.sight.heard.push(tell);
  tell();
  return section;
}

function shades(page) {
  const names = page.names.filter((name) => page.runs.some((run) => run.facts.rows.some((row) => row[2] === name)));
  const states = names.map((name) => make("span", {}, make("i", { class: `shade-${page.shadeOf(name)}` }), recorded(name)));
  const kinds = Object.keys(MARKS).filter((kind) => page.marks.some((mark) => mark.kind === kind));
  return make("div", { class: "shades" }, ...states, ...kinds.map((kind) => make("span", {}, make("i", { class: `mark mark-${kind}` }), MARKS[kind])));
}

function sections(page) {
  const many = page.runs.length > 1, go = (seq) => page.go(seq);
  const made = SECTIONS.map(([title, build]) => {
    const held = page.runs.map((run) => [run, build(run, go)]).filter(([, body]) => body);
    if (!held.length) return null;
    return make("section", { "aria-label": title }, make("h2", {}, title), ...held.map(([run, body]) => make("div", { class: "of-run" }, chip(run, many), body)));
  });
  const shared = make("section", { "aria-label": "Settings and environment" }, make("h2", {}, "Settings and environment"), settings(page.runs));
  return make("div", { class: "sections" }, ...made, shared);
}

function footer(page) {
  const keys = "← → step · Page Up, Page Down leap · Home, End · n, p: next and previous mark (errors, notes, snapshots, incarnations, where runs part) · + − 0 zoom · [ ] move · drag over a curve to zoom, wheel with Ctrl or on a curve that was clicked, double click for all";
  const told = page.runs.flatMap((run) => thinning(run));
  return make("footer", {}, make("p", {}, keys), ...told.map((text) => make("p", {}, recorded(text))), make("p", {}, `Written ${clock(page.facts.written)} by tachograph report.`));
}

// Says what of a run isn't in the page.
function thinning({ facts, count: all }) {
  const { kept, count: taken } = facts.prints;
  const { size, there, cut, chain_every: every } = facts.records, missing = there.filter((held) => !held).length;
  const told = [];
  if (every > 1) told.push(`Of ${facts.name}, each transition's state, time, data and counters are here; of the chains every ${every}th.`);
  if (missing) told.push(`Of ${facts.name}, the data and counters of ${count(missing)} of ${count(there.length)} blocks of ${count(size)} transitions were left out; state, time and curves of all ${count(all)} are here.`);
  if (kept < taken) told.push(`Of ${count(taken)} fingerprints of ${facts.name}, ${count(kept)} are here.`);
  if (cut) told.push(`Long texts were cut in ${count(cut)} records of ${facts.name}.`);
  return told;
}

async function open() {
  const facts = JSON.parse(textIn("facts"));
  const runs = facts.runs.map((held, number) => new Run(number, held));
  runs.forEach((run, i) => { run.letter = String.fromCharCode(65 + (i % 26)); });
  await Promise.all(runs.map((run) => run.open()));
  const page = new Page(facts, runs), cards = runs.map((run) => new Card(page, run));
  const aloud = make("div", { class: "aloud", "aria-live": "polite", id: "aloud" });
  const lit = make("div", { class: "cards" }, ...cards.map((card, i) => (runs.length > 1 ? make("div", {}, chip(runs[i], true), card.element) : card.element)));
  page.followers.push(() => cards.forEach((card) => card.follow()), () => { aloud.textContent = saying(page); });
  const bars = page.last ? make("nav", { class: "bar", "aria-label": "transitions" }, bar(page)) : null;
  document.getElementById("page").replaceChildren(header(page), ...banners(page), ...(bars ? [bars] : []), make("main", { class: runs.length > 1 ? "many" : null }, lit, curves(page)), sections(page), footer(page), aloud);
  document.addEventListener("keydown", (event) => heard(page, event));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => page.repaint());
  const parting = partings(facts)[0];
  page.go(parting ? parting.seq : page.last);
  document.body.dataset.ready = "yes";
}

function saying(page) {
  const run = page.runs.find((held) => held.placeOf(page.seq) >= 0);
  if (!run) return "";
  const [source, event, dest] = run.row(run.placeOf(page.seq));
  return `transition ${page.seq}: ${event}, ${source} to ${dest}`;
}

open().catch((error) => {
  document.body.append(make("p", { class: "bad" }, `This page can't be shown: ${error.message}`));
  throw error;
});

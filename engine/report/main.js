// The page: it stands at one transition, and everything on it follows.

const PANELS_OPEN = 8;

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

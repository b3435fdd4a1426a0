// The sections below the curves: what a run is, and what it went through.

const SECTIONS = [
  ["Time by state", byState],
  ["Epochs", epochs],
  ["Validations", validations],
  ["Errors", errors],
  ["Notes", notes],
  ["Snapshots", snapshots],
  ["Incarnations", incarnations],
  ["Ranks", rankTable],
  ["Related runs", related],
  ["Side records", sides],
  ["Damage", damage],
];

function byState({ facts }) {
  const all = facts.states.reduce((sum, state) => sum + state.seconds, 0);
  const most = Math.max(...facts.states.map((state) => state.seconds), 1e-9);
  const bar = (state) => {
    const inner = make("span");
    inner.style.width = `${(100 * state.seconds) / most}%`;
    return make("span", { class: "share", title: `${((100 * state.seconds) / (all || 1)).toFixed(1)} %` }, inner);
  };
  return facts.states.length ? table("Time by state", [
    ["state", (s) => s.state],
    ["", bar, "wide"],
    ["share", (s) => `${((100 * s.seconds) / (all || 1)).toFixed(1)} %`, "number"],
    ["total", (s) => duration(s.seconds), "number"],
    ["mean", (s) => duration(s.mean), "number"],
    ["visits", (s) => count(s.visits), "number"],
  ], facts.states) : null;
}

function several(facts) {
  return facts.incarnations.length > 1 ? (row) => `i${row.incarnation}` : () => "";
}

function optional(value) {
  return value === null || value === undefined ? "" : number(value);
}

function epochs({ facts }, go) {
  const unreal = (e) => (e.not_finite ? make("span", { class: "bad" }, `${count(e.not_finite)} from `, leading(e.first_not_finite, go)) : "");
  return facts.epochs.count ? table("Epochs", [
    ["epoch", (e) => count(e.epoch), "number"],
    ["", several(facts)],
    ["batches", (e) => count(e.batches), "number"],
    ["first loss", (e) => optional(e.loss_first), "number"],
    ["last loss", (e) => optional(e.loss_last), "number"],
    ["time", (e) => duration(e.seconds), "number"],
    ["", (e) => (e.ended ? "" : "open")],
    ["not finite", unreal],
    ["results", (e) => results(e.results), "wide"],
  ], rowsOf(facts.epochs)) : null;
}

function validations({ facts }, go) {
  return facts.validations.count ? table("Validations", [
    ["transition", (v) => leading(v.seq, go), "number"],
    ["", several(facts)],
    ["epoch", (v) => optional(v.epoch), "number"],
    ["after batch", (v) => optional(v.batch), "number"],
    ["time", (v) => duration(v.seconds), "number"],
    ["", (v) => (v.sanity ? "sanity check" : "")],
    ["results", (v) => results(v.results), "wide"],
  ], rowsOf(facts.validations)) : null;
}

function errors({ facts }, go) {
  const where = (e) => (e.live ? leading(e.seq, go) : count(e.seq));
  return facts.errors.count ? table("Errors", [
    ["transition", where, "number"],
    ["", several(facts)],
    ["when", (e) => clock(e.time)],
    ["state", (e) => e.state],
    ["error", (e) => make("span", { class: "bad" }, recorded(`${e.kind}: ${e.error}`)), "wide"],
    ["samples", (e) => e.ids, "wide"],
    ["", (e) => (e.live ? "" : "superseded")],
  ], rowsOf(facts.errors)) : null;
}

function notes({ facts }, go) {
  return facts.notes.count ? table("Notes", [
    ["transition", (n) => leading(n.seq, go), "number"],
    ["when", (n) => clock(n.time)],
    ["note", (n) => n.text, "wide"],
  ], rowsOf(facts.notes)) : null;
}

function snapshots({ facts }, go) {
  const faulty = (s) => (s.fault ? make("span", { class: "bad" }, recorded(s.fault)) : s.exact ? "" : "inexact");
  return facts.snapshots.count ? table("Snapshots", [
    ["after", (s) => (s.seq === undefined ? "" : leading(s.seq, go)), "number"],
    ["", several(facts)],
    ["state", (s) => s.state],
    ["size", (s) => (s.bytes === undefined ? "" : bytes(s.bytes)), "number"],
    ["saved", (s) => (s.saved ? clock(s.saved) : "")],
    ["name", (s) => s.snapshot],
    ["", faulty, "wide"],
  ], rowsOf(facts.snapshots)) : null;
}

function origin({ parent, incarnation }) {
  if (parent === null || parent.seq === 0) return "start";
  if (parent.incarnation >= 0) return `i${parent.incarnation} at ${count(parent.seq)}`;
  return incarnation > 0 ? `joined at ${count(parent.seq)}` : `parent run at ${count(parent.seq)}`;
}

function incarnations({ facts }) {
  const counts = (life) => (life.live_until === null ? "" : life.live_until < life.first_seq ? "none" : `to ${count(life.live_until)}`);
  return facts.incarnations.length ? table("Incarnations", [
    ["", (life) => `i${life.incarnation}`],
    ["began", (life) => clock(life.began)],
    ["lived", (life) => duration(life.seconds), "number"],
    ["from", origin],
    ["transitions", (life) => (life.last_seq < life.first_seq ? "none" : `${count(life.first_seq)}–${count(life.last_seq)}`), "number"],
    ["that count", counts],
    ["ended", ended, "wide"],
  ], facts.incarnations) : null;
}

function rankTable({ facts }) {
  const late = (rank) => (rank.latest?.seconds ? `${duration(rank.latest.seconds)} in ${rank.latest.state}` : "");
  if (!facts.ranks) return null;
  const rows = [...facts.ranks.rows, ...facts.ranks.missing.map((rank) => ({ rank, ended: "it has no journal", detail: "" }))];
  const held = table("Ranks", [
    ["rank", (r) => String(r.rank), "number"],
    ["state", (r) => r.state],
    ["transition", (r) => optional(r.seq), "number"],
    ["behind", (r) => (r.behind ? count(r.behind) : ""), "number"],
    ["late", late],
    ["last record", (r) => (r.time ? clock(r.time) : "")],
    ["ended", ended, "wide"],
  ], rows);
  return make("div", {}, ...rankSentences(facts.ranks).map((text) => make("p", { class: "bad" }, recorded(text))), held);
}

// The tree of runs that this one belongs with: what it goes on from, and what goes on from it.
function related({ facts }) {
  if (!facts.tree) return null;
  const item = ({ run, run_dir: where, seq, created, children }) => make("li", { class: run === facts.run.run ? "this" : null },
    recorded(where || run), make("span", { class: "was" }, seq === null ? "" : ` from transition ${count(seq)}`, ` ${created}`),
    children.length ? make("ul", {}, ...children.map(item)) : null);
  return make("ul", { class: "tree" }, item(facts.tree.tree));
}

function rankSentences({ parting, failure }) {
  const told = [];
  if (parting) told.push(`The ranks part at transition ${count(parting.seq)}: ${parting.field} is ${exact(parting.a)} and ${exact(parting.b)} (${parting.cause}).`);
  if (failure?.kind) told.push(`Rank ${failure.rank} failed first, in ${failure.state}, at transition ${count(failure.seq)}: ${failure.kind}: ${failure.error}`);
  return told;
}

function sides({ facts }, go) {
  return facts.sides?.count ? table("Side records", [
    ["after", (s) => leading(s.seq, go), "number"],
    ["", several(facts)],
    ["when", (s) => clock(s.time)],
    ["what", (s) => s.kind],
    ["", (s) => s.told, "wide"],
  ], rowsOf(facts.sides)) : null;
}

function damage({ facts }) {
  const torn = facts.torn ? [{ file: facts.torn.file, offset: facts.torn.offset, reason: "a torn tail" }] : [];
  const rows = [...facts.damage, ...torn];
  return rows.length ? table("Damage", [
    ["file", (d) => d.file, "wide"],
    ["from byte", (d) => count(d.offset), "number"],
    ["bytes", (d) => optional(d.bytes), "number"],
    ["what", (d) => d.reason, "wide"],
  ], rows) : null;
}

// -- settings and environment --------------------------------------------------------------------------------

function leaves(value, path = "") {
  const inner = value !== null && typeof value === "object" && !Array.isArray(value);
  if (!inner || (path && !Object.keys(value).length)) return [[path, value]];
  return Object.entries(value).flatMap(([name, part]) => leaves(part, path ? `${path}.${name}` : name));
}

function about({ facts }) {
  const { run, in_force: held } = facts, { environment, ...settings } = held || run.settings;
  const parent = run.parent ? { parent: run.parent } : {};
  const told = { id: run.run, created: run.created, command: run.command.join(" "), world: run.world, ...parent };
  const more = Object.fromEntries(["host", "code"].filter((name) => run[name]).map((name) => [name, run[name]]));
  return new Map([
    ...leaves({ ...told, ...more }),
    ...leaves(settings),
    ...leaves({ environment: environment || run.environment }),
  ]);
}

const OWN = new Set(["id", "created", "command"]); // of each run, whatever else it has in common with another

// The settings of all runs in one table; those that differ come first, and are marked.
function settings(runs) {
  const held = runs.map(about);
  const names = [...new Set(held.flatMap((map) => [...map.keys()]))];
  const differs = (name) => !OWN.has(name) && new Set(held.map((map) => exact(map.has(name) ? map.get(name) : null))).size > 1;
  const rows = names.map((name) => ({ name, differs: differs(name) })).sort((a, b) => b.differs - a.differs);
  const columns = held.map((map, i) => [runs.length > 1 ? runs[i].letter : "value", (row) => (map.has(row.name) ? recorded(exact(map.get(row.name))) : ""), "wide"]);
  const marked = (row) => (row.differs ? make("b", { class: "differs" }, recorded(row.name)) : recorded(row.name));
  return table("Settings and environment", [["name", marked], ...columns], rows);
}

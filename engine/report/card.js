// What a run did at the transition where the page stands.
class Card {
  constructor(page, run) {
    this.page = page;
    this.run = run;
    this.drawing = new Drawing(run, (state, way) => page.enter(run, state, way));
    this.title = make("h3");
    this.summary = make("div", { class: "summary" });
    this.fields = make("div", { class: "fields" });
    const told = run.facts.whole ? null : make("p", { class: "remark" }, "Drawn from the transitions that the run took: of a machine of its own, a run keeps no more.");
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

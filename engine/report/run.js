// A run as the page holds it: all transitions in columns, and its records in boxes that are unpacked when one is shown.

const KEPT_BOXES = 12;

function textIn(id) {
  const element = document.getElementById(id);
  return element ? element.textContent : "";
}

// Returns the place of the last value that isn't larger than `wanted`; -1 where there is none.
function lastUpTo(values, wanted) {
  let low = 0, high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] <= wanted) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

// A value as JSON; an integer that JavaScript's numbers can't hold as a text.
function numeral(value) {
  if (typeof value === "number") return Object.is(value, -0) ? "-0.0" : String(value);
  const text = String(value);
  return text.startsWith('"') ? text : text.split(/([[\],])/).map((part) => (/^-?\d{16,}$/.test(part) ? `"${part}"` : part)).join("");
}

class Records {
  constructor(box, chains) {
    const { order, templates } = box.told;
    this.order = box.columns[order];
    this.chains = chains;
    this.templates = templates.map(([parts, columns]) => ({ parts, columns: columns.map((c) => columnOf(box, c)), count: 0 }));
    this.places = new Uint32Array(this.order.length); // of each record among those of its template
    this.order.forEach((template, i) => { this.places[i] = this.templates[template].count++; });
  }

  // Returns [data, state] of the `i`-th record in this box.
  at(i) {
    const { parts, columns } = this.templates[this.order[i]], place = this.places[i];
    let text = parts[0];
    for (let n = 0; n < columns.length; n++) text += columns[n](place) + parts[n + 1];
    return text.split("\n").map((half) => JSON.parse(half));
  }
}

function columnOf(box, column) {
  if (!Array.isArray(column)) return (place) => numeral(box.columns[column][place]);
  const [lengths, numbers] = column.map((c) => box.columns[c]);
  const starts = new Uint32Array(lengths.length + 1);
  lengths.forEach((length, i) => { starts[i + 1] = starts[i] + Math.abs(length); });
  return (place) => {
    const held = Array.from(numbers.slice(starts[place], starts[place + 1]), numeral).join(",");
    return lengths[place] < 0 ? held : `[${held}]`;
  };
}

// The fields that a record leaves out while they hold their defaults.
function missing(defaults, held) {
  return Object.fromEntries(Object.entries(defaults || {}).filter(([name]) => !(name in held)));
}

// The fingerprints by their transitions: of each a list of [part, digits].
async function printsIn(text) {
  const held = new Map();
  if (!text) return held;
  const box = await unpacked(text), { at, parts } = box.told;
  const columns = Object.entries(parts).map(([part, column]) => [part, box.columns[column]]);
  box.columns[at].forEach((seq, i) => held.set(seq, columns.map(([part, digits]) => [part, digits[i]]).filter(([, d]) => d)));
  return held;
}

class Run {
  constructor(number, facts) {
    this.number = number;
    this.facts = facts;
    this.boxes = new Map();
  }

  async open() {
    const outline = await unpacked(textIn(`outline-${this.number}`));
    this.seqs = outline.columns[outline.told.seq];
    this.times = outline.columns[outline.told.time];
    this.took = outline.columns[outline.told.took];
    const curves = await unpacked(textIn(`curves-${this.number}`));
    this.curves = curves.told.map(({ panel, name, event, columns: [seqs, values] }) =>
      ({ panel, name, event, seqs: curves.columns[seqs], values: curves.columns[values] }));
    this.prints = await printsIn(textIn(`prints-${this.number}`));
  }

  get count() {
    return this.seqs.length;
  }

  get first() {
    return this.count ? this.seqs[0] : 0;
  }

  get last() {
    return this.count ? this.seqs[this.count - 1] : 0;
  }

  // The place of a transition; -1 where the run has none of that number.
  placeOf(seq) {
    const place = lastUpTo(this.seqs, seq);
    return place >= 0 && this.seqs[place] === seq ? place : -1;
  }

  row(place) {
    return this.facts.rows[this.took[place]];
  }

  life(place) {
    return this.facts.lives[lastUpTo(this.facts.lives.map((life) => life[0]), place)];
  }

  // Seconds from the transition before it, or null where another life of the run lies between.
  dwell(place) {
    if (place < 1 || this.life(place)[1] !== this.life(place - 1)[1]) return null;
    return Math.max(this.times[place] - this.times[place - 1], 0) / 1e6;
  }

  has(place) {
    return place >= 0 && this.facts.records.there[Math.floor(place / this.facts.records.size)];
  }

  // The record at a place: {data, state, chain}; null where its box was left out.
  async record(place) {
    if (!this.has(place)) return null;
    const { size, chain_every: every } = this.facts.records;
    const box = await this.box(Math.floor(place / size)), within = place % size;
    const [data, state] = box.at(within), [, , name, defaults] = this.life(place), [, event, dest] = this.row(place);
    return {
      data: { ...data, ...missing(defaults[event], data) },
      state: { state: dest, seq: this.seqs[place], ...state, ...missing(defaults[name], state) },
      chain: within % every ? null : BigInt.asUintN(64, BigInt(box.chains[within / every])).toString(16).padStart(16, "0"),
    };
  }

  box(number) {
    let box = this.boxes.get(number);
    if (!box) {
      box = this.unpack(number);
      this.boxes.set(number, box);
      if (this.boxes.size > KEPT_BOXES) this.boxes.delete(this.boxes.keys().next().value);
    }
    return box;
  }

  async unpack(number) {
    const [records, chains] = textIn(`records-${this.number}-${number}`).split(" ");
    return new Records(await unpacked(records), (await unpacked(chains)).columns[0]);
  }
}

// Curves over transitions. All plots show the same range, and the cursor is where the page stands.

const MARKED_POINTS = 80; // as many points in sight are drawn as such

function steps(low, high, most) {
  const rough = (high - low) / most || 1, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
  const values = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-9; value += step) values.push(Math.abs(value) < step * 1e-9 ? 0 : value);
  return values;
}

// What of a line is in sight: the finite values' range, and the places where the others are.
function seen(line, sight) {
  const begin = Math.max(lastUpTo(line.seqs, sight.from) , 0), end = Math.min(lastUpTo(line.seqs, sight.to) + 2, line.seqs.length);
  let low = Infinity, high = -Infinity, least = Infinity;
  for (let i = begin; i < end; i++) {
    const value = line.values[i];
    if (!(Math.abs(value) < Infinity)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
    if (value > 0 && value < least) least = value;
  }
  return { begin, end, low, high, least };
}

class Plot extends Canvas {
  constructor(page, name, lines) {
    super(page, 150, `${name} over transitions`);
    this.name = name;
    this.lines = lines;
    this.legend = make("div", { class: "legend" });
    this.logarithmic = make("button", { type: "button", class: "switch", "aria-pressed": "false", "aria-label": `${name} on a logarithmic scale` }, "log");
    this.logarithmic.addEventListener("click", () => this.toggle());
    this.figure = make("figure", {}, make("figcaption", {}, make("h3", {}, recorded(name)), this.legend, this.logarithmic), this.element);
    this.names = lines.map((line) => this.legendOf(line));
    this.tell();
  }

  legendOf(line) {
    const value = make("b", { class: "number" });
    const told = this.lines.length > 1 ? recorded(line.label) : null;
    this.legend.append(make("span", {}, make("i", { class: `colour-${line.colour}` }), told, value));
    return value;
  }

  toggle() {
    const pressed = this.logarithmic.getAttribute("aria-pressed") !== "true";
    this.logarithmic.setAttribute("aria-pressed", String(pressed));
    this.later();
  }

  get onLog() {
    return this.logarithmic.getAttribute("aria-pressed") === "true";
  }

  point() {
    super.point();
    this.tell();
  }

  // Says each line's value where the page stands, or the last one before.
  tell() {
    this.lines.forEach((line, i) => {
      const place = lastUpTo(line.seqs, this.page.seq);
      this.names[i].textContent = place < 0 ? "" : number(line.values[place]);
      this.names[i].title = place < 0 ? "" : `${exact(line.values[place])} at transition ${count(line.seqs[place])}`;
    });
  }

  paint(pen) {
    const held = this.lines.map((line) => seen(line, this.page.sight));
    const usesLog = this.onLog && held.some(({ least }) => least < Infinity);
    const floor = usesLog ? Math.min(...held.map(({ least }) => least)) : -Infinity;
    const into = usesLog ? (value) => Math.log10(Math.max(value, floor)) : (value) => value;
    let low = into(Math.min(...held.map((range) => range.low))), high = into(Math.max(...held.map((range) => range.high)));
    if (!(low <= high)) [low, high] = [0, 1];
    const room = (high - low) * 0.06 || Math.abs(high) * 0.06 || 1;
    this.levels = { low: low - room, high: high + room, into };
    this.grid(pen, usesLog);
    pen.save();
    pen.beginPath();
    pen.rect(AXIS.left, 0, this.scale.width, this.height - AXIS.bottom);
    pen.clip();
    this.page.marks.forEach((mark) => this.mark(pen, mark));
    this.lines.forEach((line, i) => this.line(pen, line, held[i]));
    pen.restore();
  }

  y(value) {
    const { low, high, into } = this.levels;
    return AXIS.top + (1 - (into(value) - low) / (high - low)) * (this.height - AXIS.top - AXIS.bottom);
  }

  grid(pen, usesLog) {
    const { low, high } = this.levels, { colours, sight } = this.page;
    pen.fillStyle = colours.dim;
    pen.strokeStyle = colours.line;
    pen.lineWidth = 1;
    pen.textAlign = "right";
    for (const level of steps(low, high, 4)) {
      const value = usesLog ? 10 ** level : level, y = Math.round(this.y(value)) + 0.5;
      pen.beginPath();
      pen.moveTo(AXIS.left, y);
      pen.lineTo(AXIS.left + this.scale.width, y);
      pen.stroke();
      pen.fillText(number(Number(value.toPrecision(4))), AXIS.left - 6, y + 3.5, AXIS.left - 8);
    }
    pen.textAlign = "center";
    for (const seq of steps(sight.from, sight.to, Math.max(this.scale.width / 110, 2))) {
      const text = count(seq), most = this.width - 2 - pen.measureText(text).width / 2;
      if (seq === Math.round(seq)) pen.fillText(text, Math.min(this.scale.x(seq), most), this.height - 5);
    }
  }

  mark(pen, { seq, kind }) {
    if (kind !== "divergence" && kind !== "error") return;
    pen.fillStyle = this.page.colours.bad;
    pen.globalAlpha = kind === "divergence" ? 0.8 : 0.35;
    pen.fillRect(this.scale.x(seq) - 0.75, 0, 1.5, this.height);
    pen.globalAlpha = 1;
  }

  line(pen, line, range) {
    pen.strokeStyle = pen.fillStyle = this.page.colours.lines[line.colour];
    pen.lineWidth = 1.4;
    pen.lineJoin = "round";
    if (range.end - range.begin > 2 * this.scale.width) this.thinned(pen, line, range);
    else this.whole(pen, line, range);
    this.unreal(pen, line, range);
  }

  whole(pen, line, { begin, end }) {
    const marked = end - begin <= MARKED_POINTS;
    pen.beginPath();
    for (let i = begin, joins = false; i < end; i++) {
      const value = line.values[i];
      const real = Math.abs(value) < Infinity;
      if (real) pen[joins ? "lineTo" : "moveTo"](this.scale.x(line.seqs[i]), this.y(value));
      joins = real;
    }
    pen.stroke();
    for (let i = begin; marked && i < end; i++) {
      if (Math.abs(line.values[i]) < Infinity) pen.fillRect(this.scale.x(line.seqs[i]) - 1.5, this.y(line.values[i]) - 1.5, 3, 3);
    }
  }

  // Draws the least and the largest value of every column of pixels, so that no peak is lost, and the mean over them.
  thinned(pen, line, range) {
    const means = [];
    pen.globalAlpha = 0.45;
    pen.beginPath();
    for (const { x, low, high, mean } of this.binned(line, range)) {
      pen.moveTo(x + 0.5, this.y(low) + 0.5);
      pen.lineTo(x + 0.5, this.y(high) - 0.5);
      means.push([x + 0.5, this.y(mean)]);
    }
    pen.stroke();
    pen.globalAlpha = 1;
    pen.beginPath();
    means.forEach(([x, y]) => pen.lineTo(x, y));
    pen.stroke();
  }

  binned(line, { begin, end }) {
    const { from, left, unit } = this.scale, bins = [];
    for (let i = begin; i < end;) {
      const x = Math.floor(left + (line.seqs[i] - from) * unit), beyond = from + (x + 1 - left) / unit;
      let low = Infinity, high = -Infinity, sum = 0, n = 0;
      do {
        const value = line.values[i++];
        if (!(Math.abs(value) < Infinity)) continue;
        if (value < low) low = value;
        if (value > high) high = value;
        sum += value;
        n++;
      } while (i < end && line.seqs[i] < beyond);
      if (n) bins.push({ x, low, high, mean: sum / n });
    }
    return bins;
  }

  // Marks NaN and infinities at the upper edge.
  unreal(pen, line, { begin, end }) {
    pen.fillStyle = this.page.colours.bad;
    let before = -Infinity;
    for (let i = begin; i < end; i++) {
      if (Math.abs(line.values[i]) < Infinity) continue;
      const x = this.scale.x(line.seqs[i]);
      if (x - before < 1) continue;
      pen.fillRect(x - 1.5, 0, 3, 7);
      before = x;
    }
  }
}

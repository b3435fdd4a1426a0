// Curves over transitions, on a canvas. All plots show the same range, and the cursor is where the page stands.

const AXIS = { left: 62, right: 10, top: 8, bottom: 20 };
const MARKED_POINTS = 80; // as many points in sight are drawn as such

// What all plots look at: a range of transitions.
class Sight {
  constructor(first, last) {
    this.first = first;
    this.last = Math.max(last, first + 1);
    this.heard = [];
    this.all();
  }

  all() {
    this.set(this.first, this.last);
  }

  set(from, to) {
    const width = Math.min(Math.max(to - from, 8), Math.max(this.last - this.first, 8));
    this.from = Math.max(Math.min(from, this.last - width), this.first);
    this.to = this.from + width;
    this.heard.forEach((hear) => hear());
  }

  zoom(factor, around) {
    this.set(around - (around - this.from) * factor, around + (this.to - around) * factor);
  }

  move(distance) {
    this.set(this.from + distance, this.to + distance);
  }

  // Moves just so far that a transition is in sight.
  reveal(seq) {
    const width = this.to - this.from;
    if (seq < this.from) this.set(seq - width / 8, seq + (7 * width) / 8);
    else if (seq > this.to) this.set(seq - (7 * width) / 8, seq + width / 8);
  }
}

// Where a transition lies on a canvas, and which one lies where.
class Scale {
  constructor(sight, width) {
    this.from = sight.from;
    this.left = AXIS.left;
    this.width = Math.max(width - AXIS.left - AXIS.right, 1);
    this.unit = this.width / (sight.to - sight.from);
  }

  x(seq) {
    return this.left + (seq - this.from) * this.unit;
  }

  seq(x) {
    return Math.round(this.from + (x - this.left) / this.unit);
  }
}

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

// A canvas that is drawn anew when its size, the range in sight or the colours change, with the cursor above it.
class Canvas {
  constructor(page, height, label) {
    this.page = page;
    this.height = height;
    this.canvas = make("canvas", { role: "img", tabindex: "0", "aria-label": label });
    this.cursor = make("div", { class: "cursor" });
    this.picked = make("div", { class: "picked", hidden: true });
    this.element = make("div", { class: "canvas" }, this.canvas, this.cursor, this.picked);
    this.element.style.height = `${height}px`;
    this.listen();
    new ResizeObserver(() => this.resize()).observe(this.element);
    page.sight.heard.push(() => this.later());
  }

  resize() {
    this.width = this.element.clientWidth;
    this.later();
  }

  later() {
    if (!this.width) return;
    this.scale = new Scale(this.page.sight, this.width);
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.draw();
    });
  }

  draw() {
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(this.width * ratio);
    this.canvas.height = Math.round(this.height * ratio);
    const pen = this.canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.font = "11px system-ui, sans-serif";
    this.paint(pen);
    this.point();
  }

  // Puts the cursor where the page stands; nothing else is drawn for it.
  point() {
    if (!this.scale) return;
    const x = this.scale.x(this.page.seq);
    this.cursor.hidden = x < AXIS.left - 1 || x > this.width - AXIS.right + 1;
    this.cursor.style.transform = `translateX(${x.toFixed(1)}px)`;
  }

  listen() {
    const { canvas } = this;
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey && document.activeElement !== canvas) return; // else the page couldn't be scrolled
      event.preventDefault();
      const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY);
      if (sideways) this.page.sight.move(event.deltaX / this.scale.unit);
      else this.page.sight.zoom(Math.exp(Math.max(Math.min(event.deltaY, 100), -100) * 0.004), this.scale.seq(event.offsetX));
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => this.press(event));
    canvas.addEventListener("pointermove", (event) => this.drag(event));
    canvas.addEventListener("pointerup", (event) => this.release(event));
    canvas.addEventListener("pointercancel", () => this.drop());
    canvas.addEventListener("dblclick", () => this.page.sight.all());
  }

  press(event) {
    if (event.button !== 0) return;
    this.canvas.focus({ preventScroll: true });
    this.canvas.setPointerCapture(event.pointerId);
    this.pressed = { x: event.offsetX, moves: event.shiftKey };
  }

  drag(event) {
    if (!this.pressed) return;
    const distance = event.offsetX - this.pressed.x;
    if (this.pressed.moves) {
      this.page.sight.move(-distance / this.scale.unit);
      this.pressed.x = event.offsetX;
    } else {
      this.picked.hidden = Math.abs(distance) < 5;
      this.picked.style.left = `${Math.min(event.offsetX, this.pressed.x)}px`;
      this.picked.style.width = `${Math.abs(distance)}px`;
    }
  }

  release(event) {
    const { pressed } = this;
    const dragged = pressed && !this.picked.hidden;
    this.drop();
    if (!pressed || pressed.moves) return;
    const [from, to] = [pressed.x, event.offsetX].sort((a, b) => a - b).map((x) => this.scale.seq(x));
    if (dragged) this.page.sight.set(from, to);
    else this.page.go(to);
  }

  drop() {
    this.pressed = null;
    this.picked.hidden = true;
  }
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

// The band above the curves: in each column of pixels the rarest state that was entered there, and what is marked.
class Band extends Canvas {
  constructor(page, run, name) {
    super(page, 30, `States of ${name} over transitions, and marks`);
    this.run = run;
    const entered = new Float64Array(run.facts.rows.length);
    for (let i = 0; i < run.count; i++) entered[run.took[i]]++;
    const times = new Map();
    run.facts.rows.forEach(([, , dest], row) => times.set(dest, (times.get(dest) || 0) + entered[row]));
    this.rarity = run.facts.rows.map(([, , dest]) => times.get(dest));
    this.shades = run.facts.rows.map(([, , dest]) => page.shadeOf(dest));
  }

  paint(pen) {
    const { run, scale } = this, { sight, colours } = this.page;
    let place = Math.max(lastUpTo(run.seqs, sight.from), 0);
    const end = Math.min(lastUpTo(run.seqs, sight.to) + 1, run.count);
    while (place < end) {
      const x = scale.x(run.seqs[place]), edge = Math.max(Math.floor(x) + 1, x);
      let rarest = run.took[place];
      for (place++; place < end && scale.x(run.seqs[place]) < edge; place++) {
        if (this.rarity[run.took[place]] < this.rarity[rarest]) rarest = run.took[place];
      }
      pen.fillStyle = colours.shades[this.shades[rarest]];
      pen.fillRect(x, 12, Math.max(scale.x(place < end ? run.seqs[place] : run.seqs[end - 1] + 1) - x, 1), 16);
    }
    this.page.marks.forEach((mark) => this.mark(pen, mark));
  }

  mark(pen, { seq, kind, run }) {
    if (run !== undefined && run !== this.run.number) return;
    pen.fillStyle = kind === "error" || kind === "divergence" ? this.page.colours.bad : kind === "note" ? this.page.colours.note : this.page.colours.dim;
    const x = this.scale.x(seq);
    if (x < AXIS.left - 1) return;
    if (kind === "snapshot") pen.fillRect(x - 2, 5, 4, 4);
    else if (kind === "life") pen.fillRect(x - 0.75, 0, 1.5, 30);
    else {
      pen.beginPath();
      pen.moveTo(x - 4.5, 1);
      pen.lineTo(x + 4.5, 1);
      pen.lineTo(x, 10);
      pen.fill();
      if (kind === "divergence") pen.fillRect(x - 0.75, 9, 1.5, 21);
    }
  }
}

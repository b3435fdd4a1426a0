// The drawing of a machine: where it stands is lit, and the arrow that led there.

class Drawing {
  constructor(run, enter) {
    const { box, states, arrows } = run.facts.machine;
    this.states = new Map();
    this.lit = [];
    this.arrows = new Map();
    const label = "The machine. A state leads to the next transition into it, with Shift to the one before";
    this.svg = drawn("svg", { class: "machine", viewBox: box.join(" "), role: "group", "aria-label": label });
    this.svg.style.maxWidth = `${box[2]}px`;
    this.svg.append(...arrows.map((arrow) => this.arrow(arrow)), ...arrows.map(labelOf), ...states.map((state) => this.state(state, enter)));
    new ResizeObserver(() => this.measure()).observe(this.svg);
    for (const [source, , dest] of run.facts.rows) this.arrows.get(`${source}\n${dest}`)?.classList.add("taken");
  }

  arrow({ from, to, path, head, label }) {
    const title = drawn("title", {}, `${from} → ${to}: ${label}`);
    const element = drawn("g", { class: to === "exception" ? "arrow failed" : "arrow" }, title, drawn("path", { d: path }), drawn("polygon", { points: head }));
    this.arrows.set(`${from}\n${to}`, element);
    return element;
  }

  state({ name, short, x, y, half }, enter) {
    const box = drawn("rect", { x: x - half, y: y - 17, width: 2 * half, height: 34, rx: 6 });
    const kind = name === "exception" ? "state failed" : "state";
    const element = drawn("g", { class: kind, tabindex: 0, role: "button", "aria-label": name }, drawn("title", {}, name), box, drawn("text", { x, y: y + 4.5 }, short));
    element.dataset.state = name;
    element.addEventListener("click", (event) => enter(name, event.shiftKey ? -1 : 1));
    element.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      enter(name, event.shiftKey ? -1 : 1);
    });
    this.states.set(name, element);
    return element;
  }

  measure() {
    const around = this.svg.parentElement;
    this.wide = around.scrollWidth > around.clientWidth; // asked for now, since at each step it would cost a layout
    this.reveal();
  }

  // Scrolls a drawing that is wider than its place to the state that is lit.
  reveal() {
    if (!this.wide || !this.lit[0]) return;
    const around = this.svg.parentElement, box = this.lit[0].getBoundingClientRect();
    const { left, width } = around.getBoundingClientRect();
    around.scrollLeft += box.left + box.width / 2 - left - width / 2;
  }

  light(row) {
    this.lit.forEach((element) => element?.classList.remove("lit"));
    this.lit = row ? [this.states.get(row[2]), this.arrows.get(`${row[0]}\n${row[2]}`)] : [];
    this.lit.forEach((element) => element?.classList.add("lit"));
    this.states.forEach((element, name) => element.setAttribute("aria-current", row && name === row[2] ? "step" : "false"));
  }
}

function labelOf({ label, x, y }) {
  return drawn("text", { class: "label", x, y }, label);
}

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

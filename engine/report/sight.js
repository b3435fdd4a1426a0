// Which transitions the curves show, and where they lie on a canvas.

const AXIS = { left: 62, right: 10, top: 8, bottom: 20 };

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

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

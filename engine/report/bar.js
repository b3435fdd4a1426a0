// Stepping: keys, buttons, a number, a slider.

const KEYS = {
  ArrowLeft: (page) => page.go(page.seq - 1),
  ArrowRight: (page) => page.go(page.seq + 1),
  PageUp: (page) => page.go(page.seq - page.leap),
  PageDown: (page) => page.go(page.seq + page.leap),
  Home: (page) => page.go(page.first),
  End: (page) => page.go(page.last),
  n: (page) => page.toMark(1),
  p: (page) => page.toMark(-1),
  "+": (page) => page.sight.zoom(0.5, page.seq),
  "=": (page) => page.sight.zoom(0.5, page.seq),
  "-": (page) => page.sight.zoom(2, page.seq),
  "[": (page) => page.sight.move((page.sight.from - page.sight.to) / 4),
  "]": (page) => page.sight.move((page.sight.to - page.sight.from) / 4),
  0: (page) => page.sight.all(),
};

function heard(page, event) {
  const act = KEYS[event.key], into = event.target;
  if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
  if (into instanceof HTMLInputElement && into.type !== "range") return;
  if (into.closest?.(".wide") && /^(Arrow|Page|Home|End)/.test(event.key)) return; // it scrolls there
  event.preventDefault();
  act(page);
}

function bar(page) {
  const slider = make("input", { type: "range", min: page.first, max: page.last, step: 1, value: page.seq, id: "slider", "aria-label": "transition" });
  const field = make("input", { type: "number", min: page.first, max: page.last, value: page.seq, id: "seq", "aria-label": "go to transition" });
  const button = (name, text, act) => make("button", { type: "button", id: name, "aria-label": name, title: name, onclick: act }, text);
  const follow = () => {
    slider.value = field.value = page.seq;
    slider.setAttribute("aria-valuetext", `transition ${count(page.seq)} of ${count(page.last)}`);
  };
  slider.addEventListener("input", () => page.go(slider.value));
  field.addEventListener("change", () => page.go(field.value));
  page.followers.push(follow);
  follow();
  return make("div", { class: "bar-row" },
    make("div", { class: "buttons", role: "group", "aria-label": "step" },
      button("first", "|‹", () => page.go(page.first)), button("back", "‹", () => page.go(page.seq - 1)),
      button("forward", "›", () => page.go(page.seq + 1)), button("last", "›|", () => page.go(page.last))),
    make("label", { class: "seq" }, "transition ", field, make("span", { class: "of" }, ` of ${count(page.last)}`)),
    slider);
}

// Elements of the page. What comes from a run is only ever set as text.

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

function drawn(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

const SHOWN = 2000; // characters of a text, before the rest is asked for

// A recorded text: it can't change the direction of what stands around it, and a long one is folded.
function recorded(value) {
  const text = typeof value === "string" ? value : exact(value);
  if (text.length <= SHOWN) return make("bdi", {}, text);
  const body = make("bdi", {}, text.slice(0, SHOWN));
  const more = make("button", { type: "button", class: "link" }, `${count(text.length - SHOWN)} more characters`);
  more.addEventListener("click", () => { body.textContent = text; more.remove(); });
  return make("span", {}, body, " ", more);
}

function leading(seq, go) {
  return make("button", { type: "button", class: "link number", onclick: () => go(seq), title: `go to transition ${count(seq)}` }, count(seq));
}

// A table. A column is [name, what makes a row's cell, "number" or "wide"].
function table(name, columns, rows) {
  const used = columns.filter(([, cell]) => rows.some((row) => !row.omitted && !isEmpty(cell(row))));
  const head = make("tr", {}, ...used.map(([title, , kind]) => make("th", { scope: "col", class: kind || null }, title)));
  const body = rows.map((row) => make("tr", { class: row.omitted ? "omitted" : null }, ...cells(row, used)));
  return make("div", { class: "wide", tabindex: "0", role: "group", "aria-label": name }, make("table", {}, make("thead", {}, head), make("tbody", {}, ...body)));
}

function cells(row, columns) {
  if (row.omitted) return [make("td", { colspan: columns.length }, `${count(row.omitted)} rows left out`)];
  return columns.map(([, cell, kind]) => {
    const value = cell(row);
    return make("td", { class: kind || null }, isEmpty(value) ? "" : value instanceof Node ? value : recorded(value));
  });
}

function isEmpty(value) {
  return value === null || value === undefined || value === "";
}

// Rows of a table that may be long: the first and the last ones are there.
function rowsOf(held) {
  const { rows, count: all, first } = held;
  return rows.length < all ? [...rows.slice(0, first), { omitted: all - rows.length }, ...rows.slice(first)] : rows;
}

function pairs(entries, mark = () => null) {
  const rows = entries.map(([name, value]) =>
    make("div", { class: mark(name) }, make("dt", {}, recorded(name)), make("dd", {}, value instanceof Node ? value : recorded(value))));
  return make("dl", {}, ...rows);
}

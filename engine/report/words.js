// Values in words.

const GROUPED = new Intl.NumberFormat("en-US");

function count(value) {
  return GROUPED.format(value);
}

function number(value) {
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value)) return Math.abs(value) < 1e15 ? count(value) : String(value);
  return exact(Number(value.toPrecision(6)));
}

// A recorded value with every digit of it.
function exact(value) {
  if (typeof value === "number") return exactNumber(value);
  if (typeof value === "string") return value === "" ? '""' : value;
  if (value === null || value === undefined) return "none";
  if (value === true || value === false) return value ? "yes" : "no";
  if (Array.isArray(value)) return `[${value.map(exact).join(", ")}]`;
  return `{${Object.entries(value).map(([name, part]) => `${name}: ${exact(part)}`).join(", ")}}`;
}

function exactNumber(value) {
  if (Number.isNaN(value)) return "nan";
  if (!Number.isFinite(value)) return value > 0 ? "inf" : "-inf";
  if (Object.is(value, -0)) return "-0.0";
  return value !== 0 && Math.abs(value) < 1e-4 ? value.toExponential() : String(value);
}

function duration(seconds) {
  if (seconds < 0.9995) return seconds >= 1e-3 ? `${Number((seconds * 1e3).toPrecision(3))} ms` : `${Math.round(seconds * 1e6)} µs`;
  if (seconds < 59.95) return `${Number(seconds.toPrecision(3))} s`;
  const minutes = Math.floor(Math.round(seconds) / 60), hours = Math.floor(minutes / 60);
  if (minutes < 60) return `${minutes}m ${String(Math.round(seconds) % 60).padStart(2, "0")}s`;
  return hours < 48 ? `${hours}h ${String(minutes % 60).padStart(2, "0")}m` : `${Math.floor(hours / 24)}d ${hours % 24}h`;
}

// A time in seconds since 1970, by this machine's clock.
function clock(seconds) {
  const moment = new Date(seconds * 1000), two = (n) => String(n).padStart(2, "0");
  const date = `${moment.getFullYear()}-${two(moment.getMonth() + 1)}-${two(moment.getDate())}`;
  return `${date} ${two(moment.getHours())}:${two(moment.getMinutes())}:${two(moment.getSeconds())}`;
}

function milliseconds(seconds) {
  return `${clock(seconds)}.${String(Math.floor(seconds * 1000) % 1000).padStart(3, "0")}`;
}

function bytes(size) {
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (size < 999.5) return `${Number(size.toPrecision(3))} ${unit}`;
    size /= 1000;
  }
  return `${Number(size.toPrecision(3))} TB`;
}

function results(held) {
  return Object.entries(held || {}).filter(([name]) => !name.startsWith("_")).map(([name, value]) => `${name} ${number(value)}`).join("  ");
}

const ENDINGS = { running: "still running", killed: "killed", unknown: "running or killed: its process isn't on the machine that wrote this page" };

function ended(life) {
  if (life.ended in ENDINGS) return ENDINGS[life.ended];
  if (life.ended === "closed" && life.detail) return life.detail;
  return life.detail ? `${life.ended}: ${life.detail}` : life.ended;
}

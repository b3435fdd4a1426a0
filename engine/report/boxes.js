// Boxes: columns of numbers, packed as text by `boxes.py`.

async function inflated(bytes) {
  if (typeof DecompressionStream === "undefined") return inflate(bytes);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

function bytesOf(base64) {
  const text = atob(base64), bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

async function unpacked(base64) {
  return new Box(await inflated(bytesOf(base64)));
}

// Puts numbers of 8 bytes together again: first all their lowest bytes were stored, then the next ones.
function joined(raw, count) {
  const bytes = new Uint8Array(8 * count);
  for (let lane = 0; lane < 8; lane++) {
    const begin = lane * count;
    for (let i = 0, at = lane; i < count; i++, at += 8) bytes[at] = raw[begin + i];
  }
  return bytes.buffer;
}

function summed(buffer, count) {
  const low = new Uint32Array(buffer), high = new Int32Array(buffer), values = new Float64Array(count);
  for (let i = 0, sum = 0; i < count; i++) {
    sum += high[2 * i + 1] * 4294967296 + low[2 * i];
    values[i] = sum;
  }
  return values;
}

const COLUMNS = {
  b: (raw) => raw,
  d: (raw, count) => summed(joined(raw, count), count),
  f: (raw, count) => new Float64Array(joined(raw, count)),
  q: (raw, count) => new BigInt64Array(joined(raw, count)),
  t: (raw) => JSON.parse(new TextDecoder().decode(raw)),
};

class Box {
  constructor(raw) {
    const size = new DataView(raw.buffer, raw.byteOffset).getUint32(0, true);
    const header = JSON.parse(new TextDecoder().decode(raw.subarray(4, 4 + size)));
    this.told = header.told;
    this.columns = [];
    let at = 4 + size;
    for (const [kind, count, bytes] of header.columns) {
      this.columns.push(COLUMNS[kind](raw.subarray(at, at + bytes), count));
      at += bytes;
    }
  }
}

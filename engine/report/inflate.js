// Inflating zlib data (RFC 1950, 1951) for browsers that have no DecompressionStream.

const LENGTHS = [3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 15, 17, 19, 23, 27, 31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258];
const LENGTH_BITS = [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0];
const BACK = [1, 2, 3, 4, 5, 7, 9, 13, 17, 25, 33, 49, 65, 97, 129, 193, 257, 385, 513, 769, 1025, 1537, 2049, 3073, 4097, 6145, 8193, 12289, 16385, 24577];
const BACK_BITS = [0, 0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13];
const ORDER = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];

class Bits {
  constructor(bytes, at) {
    this.bytes = bytes;
    this.at = at;
    this.held = 0;
    this.count = 0;
  }

  take(count) {
    while (this.count < count) {
      this.held |= this.bytes[this.at++] << this.count;
      this.count += 8;
    }
    const value = this.held & ((1 << count) - 1);
    this.held >>>= count;
    this.count -= count;
    return value;
  }

  // Reads one symbol: codes of one length are consecutive numbers, shorter ones come first.
  symbol(code) {
    let number = 0, first = 0, index = 0;
    for (let length = 1; length < 16; length++) {
      number |= this.take(1);
      const count = code.counts[length];
      if (number - count < first) return code.symbols[index + number - first];
      index += count;
      first = (first + count) << 1;
      number <<= 1;
    }
    throw new Error("the data in this page is damaged");
  }

  align() {
    this.held = this.count = 0;
  }
}

class Output {
  constructor() {
    this.bytes = new Uint8Array(1 << 16);
    this.size = 0;
  }

  room(more) {
    if (this.size + more <= this.bytes.length) return;
    const larger = new Uint8Array(2 * (this.size + more));
    larger.set(this.bytes.subarray(0, this.size));
    this.bytes = larger;
  }

  repeat(length, back) {
    this.room(length);
    for (let i = 0; i < length; i++, this.size++) this.bytes[this.size] = this.bytes[this.size - back];
  }
}

function codeOf(lengths) {
  const counts = new Uint16Array(16), places = new Uint16Array(16), symbols = new Uint16Array(lengths.length);
  for (const length of lengths) if (length) counts[length]++;
  for (let i = 1; i < 15; i++) places[i + 1] = places[i] + counts[i];
  lengths.forEach((length, symbol) => { if (length) symbols[places[length]++] = symbol; });
  return { counts, symbols };
}

function fixedCodes() {
  const literals = Array.from({ length: 288 }, (_, i) => (i < 144 ? 8 : i < 256 ? 9 : i < 280 ? 7 : 8));
  return [codeOf(literals), codeOf(new Array(30).fill(5))];
}

function ownCodes(bits) {
  const literals = bits.take(5) + 257, backs = bits.take(5) + 1, count = bits.take(4) + 4;
  const lengths = new Array(19).fill(0);
  for (let i = 0; i < count; i++) lengths[ORDER[i]] = bits.take(3);
  const code = codeOf(lengths), held = [];
  while (held.length < literals + backs) {
    const symbol = bits.symbol(code);
    if (symbol < 16) held.push(symbol);
    else if (symbol === 16) held.push(...new Array(3 + bits.take(2)).fill(held[held.length - 1]));
    else held.push(...new Array(symbol === 17 ? 3 + bits.take(3) : 11 + bits.take(7)).fill(0));
  }
  return [codeOf(held.slice(0, literals)), codeOf(held.slice(literals))];
}

function stored(bits, out) {
  bits.align();
  const size = bits.bytes[bits.at] | (bits.bytes[bits.at + 1] << 8);
  bits.at += 4;
  out.room(size);
  out.bytes.set(bits.bytes.subarray(bits.at, bits.at + size), out.size);
  out.size += size;
  bits.at += size;
}

function coded(bits, out, [literals, backs]) {
  for (;;) {
    const symbol = bits.symbol(literals);
    if (symbol === 256) return;
    if (symbol < 256) {
      out.room(1);
      out.bytes[out.size++] = symbol;
    } else {
      const length = LENGTHS[symbol - 257] + bits.take(LENGTH_BITS[symbol - 257]);
      const back = bits.symbol(backs);
      out.repeat(length, BACK[back] + bits.take(BACK_BITS[back]));
    }
  }
}

function inflate(bytes) {
  const bits = new Bits(bytes, 2), out = new Output();
  for (let last = 0; !last;) {
    last = bits.take(1);
    const kind = bits.take(2);
    if (kind === 0) stored(bits, out);
    else coded(bits, out, kind === 1 ? fixedCodes() : ownCodes(bits));
  }
  return out.bytes.subarray(0, out.size);
}

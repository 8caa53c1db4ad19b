/**
 * Returns the SHA-256 of a text or of bytes, as hexadecimal digits. Loading node:crypto takes a program that an agent starts for each
 * use of a tool a tenth of its time, so a short value is hashed here.
 */
export function sha256Hex(value: string | Uint8Array): string {
  const bytes = typeof value === "string" ? Buffer.from(value) : value;
  return bytes.length > maxShort
    ? process.getBuiltinModule("node:crypto").hash("sha256", bytes)
    : hash(bytes).toString("hex");
}

/** Returns the HMAC with SHA-256 of a text, as hexadecimal digits. */
export function hmacSha256Hex(key: string, text: string): string {
  const bytes = Buffer.from(key);
  const block = Buffer.alloc(64);
  block.set(bytes.length > 64 ? Buffer.from(sha256Hex(bytes), "hex") : bytes);
  const inner = sha256Hex(Buffer.concat([block.map((byte) => byte ^ 0x36), Buffer.from(text)]));
  return sha256Hex(Buffer.concat([block.map((byte) => byte ^ 0x5c), Buffer.from(inner, "hex")]));
}

/** FIPS 180-4, in statements that V8 runs fast before it compiles them. */
function hash(bytes: Uint8Array): Buffer {
  const padded = Buffer.alloc(((bytes.length + 72) >> 6) << 6);
  padded.set(bytes);
  padded[bytes.length] = 0x80;
  padded.writeUInt32BE(bytes.length * 8, padded.length - 4);
  const state = primes.slice(0, 8).map((prime) => fractionOf(Math.sqrt(prime)));
  const words = new Int32Array(64);
  for (let at = 0; at < padded.length; at += 64) {
    for (let i = 0; i < 16; i++) words[i] = padded.readInt32BE(at + i * 4);
    for (let i = 16; i < 64; i++) {
      const x = words[i - 15] ?? 0;
      const y = words[i - 2] ?? 0;
      const small0 = ((x >>> 7) | (x << 25)) ^ ((x >>> 18) | (x << 14)) ^ (x >>> 3);
      const small1 = ((y >>> 17) | (y << 15)) ^ ((y >>> 19) | (y << 13)) ^ (y >>> 10);
      words[i] = (words[i - 16] ?? 0) + small0 + (words[i - 7] ?? 0) + small1;
    }
    mix(state, words);
  }
  const digest = Buffer.alloc(32);
  for (let i = 0; i < 8; i++) digest.writeInt32BE(state[i] ?? 0, i * 4);
  return digest;
}

function mix(state: number[], words: Int32Array): void {
  let [a = 0, b = 0, c = 0, d = 0, e = 0, f = 0, g = 0, h = 0] = state;
  for (let i = 0; i < 64; i++) {
    const sum1 = ((e >>> 6) | (e << 26)) ^ ((e >>> 11) | (e << 21)) ^ ((e >>> 25) | (e << 7));
    const one = (h + sum1 + ((e & f) ^ (~e & g)) + (rounds[i] ?? 0) + (words[i] ?? 0)) | 0;
    const sum0 = ((a >>> 2) | (a << 30)) ^ ((a >>> 13) | (a << 19)) ^ ((a >>> 22) | (a << 10));
    const two = sum0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g;
    g = f;
    f = e;
    e = (d + one) | 0;
    d = c;
    c = b;
    b = a;
    a = (one + two) | 0;
  }
  const mixed = [a, b, c, d, e, f, g, h];
  for (let i = 0; i < 8; i++) state[i] = ((state[i] ?? 0) + (mixed[i] ?? 0)) | 0;
}

const primes = firstPrimes(64);
const rounds = primes.map((prime) => fractionOf(Math.cbrt(prime)));

function firstPrimes(count: number): number[] {
  const found: number[] = [];
  for (let n = 2; found.length < count; n++) if (found.every((prime) => n % prime !== 0)) found.push(n);
  return found;
}

/** Returns the first 32 bits of a root's fraction. */
function fractionOf(root: number): number {
  return ((root - Math.floor(root)) * 2 ** 32) | 0;
}

/** Length in bytes up to which the compiled code of node:crypto does not pay for its loading. */
const maxShort = 8_192;

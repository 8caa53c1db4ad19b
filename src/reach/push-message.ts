import {
  createCipheriv,
  createECDH,
  createPrivateKey,
  generateKeyPairSync,
  hkdfSync,
  type JsonWebKey,
  type KeyObject,
  randomBytes,
  sign,
} from "node:crypto";

/** The keys with which a browser lets one service send to one subscription. */
export interface PushTarget {
  /** Public key of the browser, 65 bytes. */
  readonly p256dh: Uint8Array;
  /** Secret of the browser, 16 bytes. */
  readonly auth: Uint8Array;
}

/** A key by which push services know this service (RFC 8292). */
export interface VapidKey {
  readonly privateKey: KeyObject;
  /** Uncompressed point, 65 bytes; browsers bind a subscription to it. */
  readonly publicKey: Buffer;
}

/** Size of the encrypted content that each push service accepts, without header and tag. */
const maxPlainBytes = 3_993;

/** Creates a key; returns its PKCS #8 form, which is stored. */
export function newVapidKey(): Buffer {
  return generateKeyPairSync("ec", { namedCurve: "P-256" }).privateKey.export({ format: "der", type: "pkcs8" });
}

/** Reads a stored key. */
export function readVapidKey(pkcs8: Uint8Array): VapidKey {
  const privateKey = createPrivateKey({ key: Buffer.from(pkcs8), format: "der", type: "pkcs8" });
  const { x = "", y = "" }: JsonWebKey = privateKey.export({ format: "jwk" });
  const publicKey = Buffer.concat([Buffer.of(4), Buffer.from(x, "base64url"), Buffer.from(y, "base64url")]);
  return { privateKey, publicKey };
}

/** Returns true for a point of the curve, in the form that browsers give. */
export function isPublicKey(p256dh: Uint8Array): boolean {
  if (p256dh.length !== 65) return false;
  try {
    const own = createECDH("prime256v1");
    own.generateKeys();
    own.computeSecret(p256dh);
    return true;
  } catch {
    return false;
  }
}

/** Encrypts a message for one subscription: aes128gcm (RFC 8188) with the keys of RFC 8291, in one record. */
export function encryptPush(plain: Buffer, { p256dh, auth }: PushTarget): Buffer {
  if (plain.length > maxPlainBytes) throw new Error(`a push message of ${plain.length} bytes is too long`);
  const own = createECDH("prime256v1");
  const ownPublic = own.generateKeys();
  const salt = randomBytes(16);
  const info = Buffer.concat([Buffer.from("WebPush: info\0"), p256dh, ownPublic]);
  const secret = Buffer.from(hkdfSync("sha256", own.computeSecret(p256dh), auth, info, 32));
  const derive = (purpose: string, size: number) =>
    Buffer.from(hkdfSync("sha256", secret, salt, `Content-Encoding: ${purpose}\0`, size));
  const cipher = createCipheriv("aes-128-gcm", derive("aes128gcm", 16), derive("nonce", 12));
  // The byte 2 ends the only record.
  const sealed = [cipher.update(plain), cipher.update(Buffer.of(2)), cipher.final(), cipher.getAuthTag()];
  const recordSize = Buffer.alloc(4);
  recordSize.writeUInt32BE(4_096);
  return Buffer.concat([salt, recordSize, Buffer.of(ownPublic.length), ownPublic, ...sealed]);
}

/** Returns the header by which the push service of an endpoint recognizes this service. */
export function vapidHeader(
  endpoint: string,
  { privateKey, publicKey }: VapidKey,
  { contact, now }: { contact: string; now: number },
): string {
  const encode = (part: object) => Buffer.from(JSON.stringify(part)).toString("base64url");
  const claims = { aud: new URL(endpoint).origin, exp: Math.floor(now / 1_000) + maxTokenSeconds, sub: contact };
  const signed = `${encode({ typ: "JWT", alg: "ES256" })}.${encode(claims)}`;
  const signature = sign("sha256", Buffer.from(signed), { key: privateKey, dsaEncoding: "ieee-p1363" });
  return `vapid t=${signed}.${signature.toString("base64url")}, k=${publicKey.toString("base64url")}`;
}

/** Half of what push services accept, for clocks that differ. */
const maxTokenSeconds = 43_200;

import { createHash, createHmac, randomBytes } from "node:crypto";
import { expect, test } from "vitest";
import { hmacSha256Hex, sha256Hex } from "../../src/core/sha256.ts";

const lengths = [...Array.from({ length: 200 }, (_, i) => i), 8_191, 8_192, 8_193, 100_000];

test("the digest of a value of any length is that of node:crypto", () => {
  for (const length of lengths) {
    const bytes = randomBytes(length);
    expect(sha256Hex(bytes), bytes.toString("hex")).toBe(createHash("sha256").update(bytes).digest("hex"));
  }
  expect(sha256Hex("naïve 🙂")).toBe(createHash("sha256").update("naïve 🙂").digest("hex"));
});

test("the HMAC of a key and a text of any length is that of node:crypto", () => {
  for (const length of lengths) {
    const [key, text] = [randomBytes(length % 150).toString("hex"), "ü".repeat(length)];
    expect(hmacSha256Hex(key, text)).toBe(createHmac("sha256", key).update(text).digest("hex"));
  }
});

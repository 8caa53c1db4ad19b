import { randomBytes } from "node:crypto";
import { importJWK, jwtVerify } from "jose";
import { expect, test } from "vitest";
import { vendorPushHosts as vendorHosts } from "../../src/config/reach.ts";
import { encryptPush, isPublicKey, newVapidKey, readVapidKey, vapidHeader } from "../../src/reach/push-message.ts";
import { endpointProblem } from "../../src/reach/subscriptions.ts";
import { newBrowser } from "./push-service.ts";

const endpoint = "https://fcm.googleapis.com/fcm/send/abc";

test("http_ece decrypts messages of all sizes with the keys of that browser only", () => {
  const browser = newBrowser();
  for (const size of [0, 1, 100, 3_993]) {
    const plain = randomBytes(size);
    const body = encryptPush(plain, browser);
    expect(browser.decrypt(body)).toEqual(plain);
    expect(body.length).toBeLessThanOrEqual(4_096);
    expect(() => newBrowser().decrypt(body)).toThrow();
    expect(() => browser.decrypt(body, undefined, randomBytes(16))).toThrow();
    body[body.length - 1] = (body.at(-1) ?? 0) ^ 1;
    expect(() => browser.decrypt(body)).toThrow();
  }
  expect(encryptPush(Buffer.from("x"), browser)).not.toEqual(encryptPush(Buffer.from("x"), browser));
  expect(() => encryptPush(randomBytes(3_994), browser)).toThrow("too long");
});

test("the token names the push service and the operator, and verifies with the key that browsers subscribe with", async () => {
  const stored = newVapidKey();
  const key = readVapidKey(stored);
  const now = Date.now();
  const header = vapidHeader(endpoint, key, { contact: "https://gate.example", now });
  const [, token = "", given = ""] = /^vapid t=([\w.-]+), k=([\w-]+)$/.exec(header) ?? [];
  expect(Buffer.from(given, "base64url")).toEqual(key.publicKey);
  const [x, y] = [key.publicKey.subarray(1, 33), key.publicKey.subarray(33)].map((part) => part.toString("base64url"));
  const jwk = { kty: "EC", crv: "P-256", ...(x && y && { x, y }) };
  const { payload, protectedHeader } = await jwtVerify(token, await importJWK(jwk, "ES256"));
  expect(protectedHeader).toEqual({ typ: "JWT", alg: "ES256" });
  expect(payload).toMatchObject({ aud: "https://fcm.googleapis.com", sub: "https://gate.example" });
  expect(payload.exp).toBeLessThanOrEqual(now / 1_000 + 86_400);
});

test.each([
  ["of no bytes", Buffer.alloc(0)],
  ["of zeros", Buffer.alloc(65)],
  ["off the curve", Buffer.concat([Buffer.of(4), Buffer.alloc(64, 1)])],
  ["compressed", Buffer.concat([Buffer.of(3), randomBytes(32)])],
  ["of 1 MiB", randomBytes(1_048_576)],
])("a key %s is no key of a browser", (_, key) => {
  expect(isPublicKey(key)).toBe(false);
});

test.each([
  "http://fcm.googleapis.com/x",
  "https://fcm.googleapis.com:8443/x",
  "https://fcm.googleapis.com.evil.example/x",
  "https://evil-fcm.googleapis.com/x",
  "https://evilpush.apple.com/x",
  "https://push.apple.com/x",
  "https://user@fcm.googleapis.com/x",
  "https://fcm.googleapis.com@evil.example/x",
  "https://evil.example/?https://fcm.googleapis.com/",
  "https://127.0.0.1/x",
  "https://[::1]/x",
  "https://169.254.169.254/latest",
  "file:///etc/passwd",
  "wss://fcm.googleapis.com/x",
  "javascript:alert(1)",
  "fcm.googleapis.com",
  "",
])("a message never goes to %j", (endpoint) => {
  expect(endpointProblem(endpoint, vendorHosts)).toBeDefined();
});

test.each([
  ["https://fcm.googleapis.com/fcm/send/abc", vendorHosts],
  ["https://web.push.apple.com/abc", vendorHosts],
  ["https://updates.push.services.mozilla.com/wpush/v2/abc", vendorHosts],
  ["https://wns2-par02p.notify.windows.com/w/?token=abc", vendorHosts],
  ["http://127.0.0.1:8080/x", ["127.0.0.1:8080"]],
])("a message goes to %s", (endpoint, hosts) => {
  expect(endpointProblem(endpoint, hosts)).toBeUndefined();
});

import * as fc from "fast-check";
import { expect, test } from "vitest";
import { forLog, textForLog } from "../../src/telemetry/telemetry.ts";

const secret = "Zx81kQ-91hhWq27Lm";

test.each([
  `curl -H "Authorization: Bearer ${secret}" https://example.com`,
  `curl https://bob:${secret}@example.com/`,
  `git clone https://${secret}@example.com/a.git`,
  `export API_KEY=${secret}`,
  `GITHUB_TOKEN="${secret}" npm publish`,
  `mysql --password=${secret} -u root`,
  `mysql --password ${secret} -u root`,
  `{"client_secret": "${secret}", "id": 1}`,
  `DB_PASSWORD: '${secret}'`,
  `curl -H 'Cookie: a=b; session=${secret}; c=d' https://example.com`,
  `curl -H 'Authorization: token ${secret}' https://example.com`,
  `fetch(url, { headers: { "Authorization": "Bearer ${secret}" } })`,
  `ghp_${secret.replaceAll("-", "")}`,
  `-----BEGIN RSA PRIVATE KEY-----\n${secret}\n-----END RSA PRIVATE KEY-----`,
  `-----BEGIN PRIVATE KEY-----\n${secret}`,
  `eyJhbGciOiJIUzI1NiJ9.${secret}.${secret}`,
])("%s is logged without the secret", (text) => {
  expect(textForLog(text)).toContain("[redacted]");
  expect(textForLog(text)).not.toContain(secret.slice(5));
});

test("no part of a secret across the cut is shown, wherever it begins", () => {
  const key = `Bearer ${"k9".repeat(20)} `;
  for (let before = 0; before < 420; before++) {
    const shown = textForLog(`${key}${" ".repeat(before)}ghp_${"a1".repeat(40)}${" x".repeat(400)}`);
    expect(shown).not.toMatch(/ghp_|a1|k9/);
  }
});

test.each([`the token ${secret} is yours`, `mysql --db-password hunter`])(
  "a value after the name of a secret is redacted if it is an option's or has the form of a secret: %s",
  (text) => {
    expect(textForLog(text)).toContain("[redacted]");
    expect(textForLog(text)).not.toMatch(/Zx81|hunter/);
  },
);

test.each([
  "npm test",
  "git commit -m 'Fix the parser'",
  "https://example.com/a?b=c",
  "ls -la /tmp",
  "GEMINI_API_KEY not found",
  "the secret garden, a token of thanks and a password manager",
])("%s is logged as it is", (text) => expect(textForLog(text)).toBe(text));

test("a value with the name of a secret is redacted at every depth, whatever it is", () => {
  const args = { url: "https://e.x", headers: { Authorization: secret, accept: "json" }, apiKey: [secret], n: 1 };
  expect(forLog(args)).toEqual({
    url: "https://e.x",
    headers: { Authorization: "[redacted]", accept: "json" },
    apiKey: "[redacted]",
    n: 1,
  });
});

test("the line stays small for any value", async () => {
  const any = fc
    .jsonValue({ maxDepth: 8 })
    .map((value) => JSON.stringify([value, "word ".repeat(100_000), Array(500).fill(value)]));
  await fc.assert(fc.property(any, (json) => JSON.stringify(forLog(JSON.parse(json))).length < 10_000));
  const wide = Array(100).fill(Array(100).fill(Array(100).fill("word ".repeat(100))));
  expect(JSON.stringify(forLog(wide)).length).toBeLessThan(10_000);
});

import { expect, test } from "vitest";
import { parseRedisUrl } from "../../src/store/redis/url.ts";

test.each([
  ["redis://example", { kind: "single", options: { host: "example", port: 6379, db: 0 } }],
  ["redis://:p%40ss@[::1]:7000/3", { kind: "single", options: { password: "p@ss", host: "::1", port: 7000, db: 3 } }],
  ["rediss://ann:secret@example:7000", { kind: "single", options: { username: "ann", password: "secret", tls: {} } }],
  ["redis+unix:///run/redis.sock?db=2", { kind: "single", options: { path: "/run/redis.sock", db: 2 } }],
  [
    "redis+sentinel://a:1,b/main",
    {
      kind: "single",
      options: {
        sentinels: [
          { host: "a", port: 1 },
          { host: "b", port: 26379 },
        ],
        name: "main",
      },
    },
  ],
  [
    "rediss+sentinel://a/main",
    { kind: "single", options: { name: "main", tls: {}, sentinelTLS: {}, enableTLSForSentinelMode: true } },
  ],
  [
    "redis+cluster://a:1,b:2",
    {
      kind: "cluster",
      nodes: [
        { host: "a", port: 1 },
        { host: "b", port: 2 },
      ],
    },
  ],
  [
    "rediss+cluster://:secret@a",
    { kind: "cluster", nodes: [{ host: "a", port: 6379 }], access: { password: "secret", tls: {} } },
  ],
])("%s is understood", (url, address) => {
  expect(parseRedisUrl(url)).toMatchObject(address);
});

test.each([
  ["http://secret@example", "it has none of the supported forms"],
  ["redis://:secret@a,b", "it names several hosts"],
  ["redis+sentinel://:secret@a:1", "the name of the master is missing"],
  ["redis+unix://", "write the socket as"],
  ["redis://:secret@a:x", "is no host:port"],
  ["redis://:secret@a/x", "the database is a number"],
])("%s is refused, without its password", (url, fact) => {
  expect(() => parseRedisUrl(url)).toThrow(fact);
  expect(() => parseRedisUrl(url)).not.toThrow("secret");
});

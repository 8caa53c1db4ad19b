import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { PermissionAction as Action, PermissionLayer } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { createPolicy } from "../../src/policy/policy.ts";
import { fromConfig, type RuleConfig } from "../../src/policy/rules.ts";

const policy = createPolicy({ guard: { dataDirectory: "/data" }, home: "/home/u" });

function judged(url: string, rules: RuleConfig, leadsTo?: string) {
  const layers = { wide: [{ layer: PermissionLayer.CONFIG, rules: fromConfig(rules, "/home/u") }], narrow: [] };
  const ask = { permission: "webfetch", patterns: [url], ...(leadsTo !== undefined && { leadsTo }) };
  const [decision] = policy.judge(ask, layers);
  return decision;
}
const all: RuleConfig = { webfetch: "allow" };

describe("an address that is not of the public web is denied although everything is allowed:", () => {
  test.each([
    [
      "loopback",
      ["127.0.0.1", "127.9.9.9", "127.1", "0177.0.0.1", "0x7f.0.0.1", "0x7f000001", "2130706433", "127.0.0.1."],
    ],
    ["loopback in other digits", ["１２７.０.０.１", "①②⑦.0.0.1", "127。0。0。1", "%31%32%37.0.0.1"]],
    ["this host", ["0", "0.0.0.0", "[::]", "[::1]", "[0:0:0:0:0:0:0:1]"]],
    [
      "private",
      ["10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "[fc00::1]", "[fd12:3456::1]", "[fec0::1]"],
    ],
    ["link-local, where clouds keep credentials", ["169.254.169.254", "2852039166", "0xa9fea9fe", "[fe80::1]"]],
    [
      "shared, reserved and test",
      ["100.64.0.1", "100.100.100.200", "192.0.0.192", "198.18.0.1", "203.0.113.9", "[2001:db8::1]"],
    ],
    ["multicast and broadcast", ["224.0.0.1", "239.255.255.250", "255.255.255.255", "[ff02::1]"]],
    ["IPv4 in IPv6: mapped", ["[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::ffff:0:7f00:1]", "[::127.0.0.1]"]],
    ["IPv4 in IPv6: tunnels", ["[64:ff9b::a9fe:a9fe]", "[64:ff9b:1::7f00:1]", "[2002:7f00:1::]", "[2001:0:7f00:1::]"]],
    ["IPv4 in IPv6: ISATAP", ["[2606:4700::5efe:7f00:1]", "[2606:4700::200:5efe:a00:1]"]],
    ["never given out", ["[4000::1]", "[5f00::1]", "240.0.0.1"]],
    ["Azure's own", ["168.63.129.16"]],
    [
      "names of this machine",
      ["localhost", "LOCALHOST", "localhost.", "localhost..", "a.localhost", "localhost.localdomain"],
    ],
    [
      "names of the local network",
      ["intranet", "db", "printer.local", "wiki.corp", "nas.home.arpa", "router.lan", "x.internal"],
    ],
    ["names of clouds", ["metadata.google.internal", "metadata.goog", "instance-data", "kubernetes.default.svc"]],
    ["names for any address", ["127.0.0.1.nip.io", "a.sslip.io", "localtest.me", "x.lvh.me"]],
  ])("%s", (_, hosts) => {
    for (const host of hosts) {
      for (const url of [`http://${host}/`, `https://${host}/x`, `http://${host}:8080/`]) {
        expect([url, judged(url, all)]).toMatchObject([url, { action: Action.DENY, layer: PermissionLayer.ENGINE }]);
      }
    }
  });

  test("a public name that resolves to a private address", () => {
    expect(judged("https://example.com/", all, "93.184.216.34")?.action).toBe(Action.ALLOW);
    expect(judged("https://example.com/", all, "10.0.0.1")?.action).toBe(Action.DENY);
    expect(judged("https://example.com/", all, "::ffff:10.0.0.1")?.action).toBe(Action.DENY);
    const named: RuleConfig = { webfetch: { "https://example.com/*": "allow" } };
    expect(judged("https://example.com/", named, "10.0.0.1")?.action).toBe(Action.ALLOW);
  });

  test("every address of a private range, however it is written", () => {
    fc.assert(
      fc.property(fc.nat(2 ** 24 - 1), fc.constantFrom(10, 127), fc.nat(3), (low, high, form) => {
        const value = high * 2 ** 24 + low;
        const bytes = [high, (low >> 16) & 255, (low >> 8) & 255, low & 255];
        const hosts = [
          bytes.join("."),
          String(value),
          bytes.map((byte) => `0${byte.toString(8)}`).join("."),
          `[::ffff:${bytes.join(".")}]`,
        ];
        expect(judged(`http://${hosts[form]}/`, all)?.action).toBe(Action.DENY);
      }),
    );
  });
});

describe("only a rule that names it, without a wildcard, allows an address that is not public:", () => {
  test.each<[string, RuleConfig, string, Action]>([
    [
      "the address with its port",
      { webfetch: { "http://127.0.0.1:3000/*": "allow" } },
      "http://127.0.0.1:3000/x",
      Action.ALLOW,
    ],
    [
      "the address in another spelling",
      { webfetch: { "http://127.1:3000/*": "allow" } },
      "http://0x7f.1:3000/",
      Action.ALLOW,
    ],
    ["any port of the host", { webfetch: { "http://localhost:*": "allow" } }, "http://localhost:3000/x", Action.ALLOW],
    ["an IPv6 address", { webfetch: { "http://[::1]/*": "allow" } }, "http://[0:0::1]/", Action.ALLOW],
    ["to be asked", { webfetch: { "*": "allow", "http://localhost/*": "ask" } }, "http://localhost/", Action.ASK],
    [
      "before a rule for everything",
      { webfetch: { "http://localhost/*": "ask", "*": "allow" } },
      "http://localhost/",
      Action.ALLOW,
    ],
    [
      "another port",
      { webfetch: { "*": "allow", "http://127.0.0.1:3000/*": "allow" } },
      "http://127.0.0.1:3001/",
      Action.DENY,
    ],
    ["a longer address", { webfetch: { "http://10.0.0.1*": "allow" } }, "http://10.0.0.10/", Action.DENY],
    ["by a wildcard", { webfetch: { "http://10.*": "allow" } }, "http://10.0.0.1/", Action.DENY],
    [
      "by a wildcard that is nearly the name",
      { webfetch: { "http://localhos?/*": "allow" } },
      "http://localhost/",
      Action.DENY,
    ],
    ["in the path", { webfetch: { "*/localhost/*": "allow" } }, "http://localhost/localhost/x", Action.DENY],
    ["only in a deny", { webfetch: { "*": "allow", "http://localhost/*": "deny" } }, "http://localhost/", Action.DENY],
  ])("%s", (_, rules, url, action) => {
    expect(judged(url, rules)?.action).toBe(action);
  });
});

describe("rules match an address in one spelling:", () => {
  const docs: RuleConfig = { webfetch: { "https://api.example.com/docs/*": "allow" } };
  test.each<[string, RuleConfig, string, Action]>([
    ["case, default port, fragment", docs, "HTTPS://API.example.com:443/docs/a#b", Action.ALLOW],
    ["a dot after the host", docs, "https://api.example.com./docs/a", Action.ALLOW],
    ["escapes that mean the same", docs, "https://api.example.com/%64ocs/a", Action.ALLOW],
    ["`..`", docs, "https://api.example.com/docs/../admin", Action.ASK],
    ["`..` escaped", docs, "https://api.example.com/docs/%2e%2E/admin", Action.ASK],
    ["`..` that a server may see", docs, "https://api.example.com/docs/..%2fadmin", Action.ASK],
    [
      "`..` that a server may see after two decodings",
      docs,
      "https://api.example.com/docs/%252e%252e%252fadmin",
      Action.ASK,
    ],
    ["`..` that Tomcat sees", docs, "https://api.example.com/docs/..;/admin", Action.ASK],
    ["a backslash", docs, "https://api.example.com/docs/..%5cadmin", Action.ASK],
    ["another scheme", docs, "http://api.example.com/docs/a", Action.ASK],
    ["another port", docs, "https://api.example.com:8443/docs/a", Action.ASK],
    ["another port under a rule for everything", all, "https://api.example.com:8443/", Action.ASK],
    [
      "a port that the rule names",
      { webfetch: { "https://*.example.com:8443/*": "allow" } },
      "https://a.example.com:8443/",
      Action.ALLOW,
    ],
    [
      "a host that only begins so",
      { webfetch: { "https://example.com*": "allow" } },
      "https://example.com.evil.net/",
      Action.ASK,
    ],
    [
      "a page of a host with an open end",
      { webfetch: { "https://example.com*": "allow" } },
      "https://example.com/a",
      Action.ALLOW,
    ],
    [
      "a host in the path",
      { webfetch: { "https://*.example.com/*": "allow" } },
      "https://evil.net/.example.com/",
      Action.ASK,
    ],
    [
      "a host in the query",
      { webfetch: { "https://*.example.com/*": "allow" } },
      "https://evil.net?.example.com/",
      Action.ASK,
    ],
    [
      "a host in an alphabet other than Latin",
      { webfetch: { "https://BÜCHER.example/*": "allow" } },
      "https://bücher.example/",
      Action.ALLOW,
    ],
    [
      "a denied host in capitals",
      { webfetch: { "*": "allow", "https://EVIL.example/*": "deny" } },
      "https://evil.example/",
      Action.DENY,
    ],
    [
      "a denied host with a dot",
      { webfetch: { "*": "allow", "https://evil.example/*": "deny" } },
      "https://evil.example./",
      Action.DENY,
    ],
    [
      "a denied path with escapes",
      { webfetch: { "*": "allow", "*/admin*": "deny" } },
      "https://x.example/%61dmin",
      Action.DENY,
    ],
    ["a host alone", { webfetch: { "https://example.com": "allow" } }, "https://example.com", Action.ALLOW],
  ])("%s", (_, rules, url, action) => {
    expect(judged(url, rules)?.action).toBe(action);
  });

  test("patterns of other permissions are not parsed as addresses", () => {
    expect(judged("not an address", all)?.action).toBe(Action.ALLOW);
  });
});

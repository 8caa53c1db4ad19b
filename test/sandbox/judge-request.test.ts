import { expect, test } from "vitest";
import { judgeRequest, type NetworkRules } from "../../src/sandbox/network/session-networks.ts";
import { requestTarget, tunnelTarget } from "../../src/sandbox/network/target.ts";

type Action = "allow" | "ask" | "deny";

function command(action: Action, rest: Partial<NetworkRules> = {}) {
  const rules: NetworkRules = { judge: () => ({ action, reason: `it is ${action}` }), refused: () => {}, ...rest };
  return { rules, asked: new Map<string, Promise<void>>() };
}

const judge = (commands: ReturnType<typeof command>[], addresses?: string[]) =>
  judgeRequest(commands, "https://example.com/", addresses, 20);

test("a request goes on only if each command of the network may send it", async () => {
  expect(await judge([command("allow"), command("allow")])).toBeUndefined();
  expect(await judge([command("allow"), command("deny")])).toContain("is not allowed: it is deny");
  expect(await judge([])).toContain("no command of the session is running");
});

test("a name that leads to an address which rules deny is refused", async () => {
  const judgeAddress: NetworkRules["judge"] = (_, leadsTo) => ({
    action: leadsTo === "10.0.0.1" ? "deny" : "allow",
    reason: "private",
  });
  expect(await judge([command("allow", { judge: judgeAddress })], ["1.1.1.1"])).toBeUndefined();
  expect(await judge([command("allow", { judge: judgeAddress })], ["1.1.1.1", "10.0.0.1"])).toBe(
    "https://example.com/ leads to 10.0.0.1, which is not allowed: private",
  );
});

test("a request that no one answers in time is refused, and the next one goes on with the answer that came later", async () => {
  const { promise, resolve } = Promise.withResolvers<void>();
  let count = 0;
  const held = command("ask", {
    ask() {
      count += 1;
      return promise;
    },
  });
  expect(await judge([held])).toContain("no one has allowed https://example.com/ within");
  resolve();
  expect(await judge([held])).toBeUndefined();
  expect(count).toBe(1);
});

test("where no one is asked, the refusal names the rule to add", async () => {
  expect(await judge([command("ask")])).toContain('Add "https://example.com/*" = "allow" under [permission.webfetch]');
});

test.each([
  ["example.com:443", "https://example.com/"],
  ["Example.COM.:443", "https://example.com/"],
  ["example.com:8443", "https://example.com:8443/"],
  ["github.com:22", "ssh://github.com/"],
  ["[::1]:443", "https://[::1]/"],
  ["0x7f.1:443", "https://127.0.0.1/"],
  ["example.com", undefined],
  ["a@example.com:443", undefined],
  ["example.com:443/path", undefined],
  ["example.com:99999", undefined],
])("a tunnel to %s is judged as %s", (authority, url) => {
  expect(tunnelTarget(authority)?.url).toBe(url);
});

test.each([
  ["http://Example.com./a#b", "http://example.com/a"],
  ["http://user@example.com/", undefined],
  ["https://example.com/", undefined],
  ["/path", undefined],
])("a request for %s is judged as %s", (address, url) => {
  expect(requestTarget(address)?.url).toBe(url);
});

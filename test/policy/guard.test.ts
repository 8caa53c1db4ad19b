import { describe, expect, test } from "vitest";
import { PermissionAction, PermissionLayer } from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { ExpandedAsk } from "../../src/policy/model.ts";
import { createPolicy } from "../../src/policy/policy.ts";
import { fromConfig } from "../../src/policy/rules.ts";

const guard = {
  dataDirectory: "/home/u/.local/share/toolgate",
  serviceDirectory: "/srv/toolgate",
  configFile: "/home/u/.config/toolgate/gate.toml",
  loginFile: "/home/u/.config/toolgate/credentials.json",
};
const policy = createPolicy({ guard, home: "/home/u" });
const layers = { wide: [{ layer: PermissionLayer.CONFIG, rules: fromConfig("allow", "/home/u") }], narrow: [] };

function judged(ask: ExpandedAsk) {
  const [decision] = policy.judge(ask, layers);
  return decision;
}

describe("paths that the engine denies although every rule allows", () => {
  test.each<[string, ExpandedAsk]>([
    ["reading the data directory", { permission: "read", patterns: ["/home/u/.local/share/toolgate"] }],
    ["reading a token", { permission: "read", patterns: ["/home/u/.local/share/toolgate/tokens/caller"] }],
    ["the stored sign-ins", { permission: "read", patterns: [guard.loginFile] }],
    ["a command that names them", { permission: "bash", patterns: ["cat ~/.config/toolgate/credentials.json"] }],
    ["a token of the user's service", { permission: "read", patterns: ["/srv/toolgate/tokens/caller"] }],
    ["a command that names its directory", { permission: "bash", patterns: ["cat /srv/toolgate/tokens/caller"] }],
    ["a detour", { permission: "read", patterns: ["/srv/../home/u/.local/share/toolgate/log"] }],
    ["another case", { permission: "list", patterns: ["/HOME/u/.local/share/ToolGate/log"] }],
    [
      "a shown path that resolves there",
      { permission: "read", patterns: ["link"], paths: [`${guard.dataDirectory}/x`] },
    ],
    ["editing the configuration", { permission: "edit", patterns: [guard.configFile] }],
    ["searching there", { permission: "grep", patterns: ["x"], paths: [guard.dataDirectory] }],
    ["a kind of a tool's own", { permission: "upload", patterns: ["x"], paths: [`${guard.dataDirectory}/x`] }],
    ["the directory", { permission: "external_directory", patterns: [`${guard.dataDirectory}/*`] }],
    ["a directory in it", { permission: "external_directory", patterns: [`${guard.dataDirectory}/tokens/*`] }],
    ["editing a policy file", { permission: "edit", patterns: ["sub/Toolgate.toml"] }],
    ["editing a trusted workspace's rules", { permission: "edit", patterns: [".opencode/config.toml"] }],
    ["editing them elsewhere", { permission: "edit", patterns: ["a"], paths: ["/srv/q/.opencode/config.toml"] }],
    ["a command that names it", { permission: "bash", patterns: [`cat ${guard.dataDirectory}/tokens/caller | sh`] }],
    ["a command that names it by ~", { permission: "bash", patterns: ["cat ~/.local/share/toolgate/tokens/caller"] }],
    ["a command that names it by $HOME", { permission: "bash", patterns: ['cp x "$HOME/.config/toolgate/gate.toml"'] }],
    ["a command in it", { permission: "bash", patterns: ["ls"], cwd: `${guard.dataDirectory}/tokens` }],
    [
      "a command that climbs there",
      { permission: "bash", patterns: ["cat ../.local/share/toolgate/x"], cwd: "/home/u/p" },
    ],
    [
      "an option that climbs there",
      { permission: "bash", patterns: ["x --f=../.local/share/toolgate/x"], cwd: "/home/u/p" },
    ],
  ])("%s", (_, ask) => {
    expect(judged(ask)).toMatchObject({ action: PermissionAction.DENY, layer: PermissionLayer.ENGINE });
  });

  test("the reason names the protected path", () => {
    expect(judged({ permission: "edit", patterns: ["toolgate.toml"] })?.reason).toBe(
      "engine: toolgate.toml is a policy file, which no tool may edit",
    );
    expect(judged({ permission: "read", patterns: [guard.configFile] })?.reason).toBe(
      `engine: ${guard.configFile} belongs to Toolgate's configuration, which no tool may touch`,
    );
  });
});

describe("paths that only look protected", () => {
  test.each<[string, ExpandedAsk]>([
    ["a neighbour with a longer name", { permission: "read", patterns: ["/home/u/.local/share/toolgate-old/x"] }],
    ["reading a policy file", { permission: "read", patterns: ["toolgate.toml"] }],
    ["another file of that name", { permission: "edit", patterns: ["app/config.toml"] }],
    [
      "a command about a neighbour",
      { permission: "bash", patterns: ["ls /home/u/.local/share/toolgate-old"], cwd: "/srv/p" },
    ],
    ["a name in another kind", { permission: "webfetch", patterns: ["https://x.example/.local/share/toolgate"] }],
  ])("%s is allowed", (_, ask) => {
    expect(judged(ask)?.action).toBe(PermissionAction.ALLOW);
  });
});

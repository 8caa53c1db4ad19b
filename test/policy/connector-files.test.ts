import { expect, test } from "vitest";
import { PermissionAction, PermissionLayer } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { createPolicy } from "../../src/policy/policy.ts";
import { fromConfig } from "../../src/policy/rules.ts";

const { ALLOW, ASK } = PermissionAction;
const settings = "/home/u/.config/agent/settings.json";
const layers = { wide: [{ layer: PermissionLayer.CONFIG, rules: fromConfig("allow", "/home/u") }], narrow: [] };

function policyWith(files: () => readonly string[]) {
  const policy = createPolicy({ guard: { dataDirectory: "/data" }, home: "/home/u", connectorFiles: files });
  const judged = (permission: string, path: string) => policy.judge({ permission, patterns: [path] }, layers)[0];
  return { policy, judged };
}

test("a file of a connector asks for each read and edit, whatever rules allow", () => {
  const { judged } = policyWith(() => [settings]);
  for (const permission of ["read", "edit"]) {
    expect(judged(permission, settings)).toMatchObject({
      action: ASK,
      reason: `engine: ${settings} is a file of a connector, through which an agent asks: always asked`,
    });
    expect(judged(permission, settings.toUpperCase())?.action).toBe(ASK);
    expect(judged(permission, `${settings}.bak`)?.action).toBe(ALLOW);
  }
});

test("an edit of a directory that contains such a file asks, and a read of it does not", () => {
  const { judged } = policyWith(() => [settings]);
  expect(judged("edit", "/home/u/.config/agent")?.action).toBe(ASK);
  expect(judged("read", "/home/u/.config/agent")?.action).toBe(ALLOW);
  expect(judged("edit", "/home/u/.config/agents")?.action).toBe(ALLOW);
});

test("protection begins and ends while the service runs", () => {
  let files: readonly string[] = [];
  const { judged } = policyWith(() => files);
  expect(judged("edit", settings)?.action).toBe(ALLOW);
  files = [settings];
  expect(judged("edit", settings)?.action).toBe(ASK);
  files = [];
  expect(judged("edit", settings)?.action).toBe(ALLOW);
});

test("a search in a directory with such a file judges each file that it finds", () => {
  const place = { absolute: "/home/u/.config", pattern: "/home/u/.config" };
  expect(policyWith(() => []).policy.readDoubts(place, layers)).toBeDefined();
  expect(policyWith(() => [settings]).policy.readDoubts(place, layers)).toBeUndefined();
});

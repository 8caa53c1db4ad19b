import { expect, test } from "vitest";
import { PermissionAction } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { createShadowFailures, judgeShadow } from "../../src/call/shadow.ts";

test("shadow rules that fail are counted at each call and logged once for each kind of failure, up to ten", async () => {
  const [logged, counted]: [string[], PermissionAction[]] = [[], []];
  const failed = createShadowFailures({ warn: (message, fields) => logged.push(`${message}: ${fields?.error}`) });
  const subject = { agent: "build", workspace: "default", directory: "/w", ancestors: [], session: undefined };
  const ask = { permission: "bash", patterns: ["ls"] };
  const judge = async (message: string) => {
    const policy = {
      judge() {
        throw new Error(message);
      },
      usesContainment: () => false,
    };
    const rules = { layersFor: () => ({ wide: [], narrow: [] }), failed };
    const count = (_: PermissionAction, to: PermissionAction) => counted.push(to);
    const shadow = await judgeShadow(
      policy,
      { ...rules, count } as never,
      {
        ...{ subject, planned: [ask], asks: [ask], byRules: PermissionAction.ASK, gitFiles: undefined },
        expand: async () => [ask],
      } as never,
    );
    return shadow?.().action;
  };
  expect([await judge("broken"), await judge("broken")]).toEqual([0, 0]);
  expect(logged).toEqual([expect.stringMatching(/could not judge a call.*: Error: broken$/)]);
  for (let kind = 0; kind < 20; kind += 1) await judge(`broken ${kind}`);
  expect([logged.length, counted.length]).toEqual([10, 22]);
});

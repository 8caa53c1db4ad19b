import { expect, test } from "vitest";
import { useBrowsers } from "../console/browser.ts";
import { approveByPhone } from "../console/phone-approval.ts";
import { hostTokens } from "../e2e/host.ts";
import { connectors, httpHook, ownProgram, runTool } from "./connectors.ts";

const browsers = useBrowsers();
const { "the command hook of Claude Code": hook = httpHook } = connectors;

test("a push and two taps on a phone let Claude Code continue, with a kill -9 of the service between any two steps", async () => {
  const { end } = await approveByPhone(browsers, {
    ...{ settings: () => hostTokens, command: "touch marker", runsElsewhere: true },
    run: ({ url: server, workspace }) =>
      runTool(hook, workspace, { server, token: "host-token-for-tests", timeout: 600, program: ownProgram }),
  });
  expect(end).toMatchObject({ code: 0, hasMarker: true });
  expect(JSON.parse(end.stdout)).toMatchObject({ result: "done" });
});

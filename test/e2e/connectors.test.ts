import { Code } from "@connectrpc/connect";
import { expect, test } from "vitest";
import { AgentService } from "../../gen/opencode/tool/v1/agent_service_pb.ts";
import { PermissionAction } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { PermissionService } from "../../gen/opencode/tool/v1/permission_service_pb.ts";
import { toolgate } from "../cli/toolgate.ts";
import { clientOf, refusal } from "./clients.ts";
import { useService } from "./service.ts";

const service = useService();
const agents = (token: string) => clientOf(AgentService, service.url, token);

async function actionOf(path: string): Promise<PermissionAction | undefined> {
  const { decisions } = await clientOf(PermissionService, service.url, "caller-token-for-tests").explainPermission({
    agent: "free",
    permission: "edit",
    patterns: [path],
  });
  return decisions[0]?.action;
}

test("files of a connector are protected from its registration until it is removed", async () => {
  const file = `${service.workspace}/agent.json`;
  const approver = agents("approver-token-for-tests");
  expect(await actionOf(file)).toBe(PermissionAction.ALLOW);
  const request = { kind: "claude", place: "ann@laptop", files: [file], uid: 1000, enforced: false };
  const { connector } = await approver.registerConnector(request);
  expect(connector).toMatchObject({ ...request, registeredBy: "approver" });
  expect(await actionOf(file)).toBe(PermissionAction.ASK);
  expect((await agents("watcher-token-for-tests").listConnectors({})).connectors).toEqual([connector]);

  // `toolgate doctor` finds it, beside a service that works.
  const environment = { TOOLGATE_URL: service.url, TOOLGATE_TOKEN: "approver-token-for-tests" };
  const { code, stdout } = await toolgate(["doctor"], environment);
  expect(stdout).not.toContain("failed");
  expect(code).toBe(0);
  expect(stdout).toContain("ok       readiness    takes calls and answers");
  expect(stdout).toContain("warning  agents       claude at ann@laptop: advisory: ");

  await approver.unregisterConnector({ id: connector?.id ?? "" });
  expect(await actionOf(file)).toBe(PermissionAction.ALLOW);
  expect(await refusal(approver.unregisterConnector({ id: "con_1" }))).toMatchObject({ code: Code.NotFound });
});

test("an agent registers nothing, and a relative path is refused", async () => {
  const request = { kind: "claude", place: "x", files: ["/tmp/a"] };
  expect(await refusal(agents("caller-token-for-tests").registerConnector(request))).toMatchObject({
    code: Code.PermissionDenied,
    reason: "ROLE_MISSING",
  });
  const relative = agents("approver-token-for-tests").registerConnector({ ...request, files: ["a"] });
  expect(await refusal(relative)).toMatchObject({ code: Code.InvalidArgument });
});

import { Code } from "@connectrpc/connect";
import { beforeAll, describe, expect, test } from "vitest";
import { CredentialService } from "../../gen/opencode/tool/v1/credential_service_pb.ts";
import { PermissionService } from "../../gen/opencode/tool/v1/permission_service_pb.ts";
import { SessionService } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import { PermissionReply } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { ToolService } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { type RedisServers, startRedis } from "../store/redis-server.ts";
import { clientOf, refusal } from "./clients.ts";
import { read } from "./reading.ts";
import { createService, type Service } from "./service.ts";

const both = '[[token]]\nid = "both"\nroles = ["caller", "approver"]\nvalue = "both-token-for-tests"\n';

describe.each(["SQLite", "Redis"])("on %s", (store) => {
  let service: Service;
  beforeAll(async () => {
    const redis: RedisServers | undefined = store === "Redis" ? await startRedis() : undefined;
    service = createService({ settings: redis ? `store = "${redis.url}"\n${both}` : both });
    await service.start();
    return async () => {
      await service.close();
      await redis?.stop();
    };
  });

  const credentials = (token: string) => clientOf(CredentialService, service.url, token);
  const permissions = (token: string) => clientOf(PermissionService, service.url, token);

  /** Signs another device in with a code of this token. */
  async function addDevice(token: string): Promise<string> {
    const { code } = await credentials(token).createCode({});
    return (await credentials("").signIn({ code })).token;
  }

  async function createToken(token: string, ...roles: string[]): Promise<string> {
    return (await credentials(token).createToken({ roles })).token;
  }

  /** Makes a call that asks. */
  async function ask(token: string): Promise<{ sessionId: string; permissionId: string }> {
    const { session } = await clientOf(SessionService, service.url, token).createSession({});
    const sessionId = session?.id ?? "";
    const call = { sessionId, tool: "bash", input: { command: "true" } };
    const stream = read(clientOf(ToolService, service.url, token).executeTool(call));
    const { id: permissionId } = await stream.until("permissionAsked");
    return { sessionId, permissionId };
  }

  const answer = (token: string, asked: { sessionId: string; permissionId: string }) =>
    permissions(token).respondToPermission({ ...asked, reply: PermissionReply.ONCE });
  const ownCall = { code: Code.PermissionDenied, reason: "OWN_CALL" };

  test("no device of a person answers calls of another device of that person", async () => {
    const first = await addDevice("both-token-for-tests");
    const second = await addDevice("both-token-for-tests");
    const third = await addDevice(second);
    const devices = ["both-token-for-tests", first, second, third];
    for (const maker of devices) {
      const asked = await ask(maker);
      for (const device of devices) expect(await refusal(answer(device, asked))).toMatchObject(ownCall);
      const { settled } = await permissions(third).rejectPermissions({ sessionId: asked.sessionId });
      expect(settled).toEqual([]);
      await answer("approver-token-for-tests", asked);
    }
  });

  test("a credential that a caller issued does not answer the caller's calls", async () => {
    const issued = await createToken("admin-token-for-tests", "approver");
    const device = await addDevice(issued);
    const further = await createToken(await createToken("admin-token-for-tests", "admin"), "approver");
    const asked = await ask("admin-token-for-tests");
    for (const token of [issued, device, further])
      expect(await refusal(answer(token, asked))).toMatchObject({
        ...ownCall,
        message: expect.stringContaining("descends from it"),
      });
    await answer("approver-token-for-tests", asked);
  });

  test("an approver answers the calls of agents whose tokens it created, from each of its devices", async () => {
    const device = await addDevice("approver-token-for-tests");
    for (const creator of ["approver-token-for-tests", device, "admin-token-for-tests"]) {
      const agent = await createToken(creator, "caller");
      await answer(creator, await ask(agent));
      await answer(device, await ask(agent));
    }
  });

  test("a credential gives no agents that it does not have", async () => {
    const { token } = await credentials("admin-token-for-tests").createToken({ roles: ["approver"], agents: ["plan"] });
    const refused = refusal(credentials(token).createToken({ roles: ["caller"], agents: ["plan", "build"] }));
    expect(await refused).toMatchObject({ reason: "INVALID_MESSAGE", metadata: { field: "agents" } });
    const { credential } = await credentials(token).createToken({ roles: ["caller"] });
    expect(credential?.agents).toEqual(["plan"]);
  });

  test("the list names the issuer of each credential", async () => {
    const { credential } = await credentials("both-token-for-tests").createToken({ roles: ["caller"] });
    expect(credential?.issuer).toBe("both");
    const { code } = await credentials("both-token-for-tests").createCode({});
    expect((await credentials("").signIn({ code })).credential?.issuer).toBe("both");
  });
});

import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import type { Client } from "@modelcontextprotocol/client";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { PermissionReply } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { connect } from "../e2e/clients.ts";
import { unconfined, useService } from "../e2e/service.ts";
import { askedProgress, eras, textOf, transports } from "./clients.ts";

const service = useService({ settings: `mcp_hold_ms = 300\n[mcp_hold.patient]\nms = 60000\n${unconfined}` });
const names = Object.keys(transports) as (keyof typeof transports)[];
const ways = eras.flatMap((era) => names.map((name) => ({ era, name, open: transports[name] })));

describe.each(ways)("$era over $name", ({ era, name, open }) => {
  let client: Client;
  let patient: Client;
  beforeAll(async () => {
    [client, patient] = await Promise.all([open(service, { era }), open(service, { era, name: "patient" })]);
  });
  afterAll(() => Promise.all([client.close(), patient.close()]));

  test("lists the tools of the agent by name, with hints and definition", async () => {
    const { tools } = await client.listTools();
    expect(client.getNegotiatedProtocolVersion()).toBe(era === "modern" ? "2026-07-28" : "2025-11-25");
    const listed = tools.map(({ name }) => name);
    expect(listed).toEqual(listed.toSorted());
    expect(listed).toEqual(expect.arrayContaining(["bash", "read", "toolgate_wait"]));
    const read = tools.find(({ name }) => name === "read");
    expect(read).toMatchObject({
      annotations: { readOnlyHint: true, destructiveHint: false, openWorldHint: false },
      inputSchema: { type: "object" },
      _meta: { "toolgate/definitionId": expect.stringMatching(/./) },
    });
    expect(tools.filter(({ outputSchema }) => outputSchema !== undefined)).toEqual([]);
  });

  test("runs an allowed call", async () => {
    await writeFile(join(service.workspace, "note.txt"), "hello\n");
    const result = await patient.callTool({ name: "read", arguments: { filePath: "note.txt" } });
    expect(textOf(result)).toContain("hello");
    expect(result.isError).not.toBe(true);
  });

  test("a call that waits is answered after the hold, and the same call continues it once", async () => {
    const call = echo(`${era} ${name} ran`);
    const first = await client.callTool(call);
    expect(first.isError).not.toBe(true);
    expect(textOf(first)).toContain("Nothing has run yet");
    expect(textOf(first)).toContain("toolgate_wait");
    await approve(first);
    expect(textOf(await client.callTool(call))).toMatch(new RegExp(`^${era} ${name} ran`));
    expect(textOf(await client.callTool(call))).toContain("Nothing has run yet");
  });

  test("toolgate_wait returns the result of the call that it names", async () => {
    const call = echo(`${era} ${name} waited`);
    const first = await client.callTool(call);
    const waited = await client.callTool({ name: "toolgate_wait", arguments: { call_id: handleIn(first) } });
    expect(textOf(waited)).toContain("Nothing has run yet");
    await approve(first);
    const ended = await client.callTool({ name: "toolgate_wait", arguments: { call_id: handleIn(first) } });
    expect(textOf(ended)).toMatch(new RegExp(`^${era} ${name} waited`));
  });

  test("a call that was cancelled elsewhere is not continued by the same call", async () => {
    const call = echo(`${era} ${name} ended`);
    const first = await client.callTool(call);
    const ref = {
      sessionId: String(first._meta?.["toolgate/sessionId"]),
      callId: String(first._meta?.["toolgate/callId"]),
    };
    await connect(service, "caller").tools.cancelTool(ref);
    const again = await client.callTool(call);
    expect(textOf(again)).toContain("Nothing has run yet");
    expect(again._meta?.["toolgate/callId"]).not.toBe(ref.callId);
  });

  test("toolgate_wait without a call_id is an error of the protocol", async () => {
    for (const given of [{}, { call_id: "" }])
      await expect(patient.callTool({ name: "toolgate_wait", arguments: given })).rejects.toMatchObject({
        code: -32602,
      });
  });

  test("a held call ends as soon as it is approved", async () => {
    const { asked, onprogress } = askedProgress();
    const call = echo(`${era} ${name} held`);
    const result = patient.callTool(call, { onprogress });
    expect(await asked).toContain("waiting for approval: bash: echo");
    await approveAll();
    expect(textOf(await result)).toMatch(new RegExp(`^${era} ${name} held`));
  });

  test("cancelling a request ends its call", async () => {
    const stop = new AbortController();
    const call = echo(`${era} ${name} cancelled`);
    const result = patient.callTool(call, { signal: stop.signal, onprogress: () => stop.abort() });
    await expect(result).rejects.toThrow();
    await expect.poll(requestsFor(`${era} ${name} cancelled`)).toEqual([]);
  });

  test("an unknown tool is an error of the protocol, invalid input is a result", async () => {
    await expect(patient.callTool({ name: "nothing", arguments: {} })).rejects.toMatchObject({ code: -32602 });
    const invalid = await patient.callTool({ name: "read", arguments: { filePath: 7 } });
    expect(invalid.isError).toBe(true);
    expect(textOf(invalid)).toContain("filePath");
  });
});

const echo = (text: string) => ({ name: "bash", arguments: { command: `echo ${text}`, description: "say" } });

const approver = () => connect(service, "approver").permissions;

async function openRequests() {
  return (await approver().listPermissions({})).permissions.map(({ id, sessionId }) => ({ id, sessionId }));
}

/** Returns a function that lists the open requests for an echo. */
function requestsFor(text: string) {
  return async () => {
    const { permissions } = await approver().listPermissions({});
    return permissions.filter(({ patterns }) => patterns.includes(`echo ${text}`)).map(({ id }) => id);
  };
}

async function approveAll(): Promise<void> {
  for (const { id, sessionId } of await openRequests())
    await approver().respondToPermission({ sessionId, permissionId: id, reply: PermissionReply.ONCE });
}

/** Approves what a call waits for, and waits for its end: these clients are held for a moment only. */
async function approve(result: { _meta?: Record<string, unknown> | undefined }): Promise<void> {
  const own = async () =>
    (await openRequests()).filter(({ sessionId }) => sessionId === result._meta?.["toolgate/sessionId"]);
  await expect.poll(async () => (await own()).length).toBeGreaterThan(0);
  for (const { id, sessionId } of await own())
    await approver().respondToPermission({ sessionId, permissionId: id, reply: PermissionReply.ONCE });
  const [sessionId, callId] = [String(result._meta?.["toolgate/sessionId"]), String(result._meta?.["toolgate/callId"])];
  const { tools } = connect(service, "caller");
  const stateOf = async () => (await tools.getToolPart({ sessionId, callId })).part?.state.case;
  await expect.poll(stateOf).toBe("completed");
}

function handleIn(result: Parameters<typeof textOf>[0]): string {
  return /"call_id":"([^"]+)"/.exec(textOf(result))?.[1] ?? "";
}

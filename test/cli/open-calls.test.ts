import { expect, onTestFinished, test } from "vitest";
import { connectServer } from "../../src/cli/connection/connection.ts";
import { createWaitingCalls } from "../../src/cli/connection/open-calls.ts";
import { startFakeServer } from "./fake-server.ts";

async function look(sessions: Map<string, { lastSeq: bigint; closed?: number; open: string[] }>) {
  const watched: string[] = [];
  const fake = await startFakeServer({
    sessions: {
      listSessions: ({ pageToken }) => {
        const [id, session] = [...sessions][Number(pageToken)] ?? [];
        const next = Number(pageToken) + 1;
        return {
          sessions:
            id && session ? [{ id, title: `T ${id}`, lastSeq: session.lastSeq, closed: session.closed ?? 0 }] : [],
          nextPageToken: next < sessions.size ? String(next) : "",
        };
      },
    },
    tools: {
      async *watchSession({ sessionId }, { signal }) {
        watched.push(sessionId);
        for (const callId of sessions.get(sessionId)?.open ?? []) {
          const value = { sessionId, callId, permissionIds: [`per_${callId}`] };
          yield { event: { event: { case: "part" as const, value } } };
          yield { event: { event: { case: "permissionAsked" as const, value: { id: `per_${callId}` } } } };
        }
        yield { snapshotEnd: true };
        // A watch goes on until its client leaves.
        await new Promise((resolve) => signal.addEventListener("abort", resolve));
      },
    },
  });
  const server = connectServer(fake.url, { value: undefined, source: "" });
  onTestFinished(async () => {
    server.close();
    await fake.close();
  });
  const calls = createWaitingCalls(server);
  return {
    watched,
    look: async () =>
      (await calls.look()).map(({ part, asks, sessionTitle }) => `${part.callId} ${asks[0]?.id} ${sessionTitle}`),
  };
}

test("open calls are those of all pages of sessions, with what they wait for", async () => {
  const { look: see } = await look(
    new Map([
      ["ses_a", { lastSeq: 1n, open: ["a1", "a2"] }],
      ["ses_b", { lastSeq: 4n, open: ["b1"] }],
    ]),
  );
  expect((await see()).toSorted()).toEqual(["a1 per_a1 T ses_a", "a2 per_a2 T ses_a", "b1 per_b1 T ses_b"]);
});

test("only sessions whose log has grown are looked into again; closed ones and those that are gone are not", async () => {
  const sessions = new Map([
    ["ses_idle", { lastSeq: 9n, open: ["idle"] }],
    ["ses_busy", { lastSeq: 1n, open: ["before"] }],
    ["ses_gone", { lastSeq: 1n, open: ["gone"] }],
    ["ses_closed", { lastSeq: 1n, closed: 1, open: [] }],
  ]);
  const { look: see, watched } = await look(sessions);
  await see();
  expect(watched.toSorted()).toEqual(["ses_busy", "ses_gone", "ses_idle"]);
  sessions.set("ses_busy", { lastSeq: 2n, open: ["after"] });
  sessions.delete("ses_gone");
  expect((await see()).toSorted()).toEqual(["after per_after T ses_busy", "idle per_idle T ses_idle"]);
  expect(watched.slice(3)).toEqual(["ses_busy"]);
});

import { onTestFinished } from "vitest";
import { type Clients, connect } from "../e2e/clients.ts";
import type { Principal, Service } from "../e2e/service.ts";

/** A call of bash that is waiting for an answer. */
export interface Asking {
  readonly call: { sessionId: string; callId: string; tool: string; input: { command: string; description?: string } };
  readonly agent: Clients;
  /** Resolves with the ended call. */
  end(): ReturnType<Clients["tools"]["callTool"]>;
}

/** Makes such a call in a new session. Cancels it after the test, so that the next test starts with an empty inbox. */
export async function ask(
  service: Pick<Service, "url">,
  input: { command: string; description?: string },
  { title = "A session", who = "caller" }: { title?: string; who?: Principal } = {},
): Promise<Asking> {
  const agent = connect(service, who);
  const sessionId = await agent.newSession({ title });
  const call = { sessionId, callId: "c1", tool: "bash", input };
  await agent.tools.callTool({ ...call, waitMs: 0 });
  // The service may have restarted by then, at another address.
  onTestFinished(async () => {
    await connect(service, who).tools.cancelTool(call);
  });
  return { call, agent, end: () => agent.tools.callTool(call) };
}

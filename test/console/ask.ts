import { onTestFinished } from "vitest";
import { type Clients, connect } from "../e2e/clients.ts";
import type { Service } from "../e2e/service.ts";

/** A call of bash that waits for an answer. */
export interface Asking {
  readonly call: { sessionId: string; callId: string; tool: string; input: { command: string; description?: string } };
  readonly agent: Clients;
  /** Resolves with the call when it has ended. */
  end(): ReturnType<Clients["tools"]["callTool"]>;
}

/** Makes one, in a session of its own. What the test leaves open is cancelled, so that the next one finds nothing waiting. */
export async function ask(
  service: Pick<Service, "url">,
  input: { command: string; description?: string },
  { title = "A session" } = {},
): Promise<Asking> {
  const agent = connect(service, "caller");
  const sessionId = await agent.newSession({ title });
  const call = { sessionId, callId: "c1", tool: "bash", input };
  await agent.tools.callTool({ ...call, waitMs: 0 });
  // The service may be at another address by then, or another process at this one.
  onTestFinished(async () => {
    await connect(service, "caller").tools.cancelTool(call);
  });
  return { call, agent, end: () => agent.tools.callTool(call) };
}

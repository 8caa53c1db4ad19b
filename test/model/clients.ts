import { create } from "@bufbuild/protobuf";
import { ErrorReasonSchema } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import { PermissionOutcomeSchema, type PermissionSettled } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { PermissionReply, PermissionResponseSchema } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { CallToolRequestSchema } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { workspaceRoot } from "../../src/core/paths.ts";
import type { Principal } from "../../src/core/principal.ts";
import { RequestError } from "../../src/core/request-error.ts";
import { type Follower, startFollower } from "./follower.ts";
import type { Ledger } from "./ledger.ts";
import type { Act } from "./model.ts";
import type { Names } from "./observer.ts";
import { ReplicaDied } from "./reach.ts";
import type { Replicas } from "./replicas.ts";

/** Clients of the service: one agent host, and approvers. */
export type Clients = ReturnType<typeof createClients>;

export const agent: Principal = {
  id: "agent",
  roles: new Set(["caller"]),
  agents: ["*"],
  workspaces: ["*"],
  lineage: ["agent"],
  answersOwn: false,
};
const person = (id: string): Principal => ({ ...agent, id, lineage: [id], roles: new Set(["approver"]) });

export function createClients({
  replicas,
  ledger,
  names,
  onEvent,
}: {
  replicas: Replicas;
  ledger: Ledger;
  names: Names;
  onEvent(): void;
}) {
  const over = new AbortController();
  const streams: (Follower & { sessionId: string; callId?: string })[] = [];
  const reportedWinners: PermissionSettled[] = [];

  /** Performs an act and returns the outcome: `ok`, the reason of a refusal, or `lost`. */
  async function perform(act: Act): Promise<string> {
    try {
      await attempt(act);
      return "ok";
    } catch (cause) {
      if (cause instanceof ReplicaDied) return "lost";
      if (!(cause instanceof RequestError)) throw cause;
      const reason = ErrorReasonSchema.value[cause.reason]?.localName ?? "";
      if (!cause.settled) return reason;
      reportedWinners.push(cause.settled);
      const outcome = PermissionOutcomeSchema.value[cause.settled.outcome]?.localName;
      return `${reason} ${outcome} ${cause.settled.by}`.trimEnd();
    }
  }

  async function attempt(act: Act): Promise<void> {
    switch (act.do) {
      case "execute":
        return await execute(act);
      case "reply":
        return await reply(act);
      case "cancel":
        return await cancel(act);
      case "close":
        return await replicas.at(act.at).calls.closeSession(agent, act.session);
      case "revoke":
        return void (await replicas.at(act.at).permissions.revoke({ id: "ann" }, names.grant(act.grant)));
      case "release":
        return ledger.release(act.call, act.end);
      case "kill":
        return await replicas.kill(act.replica);
      case "upgrade":
        ledger.upgrade();
        return await replicas.kill(act.replica);
      case "recover":
        return await replicas.each(({ calls }) => calls.recover());
      case "freeze":
        return await replicas.freeze();
    }
  }

  /** Makes the call and follows it, as ExecuteTool does; when its replica dies it sends the request again. */
  async function execute({ at, call, session, tool, key, afterSeq }: Act & { do: "execute" }): Promise<void> {
    const [, callId = ""] = call.split("/");
    const request = create(CallToolRequestSchema, { sessionId: session, callId, tool, input: { key } });
    let replica = replicas.at(at);
    const { lastSeq } = await replica.sessions.get(agent, session);
    let opened = await replica.calls.open(agent, request);
    async function* open(after: number) {
      if (replica.gone.aborted) {
        replica = replicas.any();
        opened = await replica.calls.open(agent, request);
      }
      yield* replica.calls.events(opened, after, over.signal);
    }
    follow({ sessionId: session, callId }, afterSeq % (Number(lastSeq) + 1), open);
  }

  async function reply({ at, call, nth, by, answer, isWide, replyId }: Act & { do: "reply" }): Promise<void> {
    const [sessionId = ""] = call.split("/");
    const { sessions, calls } = replicas.at(at);
    const { session } = await sessions.open(person(by), sessionId, "read");
    const response = create(PermissionResponseSchema, {
      sessionId,
      permissionId: names.ask(call, nth),
      reply: PermissionReply[answer],
      offerId: answer === "ALWAYS" && isWide ? "o3" : "",
      replyId,
    });
    await calls.answer(person(by), workspaceRoot(session.workspace), response);
  }

  async function cancel({ at, call }: Act & { do: "cancel" }): Promise<void> {
    const [sessionId = "", callId = ""] = call.split("/");
    const { calls } = replicas.at(at);
    const part = await calls.cancel(agent, sessionId, callId, "");
    const { record } = await calls.getRecord(agent, sessionId, callId, "read");
    if (record.part.revision !== part.revision)
      throw new Error(`call ${call} went on after its cancel had come back as ${part.state.case}`);
  }

  function follow(
    about: { sessionId: string; callId?: string },
    after: number,
    open: Parameters<typeof startFollower>[1],
  ) {
    streams.push(Object.assign(startFollower(after, open, { signal: over.signal, onEvent }), about));
  }

  return {
    perform,
    /** Every stream that was opened, and the winners that were reported to late answers. */
    streams,
    reportedWinners,
    /** Watches a session from an existing sequence number: the given one, if there is such a number. */
    async watch(sessionId: string, afterSeq: number): Promise<void> {
      const { lastSeq } = await replicas.any().sessions.get(agent, sessionId);
      follow({ sessionId }, afterSeq % (Number(lastSeq) + 1), (seq) =>
        replicas.any().calls.watch(agent, { sessionId, afterSeq: seq, snapshot: false }, over.signal),
      );
    },
    /** Ends every stream. */
    leave: () => over.abort(),
  };
}

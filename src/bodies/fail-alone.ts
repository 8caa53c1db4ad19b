import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { WorkerFailure, type WorkRequest, WorkRequestSchema } from "../../gen/opencode/tool/v1/worker_pb.ts";
import { visible } from "../core/visible.ts";

/** Maximum length of the IDs by which messages name bodies, plans and hooks. */
const maxIdLength = 320;
const maxFactLength = 500;

/**
 * Returns the message to take instead of one that breaks a rule of the contract: it fails only the body, plan or hook that the message
 * names, since others share the connection. Undefined if it names none.
 */
export function failAlone({ message }: WorkRequest, error: unknown): WorkRequest | undefined {
  const fact = error instanceof Error ? error.message : String(error);
  const problem = `A message of the tool breaks a rule of the contract: ${visible(fact.slice(0, maxFactLength))}.`;
  const instead = (id: string, made: NonNullable<MessageInitShape<typeof WorkRequestSchema>["message"]>) =>
    id === "" || id.length > maxIdLength ? undefined : create(WorkRequestSchema, { message: made });
  switch (message.case) {
    case "report": {
      const { assignment } = message.value;
      // No process can send this kind, which the contract refuses.
      const outcome = { case: "failed", value: { kind: WorkerFailure.UNSPECIFIED, message: problem } } as const;
      return instead(assignment, {
        case: "report",
        value: { assignment, report: { case: "result", value: { outcome } } },
      });
    }
    case "planned":
      return instead(message.value.planId, { case: "planned", value: { planId: message.value.planId, problem } });
    case "inited":
      return instead(message.value.initId, { case: "inited", value: { initId: message.value.initId, problem } });
    case "hooked": {
      const { hookId } = message.value;
      return instead(hookId, { case: "hooked", value: { hookId, outcome: { case: "problem", value: problem } } });
    }
  }
  return undefined;
}

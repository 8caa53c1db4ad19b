import type { MessageInitShape } from "@bufbuild/protobuf";
import type {
  GetServerInfoResponse,
  GetToolStatsResponseSchema,
  Limits,
} from "../../../gen/opencode/tool/v1/tool_service_pb.ts";
import type { AskRecord } from "../../approval/ports.ts";
import type { Calls } from "../../call/calls.ts";
import type { Planner } from "../../call/planner.ts";
import type { StoreMembership } from "../../call/ports.ts";
import type { StoredOutputs } from "../../call/stored-outputs.ts";
import type { CallRef } from "../../core/call-ref.ts";
import type { Principal } from "../../core/principal.ts";
import type { SenderDomain } from "./rpc.ts";

/** Domain that ToolService works on. */
export interface ToolServiceDomain extends SenderDomain {
  calls: Calls;
  planner: Planner;
  reader: StoredOutputs;
  store: Pick<StoreMembership, "storeId" | "storeIdOf" | "format" | "safety">;
  asksOf(call: CallRef): Promise<AskRecord[]>;
  stats(): MessageInitShape<typeof GetToolStatsResponseSchema>;
  custom: {
    refresh(): Promise<void>;
    problems(workspace: string): { path: string; line: number; reason: string }[];
  };
  about: {
    version: string;
    workspaces: string[];
    agentsOf(principal: Principal): { agent: string; description: string }[];
    limits: Limits;
    unattended: "wait" | "deny";
    /** Empty: none is configured. */
    publicUrl: string;
    mcpHolds: readonly { readonly client: string; readonly httpMs: number; readonly stdioMs: number }[];
    sandbox(): Pick<
      GetServerInfoResponse,
      "sandbox" | "sandboxNetwork" | "sandboxNetworkAccess" | "sandboxProblem" | "sandboxDetails" | "preset"
    >;
  };
}

import { createHash } from "node:crypto";
import { create } from "@bufbuild/protobuf";
import {
  type Connector,
  ConnectorSchema,
  type RegisterConnectorRequest,
} from "../../../gen/opencode/tool/v1/agent_service_pb.ts";
import { ErrorReason } from "../../../gen/opencode/tool/v1/error_reason_pb.ts";
import {
  type Enforcement,
  EnforcementSchema,
  EnforcementState,
} from "../../../gen/opencode/tool/v1/tool_service_pb.ts";
import type { Peer } from "../../core/peer-uid.ts";
import type { Principal } from "../../core/principal.ts";
import { isReadableBy } from "../../core/readable-by.ts";
import type { RecordTable } from "../../core/record-table.ts";
import { RequestError } from "../../core/request-error.ts";
import type { Credentials } from "../../people/credentials.ts";
import { agentFacts, foreignFaults } from "../hooks/agent-facts.ts";

/** The registered connectors of agents. */
export type Connectors = ReturnType<typeof createConnectors>;

/** Creates the connectors over a table; `now` is ms since the epoch. */
export function createConnectors(table: RecordTable<Connector>, now: () => number) {
  let read: readonly Connector[] = [];
  let files: readonly string[] = [];

  return {
    /** Stores a connector; one of the same kind and place is replaced. */
    async register(
      { kind, place, mcpName, files, uid, enforced, systemLevel }: Omit<RegisterConnectorRequest, "$typeName">,
      registeredBy: string,
    ): Promise<Connector> {
      const id = connectorId(kind, place);
      const fields = { id, kind, place, mcpName, files, uid, enforced, systemLevel };
      const connector = create(ConnectorSchema, { ...fields, created: now(), registeredBy });
      await table.put(connector);
      return connector;
    },
    /** Removes a connector and returns it. */
    async unregister(id: string): Promise<Connector> {
      const removed = await table.remove(id);
      if (removed !== undefined) return removed;
      throw new RequestError(
        ErrorReason.NO_SUCH_CONNECTOR,
        `there is no connector "${id}"; list them with \`toolgate connect --list\``,
        { connector_id: id },
      );
    },
    /** Returns the connectors, newest first. */
    list: (): readonly Connector[] => table.current().toSorted((one, other) => other.created - one.created),
    /** Returns the files that all connectors wrote; always the same array until the connectors change. */
    files(): readonly string[] {
      const current = table.current();
      if (current !== read) {
        read = current;
        files = [...new Set(current.flatMap((connector) => connector.files))];
      }
      return files;
    },
    /** Reads changes of other replicas. */
    refresh: table.refresh,
  };
}

function connectorId(kind: string, place: string): string {
  return `con_${createHash("sha256").update(`${kind}\0${place}`).digest("hex").slice(0, 24)}`;
}

/** Finds out over which users of the operating system approvals hold. */
export type EnforcementCheck = ReturnType<typeof createEnforcement>;

/** Creates the judgement. `serviceUid` is undefined on systems without user numbers. */
export function createEnforcement({
  serviceUid,
  insecureNoAuth,
  requiresOtherUser,
  credentials,
  tokens,
  connectors,
  unfiltered,
}: {
  serviceUid: number | undefined;
  insecureNoAuth: boolean;
  requiresOtherUser: boolean;
  credentials: Pick<Credentials, "list">;
  /** Configured tokens, with the files that contain them. */
  tokens: () => readonly { readonly id: string; readonly roles: readonly string[]; readonly source?: string }[];
  connectors: Pick<Connectors, "list">;
  /** The reason why some commands run without the filter of system calls; undefined if none does. */
  unfiltered: string | undefined;
}) {
  /** Principals that approved, by the user of their connection. */
  const approvers = new Map<number, string>();

  /** Names a credential that can approve and was in the hands of a user. */
  function approverOf(uid: number): string | undefined {
    const issued = credentials.list().find((credential) => credential.uid === uid && credential.roles.some(canApprove));
    return issued?.id ?? approvers.get(uid);
  }

  function problem(uid: number | undefined): string | undefined {
    if (insecureNoAuth) return "the service requires no token, so every program can approve; start it with tokens";
    if (uid === undefined || serviceUid === undefined)
      return "the user of the agent cannot be seen: it is on another machine, or this system does not list it; run agent and service on one Linux machine as different users";
    if (uid === serviceUid)
      return `agent and service run as the same user (${uid}), so the agent can change the service; run the service as its own user: sudo toolgate install`;
    if (uid === 0) return "the agent runs as root, which can do everything; run it as another user";
    if (unfiltered !== undefined)
      return `a command can leave a program that runs as the user of the service, since ${unfiltered}`;
    const open = tokens().find(
      ({ roles, source }) => roles.some(canApprove) && source !== undefined && isReadableBy(uid, source),
    );
    if (open !== undefined)
      return `user ${uid} can read ${open.source}, with the token "${open.id}", which can approve; chmod 600 the file, or configure sha256, and make a new token`;
    const approver = approverOf(uid);
    if (approver === undefined) return undefined;
    return `"${approver}" can approve and was in the hands of user ${uid}, where the agent can read it; approve as another user, from another machine or from a phone, and revoke it: toolgate token revoke ${approver}`;
  }

  const toEnforcement = (reason: string | undefined) =>
    create(
      EnforcementSchema,
      reason === undefined ? { state: EnforcementState.ENFORCED } : { state: EnforcementState.ADVISORY, reason },
    );

  return {
    /** True if an answer needs another user than its call. */
    requiresOtherUser,
    /** Returns the principal with its user, where that counts; remembers the users that can approve. */
    identify(principal: Principal, { isLocal, uid }: Peer): Principal {
      if (uid !== undefined && [...principal.roles].some(canApprove)) approvers.set(uid, principal.id);
      return requiresOtherUser && isLocal ? { ...principal, user: uid ?? "hidden" } : principal;
    },
    /** Judges the agents that run as this user, also by their connectors; undefined if the user is unknown. */
    judge(uid: number | undefined): Enforcement {
      const own = connectors.list().filter((connector) => connector.uid === uid);
      return toEnforcement(problem(uid) ?? own.map(problemOfConnector).find((reason) => reason !== undefined));
    },
    /** Judges the agent of one connector. */
    judgeConnector: (connector: Connector): Enforcement =>
      toEnforcement(problem(connector.uid) ?? problemOfConnector(connector)),
  };
}

/** Names the reason for which a connector does not hold its agent, whatever the users are. */
function problemOfConnector({ kind, enforced, systemLevel, mcpName }: Connector): string | undefined {
  if (!enforced)
    return "the connector did not verify that the service runs as another user; run `toolgate connect` again on the machine of the service";
  if (kind === "mcp") return undefined;
  const { name = kind, machineSettings, runsAfter = [], off = [] } = agentFacts[kind] ?? {};
  const instead = `let ${kind} use the tools of Toolgate over MCP, with its own tools off`;
  const ofMachine = systemLevel && machineSettings !== undefined;
  const reaching = off.filter(({ reachesMachine }) => reachesMachine);
  const [setting] = ofMachine ? reaching : off;
  if (setting !== undefined) {
    const { path, files } = setting;
    const fact = `a project can switch the hooks of ${name} off (${path} in its ${files[0]})`;
    return machineSettings !== undefined && reaching.length === 0
      ? `${fact}; put them into the settings of the machine: toolgate disconnect ${kind}, then sudo toolgate connect ${kind} --system --user NAME`
      : `${fact}; ${instead}`;
  }
  if (ofMachine) {
    const fault = runsAfter.find((each) => foreignFaults.includes(each));
    if (fault !== undefined)
      return `${name} runs a tool whose hook ${fault}, which a program of its user can bring about; ${instead}`;
    if (mcpName !== "")
      return `the hooks of ${name} let the MCP server ${mcpName} pass, whose program its user can replace; connect ${kind} again`;
    return undefined;
  }
  return `a plugin of a project runs in ${kind} after ours and can change what was approved, and ${kind} has no settings that a project cannot change; ${instead}`;
}

const canApprove = (role: string) => ["approver", "admin", "relay"].includes(role);

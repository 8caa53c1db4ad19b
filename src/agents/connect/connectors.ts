import { createHash } from "node:crypto";
import { create } from "@bufbuild/protobuf";
import {
  type Connector,
  ConnectorSchema,
  type RegisterConnectorRequest,
} from "../../../gen/opencode/tool/v1/agent_service_pb.ts";
import { ErrorReason } from "../../../gen/opencode/tool/v1/error_reason_pb.ts";
import type { RecordTable } from "../../core/record-table.ts";
import { RequestError } from "../../core/request-error.ts";

/** The registered connectors of agents. */
export interface Connectors {
  /** Stores a connector; one of the same kind and place is replaced. */
  register(connector: Omit<RegisterConnectorRequest, "$typeName">, registeredBy: string): Promise<Connector>;
  /** Removes a connector and returns it. */
  unregister(id: string): Promise<Connector>;
  /** Returns the connectors, newest first. */
  list(): readonly Connector[];
  /** Returns the files that all connectors wrote; always the same array until the connectors change. */
  files(): readonly string[];
  /** Reads changes of other replicas. */
  refresh(): Promise<void>;
}

/** Creates the connectors over a table; `now` is ms since the epoch. */
export function createConnectors(table: RecordTable<Connector>, now: () => number): Connectors {
  let read: readonly Connector[] = [];
  let files: readonly string[] = [];

  return {
    async register({ kind, place, mcpName, files, uid, enforced, systemLevel }, registeredBy) {
      const id = connectorId(kind, place);
      const fields = { id, kind, place, mcpName, files, uid, enforced, systemLevel };
      const connector = create(ConnectorSchema, { ...fields, created: now(), registeredBy });
      await table.put(connector);
      return connector;
    },
    async unregister(id) {
      const removed = await table.remove(id);
      if (removed !== undefined) return removed;
      throw new RequestError(
        ErrorReason.NO_SUCH_CONNECTOR,
        `there is no connector "${id}"; list them with \`toolgate connect --list\``,
        { connector_id: id },
      );
    },
    list: () => table.current().toSorted((one, other) => other.created - one.created),
    files() {
      const current = table.current();
      if (current !== read) {
        read = current;
        files = [...new Set(current.flatMap((connector) => connector.files))];
      }
      return files;
    },
    refresh: table.refresh,
  };
}

function connectorId(kind: string, place: string): string {
  return `con_${createHash("sha256").update(`${kind}\0${place}`).digest("hex").slice(0, 24)}`;
}

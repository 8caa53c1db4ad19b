import type { Connector } from "../../gen/opencode/tool/v1/agent_service_pb.ts";

/** The table of connectors. Every method that writes resolves when the change is durable and `current` returns it. */
export interface ConnectorTable {
  /** Returns the records as last read, always the same array until they change. */
  current(): readonly Connector[];
  /** Reads the records that other replicas may have changed. */
  refresh(): Promise<void>;
  /** Stores a record; it replaces one with the same ID. */
  put(connector: Connector): Promise<void>;
  /** Removes a record and returns it; undefined if there is none. */
  remove(id: string): Promise<Connector | undefined>;
}

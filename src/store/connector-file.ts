import { join } from "node:path";
import { fromJson, toJson } from "@bufbuild/protobuf";
import { z } from "zod";
import { type Connector, ConnectorSchema } from "../../gen/opencode/tool/v1/agent_service_pb.ts";
import type { ConnectorTable } from "../connector/ports.ts";
import { openRecordFile, type RecordForm } from "./record-file.ts";

/** Opens the table of connectors of a data directory. Only its service changes the file. */
export function openConnectorFile(dataDirectory: string): ConnectorTable {
  const { current, change } = openRecordFile(join(dataDirectory, "connectors.json"), form);
  let records = current();
  async function changeAndRead(next: (stored: readonly Connector[]) => readonly Connector[]): Promise<void> {
    await change(next);
    records = current();
  }
  return {
    current: () => records,
    async refresh() {},
    put: (connector) => changeAndRead((stored) => [...stored.filter(({ id }) => id !== connector.id), connector]),
    async remove(id) {
      const found = records.find((connector) => connector.id === id);
      if (found !== undefined) await changeAndRead((stored) => stored.filter((connector) => connector.id !== id));
      return found;
    },
  };
}

const table = z.object({ connectors: z.array(z.json()) });

const form: RecordForm<Connector> = {
  read: (json) => table.parse(json).connectors.map((connector) => fromJson(ConnectorSchema, connector)),
  write: (connectors) => ({ connectors: connectors.map((connector) => toJson(ConnectorSchema, connector)) }),
  unreadable: (fact) => `a table of connectors (${fact}): restore it, or remove it and run \`toolgate connect\` again`,
};

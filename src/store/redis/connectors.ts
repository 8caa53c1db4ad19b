import { fromJsonString, toJsonString } from "@bufbuild/protobuf";
import { type Connector, ConnectorSchema } from "../../../gen/opencode/tool/v1/agent_service_pb.ts";
import type { ConnectorTable } from "../../connector/ports.ts";
import { StoreUnusable } from "../errors.ts";
import type { Keys } from "./keys.ts";
import type { Link } from "./link.ts";
import { text, texts } from "./reply.ts";

/** Opens the table of connectors in Redis, where all replicas share it. Records of other replicas are known after `refresh`. */
export async function createRedisConnectors({
  link,
  keys,
}: {
  link: Pick<Link, "command">;
  keys: Pick<Keys, "connectors">;
}): Promise<ConnectorTable> {
  let read = "";
  let records: readonly Connector[] = [];

  async function refresh(): Promise<void> {
    const found = texts(await link.command("hvals", keys.connectors)).toSorted();
    if (found.join("\n") === read) return;
    records = found.map((json) => readConnector(json, keys.connectors));
    read = found.join("\n");
  }

  await refresh();
  return {
    current: () => records,
    refresh,
    async put(connector) {
      await link.command("hset", keys.connectors, connector.id, toJsonString(ConnectorSchema, connector));
      await refresh();
    },
    async remove(id) {
      const found = await link.command("hget", keys.connectors, id);
      if (found === null) return undefined;
      await link.command("hdel", keys.connectors, id);
      await refresh();
      return readConnector(text(found), keys.connectors);
    },
  };
}

function readConnector(json: string, key: string): Connector {
  try {
    return fromJsonString(ConnectorSchema, json, { ignoreUnknownFields: true });
  } catch (cause) {
    const fact = cause instanceof Error ? cause.message : String(cause);
    throw new StoreUnusable(
      `the hash ${key} in Redis has a record that is not a connector (${fact}); remove it, then run \`toolgate connect\` again`,
      { cause },
    );
  }
}

import type { JsonObject, JsonValue } from "@bufbuild/protobuf";

/** opencode's names of the events that it has too; the others keep the names of the contract. */
const opencodeNames: Readonly<Record<string, string>> = {
  part: "message.part.updated",
  permission_asked: "permission.updated",
  permission_settled: "permission.replied",
};

/** The `type` of an event in the JSON form. */
export const eventType = (name: string): string => opencodeNames[name] ?? name;

/**
 * The `properties` of an event. Those of opencode's events have its fields, in the spelling of each of its clients, next to the
 * fields of the contract.
 */
export function eventProperties(name: string, content: JsonObject, entry: JsonObject): JsonObject {
  const { sessionID = "", time = 0 } = entry;
  if (name === "part") return { sessionID, part: content, time };
  if (name === "permission_asked") return { ...content, ...permissionOf(content) };
  if (name === "permission_settled") {
    const reply = replyOf(content.outcome);
    return { ...content, requestID: content.permissionID ?? "", reply, response: reply };
  }
  return content;
}

/** The content of an event from its `properties`. */
export function eventContent(name: string, properties: JsonValue | undefined): JsonValue | undefined {
  if (name !== "part" || typeof properties !== "object" || properties === null || Array.isArray(properties))
    return properties;
  return properties.part;
}

/** The fields of a request that earlier clients of opencode read. */
function permissionOf({ permission = "", patterns = [], tool, created = 0 }: JsonObject): JsonObject {
  const { messageID = "", callID = "" } = typeof tool === "object" && tool !== null && !Array.isArray(tool) ? tool : {};
  const title = `${String(permission)} ${Array.isArray(patterns) ? patterns.join(", ") : ""}`.trimEnd();
  return { type: permission, pattern: patterns, messageID, callID, title, time: { created } };
}

/** The reply that opencode has for an outcome: what is not approved is rejected. */
function replyOf(outcome: JsonValue | undefined): "once" | "always" | "reject" {
  if (outcome === "always") return "always";
  return outcome === "once" || outcome === "edited" ? "once" : "reject";
}

import { create } from "@bufbuild/protobuf";
import { type Grant, GrantSchema, GrantScope } from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { PermissionResponse } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { noOffer } from "./answer-refusals.ts";
import { plainOffer } from "./offers.ts";
import type { AskRecord } from "./ports.ts";

/**
 * Builds the grants that "always" saves: the chosen offer of the answered ask, which comes first, and the first offer of each other
 * ask. An answer that names no offer saves the plain one of each.
 */
export function grantsSaved(
  asks: readonly AskRecord[],
  workspace: string,
  { offerId, expires }: PermissionResponse,
  by: string,
  { newId, now }: { newId(prefix: "grt"): string; now(): number },
): Grant[] {
  const grants = asks.flatMap(({ request, call, part }, i) => {
    const offer = offerId === "" ? plainOffer(request) : request.offers.find(({ id }) => i > 0 || id === offerId);
    if (!offer?.match && i === 0 && offerId !== "") throw noOffer(request, `no offer ${offerId}`);
    if (!offer?.match) return [];
    const { scope, text, binding } = offer;
    const grant = { scope, binding, workspace, tool: part.tool, sessionId: call.root, grantedBy: by };
    return [offer.match, ...offer.also].map((match) =>
      create(GrantSchema, {
        ...grant,
        match,
        text: expires === 0 ? text : `${text}, at most until ${new Date(expires).toISOString()}`,
        id: newId("grt"),
        permission: request.permission,
        permissionId: request.id,
        created: now(),
        // The earlier of the two; 0 means never.
        expires: Math.min(offer.expires || expires, expires || offer.expires),
        agent: scope === GrantScope.AGENT ? request.agent : "",
      }),
    );
  });
  const [answered] = asks;
  if (grants.length === 0 && answered) throw noOffer(answered.request, "nothing to save");
  return grants;
}

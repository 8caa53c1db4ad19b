import { ConnectError } from "@connectrpc/connect";
import { ErrorInfoSchema } from "../../gen/google/rpc/error_details_pb.ts";
import { PermissionService } from "../../gen/opencode/tool/v1/permission_service_pb.ts";
import { PermissionReply, type PermissionRequest, type ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { Http2Client } from "../http2-client.ts";
import { inTurn, itemOf } from "./turns.ts";

/** Half of the approvers approve and half reject; resolves to the winning answers by request. Neighbours get the same request. */
export async function race(
  asks: readonly PermissionRequest[],
  people: readonly Http2Client[],
): Promise<{ replies: number; won: Map<string, PermissionReply[]> }> {
  const won = new Map(asks.map(({ id }) => [id, [] as PermissionReply[]]));
  let replies = 0;
  await Promise.all(
    people.map(async (client, place) => {
      const answer = place % 2 === 0 ? PermissionReply.ONCE : PermissionReply.REJECT;
      const own = asks.filter((_, index) => [index % people.length, (index + 1) % people.length].includes(place));
      await inTurn(own.length, 16, async (index) => {
        const ask = itemOf(own, index);
        if (await reply(client, ask, answer)) won.get(ask.id)?.push(answer);
        replies += 1;
      });
    }),
  );
  return { replies, won };
}

/** Each ask must have had one winner, and the call that asked must have ended as the winner said. */
export function checkOutcomes(
  asks: readonly PermissionRequest[],
  won: Map<string, PermissionReply[]>,
  parts: ToolPart[],
) {
  const ends = new Map(parts.map(({ sessionId, callId, state }) => [`${sessionId} ${callId}`, state.case]));
  for (const { id, sessionId, tool } of asks) {
    const winners = won.get(id) ?? [];
    const end = ends.get(`${sessionId} ${tool?.callId}`);
    const expected = winners[0] === PermissionReply.ONCE ? "completed" : "error";
    if (winners.length === 1 && end === expected) continue;
    throw new Error(`ask ${id} had ${winners.length} winners, the first with reply ${winners[0]}; its call is ${end}`);
  }
}

/** Returns true if this answer won, false if another one did; throws on anything else. */
async function reply(client: Http2Client, { id, sessionId }: PermissionRequest, answer: PermissionReply) {
  try {
    const response = { sessionId, permissionId: id, reply: answer };
    await client.connect(PermissionService.method.respondToPermission, response);
    return true;
  } catch (error) {
    const [why] = ConnectError.from(error).findDetails(ErrorInfoSchema);
    if (why?.reason === "ALREADY_ANSWERED") return false;
    throw error;
  }
}

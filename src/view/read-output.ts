import type { Client } from "@connectrpc/connect";
import type { ToolService } from "../../gen/opencode/tool/v1/tool_service_pb.ts";

/** A stored output (`toolgate-output:ID`) of a session tree. */
export interface OutputRef {
  sessionId: string;
  output: string;
}

/** A change of a file of 16 MiB has both versions, and a sign for each line. */
export const maxChangeBytes = 128 * 1024 * 1024;

/** Reads a stored output piece by piece, up to `maxBytes`. */
export async function readWhole(
  { tools }: { tools: Pick<Client<typeof ToolService>, "readToolOutput"> },
  ref: OutputRef,
  maxBytes = 16 * 1024 * 1024,
): Promise<Uint8Array<ArrayBuffer>> {
  const pieces: Uint8Array[] = [];
  let length = 0;
  for (let end = false; !end && length < maxBytes; ) {
    const piece = await tools.readToolOutput({
      ...ref,
      range: { case: "bytes", value: { offset: BigInt(length) } },
    });
    pieces.push(piece.data);
    length += piece.data.length;
    end = piece.end || piece.data.length === 0;
  }
  const whole = new Uint8Array(length);
  let at = 0;
  for (const piece of pieces) {
    whole.set(piece, at);
    at += piece.length;
  }
  return whole;
}

import type { ConsoleConnection } from "./connection.ts";

/** A stored output (`toolgate-output:ID`) of a session tree. */
export interface OutputRef {
  sessionId: string;
  output: string;
}

/** Reads a stored output piece by piece, up to `maxBytes`. */
export async function readWhole(
  { tools }: Pick<ConsoleConnection, "tools">,
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

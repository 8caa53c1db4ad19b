import type { ClientRequest, IncomingMessage } from "node:http";

/** Reads the text of an answer; throws `tooLong` if it has more bytes. */
export async function httpText(answer: IncomingMessage, maxBytes: number, tooLong: string): Promise<string> {
  const chunks: Buffer[] = [];
  let size = 0;
  for await (const chunk of answer as AsyncIterable<Buffer>) {
    size += chunk.length;
    if (size > maxBytes) throw new Error(tooLong);
    chunks.push(chunk);
  }
  return new TextDecoder().decode(Buffer.concat(chunks));
}

/** Waits for the answer to a request. Rejects also if the connection ends without one, as after an upgrade that nobody asked for. */
export function httpAnswer(request: ClientRequest): Promise<IncomingMessage> {
  return new Promise((resolve, reject) => {
    request
      .once("response", resolve)
      // Later errors reach the reader of the response.
      .on("error", reject)
      .once("close", () => reject(new Error("the connection ended without an answer")));
  });
}

import type { ClientRequest, IncomingMessage } from "node:http";

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

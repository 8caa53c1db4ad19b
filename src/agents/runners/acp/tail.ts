import type { Readable } from "node:stream";

const maxCharacters = 2_000;

/** Reads a stream to its end and keeps its last characters; returns the function that returns them. */
export function keepTail(stream: Readable): () => string {
  let tail = "";
  stream.setEncoding("utf8").on("data", (text: string) => {
    tail = (tail + text).slice(-maxCharacters);
  });
  stream.on("error", () => undefined);
  return () => tail.trim();
}

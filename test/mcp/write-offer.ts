import { rename, writeFile } from "node:fs/promises";

/** Writes what the server of `upstream-server.ts` offers; the server never sees a part of it. */
export async function writeOffer(file: string, offer: { tools: readonly object[]; behaviour: string }): Promise<void> {
  await writeFile(`${file}.new`, JSON.stringify(offer));
  await rename(`${file}.new`, file);
}

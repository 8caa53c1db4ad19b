import { mkdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { createHttp2Client, type Http2Client } from "./http2-client.ts";
import type { Processes, ServerProcess } from "./processes.ts";

/** Starts the service as users do, with its store on disk and its own tokens, and connects as the caller. */
export async function startToolgate(
  { folder, start }: Processes,
  name: string,
  flags: readonly string[] = [],
): Promise<{ server: ServerProcess; client: Http2Client }> {
  const [data, workspace] = [join(folder, name, "data"), join(folder, name, "workspace")];
  await mkdir(workspace, { recursive: true });
  const main = join(import.meta.dirname, "../src/main.ts");
  const serve = ["serve", "--listen", "127.0.0.1:0", "--data", data, "--workspace", workspace];
  const server = await start([...flags, main, ...serve]);
  const token = (await readFile(join(data, "tokens", "caller"), "utf8")).trim();
  return { server, client: createHttp2Client(server.url, { authorization: `Bearer ${token}` }) };
}

import { homedir } from "node:os";
import { join } from "node:path";

/** The local server's data folder, where it left its tokens: the client's only look at the environment. */
export function dataFolder(env: NodeJS.ProcessEnv = process.env): string {
  if (env.TOOLGATE_DATA) return env.TOOLGATE_DATA;
  return join(env.XDG_DATA_HOME || join(homedir(), ".local", "share"), "toolgate");
}

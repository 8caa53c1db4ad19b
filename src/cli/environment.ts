import { homedir } from "node:os";
import { join } from "node:path";

/** The local server's data folder, where it left its tokens. */
export function dataFolder(env: NodeJS.ProcessEnv = process.env): string {
  if (env.TOOLGATE_DATA) return env.TOOLGATE_DATA;
  return join(env.XDG_DATA_HOME || join(homedir(), ".local", "share"), "toolgate");
}

/** The command of the person's editor, as a shell takes it. */
export function editorCommand(env: NodeJS.ProcessEnv = process.env): string {
  return env.VISUAL || env.EDITOR || "vi";
}

/** Whether the terminal cannot move its cursor. */
export function isDumbTerminal(env: NodeJS.ProcessEnv = process.env): boolean {
  return (env.TERM ?? "dumb") === "dumb";
}

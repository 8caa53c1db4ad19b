/** The address of a server that was started without --listen. */
export const defaultUrl = "http://127.0.0.1:7420";

/** The command of the person's editor, to be run by a shell. */
export function editorCommand(env: NodeJS.ProcessEnv): string {
  return env.VISUAL || env.EDITOR || "vi";
}

/** Checks whether the terminal cannot move its cursor. */
export function isDumbTerminal(env: NodeJS.ProcessEnv): boolean {
  return (env.TERM ?? "dumb") === "dumb";
}

/** The command of the person's editor, to be run by a shell. */
export function editorCommand(env: NodeJS.ProcessEnv): string {
  return env.VISUAL || env.EDITOR || "vi";
}

/** Checks whether the terminal cannot move its cursor. */
export function isDumbTerminal(env: NodeJS.ProcessEnv): boolean {
  return (env.TERM ?? "dumb") === "dumb";
}

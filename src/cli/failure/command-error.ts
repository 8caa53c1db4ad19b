/** An error of a command, with the next step for the person. */
export class CommandError extends Error {
  override name = "CommandError";
  readonly exitCode: number;
  readonly next: string;
  constructor(message: string, next: string, exitCode: number, options?: ErrorOptions) {
    super(message, options);
    this.exitCode = exitCode;
    this.next = next;
  }
}

/** An argument or option that cannot be used. */
export class UsageError extends CommandError {
  override name = "UsageError";
  constructor(message: string, next: string, options?: ErrorOptions) {
    super(message, next, exitCodes.usage, options);
  }
}

/** The exit codes of the command line; scripts rely on these numbers. */
export const exitCodes = {
  ok: 0,
  failed: 1,
  usage: 2,
  refused: 3,
  cancelled: 4,
  lost: 5,
  unreachable: 6,
  commandFailed: 7,
} as const;

/** The exit codes as `toolgate --help` explains them. */
export const exitCodesHelp = `
Exit codes:
  0  completed
  1  the tool failed, an answer came too late, or a configuration or an audit has errors
  2  bad usage or input: unknown tool, session or permission request, input that does not fit
  3  refused: denied by a rule, rejected by a person, or not answered in time
  4  cancelled or timed out
  5  the outcome of the call is unknown: its executor was lost, or the store is another one
  6  the server is not reachable, or refuses your token
  7  the call completed, but its command did not: it exited with another code than 0, or a signal ended it`;

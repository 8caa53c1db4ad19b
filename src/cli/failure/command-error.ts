import { exitCodes } from "../exit-codes.ts";

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

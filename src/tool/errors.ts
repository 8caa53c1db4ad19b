/** The input does not fit the tool's schema. The message is for the model: it names each field and the next step. */
export class InvalidInput extends Error {
  override name = "InvalidInput";
  readonly issues: readonly { path: string; message: string }[];
  constructor(tool: string, issues: readonly { path: string; message: string }[]) {
    const lines = issues.map(({ path, message }) => `- ${path === "" ? "input" : path}: ${message}`);
    super(
      `Invalid arguments for ${tool}:\n${lines.join("\n")}\nPlease rewrite the input so it satisfies the expected schema.`,
    );
    this.issues = issues;
  }
}

/** The result does not fit the tool's output schema; the call fails. */
export class InvalidOutput extends Error {
  override name = "InvalidOutput";
  constructor(tool: string, issues: readonly { path: string; message: string }[]) {
    const lines = issues.map(({ path, message }) => `- ${path === "" ? "output" : path}: ${message}`);
    super(`The ${tool} tool returned a result that does not fit its own schema:\n${lines.join("\n")}`);
  }
}

/** An expected failure; its message is shown to the model. Tools throw it only for failures that they classify deliberately. */
export class ToolFailure extends Error {
  override name = "ToolFailure";
  /** True if the tool knows that it changed nothing, or took everything back. */
  readonly hadNoEffects: boolean;
  constructor(message: string, options: ErrorOptions & { hadNoEffects?: boolean } = {}) {
    super(message, options);
    this.hadNoEffects = options.hadNoEffects ?? false;
  }
}

/** A plugin's hook threw, timed out or returned an unusable result. It stops the call. */
export class HookFailure extends Error {
  override name = "HookFailure";
  readonly hook: string;
  readonly plugin: string;
  constructor(hook: string, plugin: string, why: string, options?: ErrorOptions) {
    super(`The hook ${hook} of the plugin ${plugin} stopped this: ${why}`, options);
    this.hook = hook;
    this.plugin = plugin;
  }
}

/** The approved state has changed; thrown before any effect. */
export class ChangedAfterApproval extends Error {
  override name = "ChangedAfterApproval";
}

/** The tool wrote more output than can be stored. */
export class OutputLimit extends Error {
  override name = "OutputLimit";
}

/** The process that did the tool's work was ended from outside, so its outcome is unknown. */
export class ExecutorLost extends Error {
  override name = "ExecutorLost";
}

/** The worker did not enter the body and never will, so the call may be started again, also by another worker. */
export class NotEntered extends Error {
  override name = "NotEntered";
}

/** The worker of a started call is connected to another replica, which goes on with the call. */
export class WorkerElsewhere extends Error {
  override name = "WorkerElsewhere";
}

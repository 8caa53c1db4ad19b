/** The input does not fit the tool's schema. The message is for the model: it names each field and says what to do. */
export class InvalidInput extends Error {
  override name = "InvalidInput";
  readonly issues: readonly { path: string; message: string }[];
  constructor(tool: string, issues: readonly { path: string; message: string }[]) {
    const lines = issues.map(({ path, message }) => `- ${path === "" ? "input" : path}: ${message}`);
    super(
      `The ${tool} tool was called with invalid arguments:\n${lines.join("\n")}\nPlease rewrite the input so it satisfies the expected schema.`,
    );
    this.issues = issues;
  }
}

/** The result does not fit the tool's own schema; the call does not complete. */
export class InvalidOutput extends Error {
  override name = "InvalidOutput";
  constructor(tool: string, issues: readonly { path: string; message: string }[]) {
    const lines = issues.map(({ path, message }) => `- ${path === "" ? "output" : path}: ${message}`);
    super(`The ${tool} tool returned a result that does not fit its own schema:\n${lines.join("\n")}`);
  }
}

/** An expected failure: the model is told the message. Leaf tools throw it only for what they deliberately classify. */
export class ToolFailure extends Error {
  override name = "ToolFailure";
}

/** A hook of a plugin threw, took too long or left what cannot be used: the call does not go on without it. */
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

/** What was approved is no longer there; thrown before anything was changed. */
export class ChangedAfterApproval extends Error {
  override name = "ChangedAfterApproval";
}

/** The tool wrote more than can be kept whole. */
export class OutputLimit extends Error {
  override name = "OutputLimit";
}

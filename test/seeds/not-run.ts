/** Code blocks that no test runs, by ID, with the reason. */
export const notRun: Readonly<Record<string, string>> = {
  "000.5": "opencode's own registry, shortened; ListTools filters by agent and provider (test/tool/listing.test.ts)",
  "000.6": "a drawing of the flow of a call",
  "000.9": "a drawing of the flow of an ask",
  "002.19": "opencode's own registry, shortened; 002.21 and 002.22 are the files that it loads",
  "002.25": "pseudo-code of a check that the engine does; rows 147 to 149 of the table test its outcomes",
  "002.26": "pseudo-code: two of its functions are not there. The limits are those of test/e2e/output.test.ts",
  "002.27":
    "a drawing of directories; outputs lie below the data directory, and models read them by toolgate-output:ID",
  "002.28": "a drawing of the flow of a call",
  "002.29": "commands of opencode's own repository",
  "002.30": "a shape of a log line; test/telemetry/calls.test.ts reads the lines of ours",
  "003.3": "opencode's own registry, with its own modules; 003.16 and 003.2 are files that it loads",
  "003.5": "opencode's own adapter, with its own modules; toolgate/ai is ours (test/package/ai.test.ts)",
  "003.6": "opencode's own loop of a model; test/package/ai.test.ts runs streamText over several steps",
  "003.9": "a drawing of the flow of a call",
  "003.10": "opencode's own loop of a session; a host does it by StreamTools (test/call/stream-tools.test.ts)",
  "003.12": "opencode's own engine; deny before ask is tested in test/policy",
  "003.13": "opencode's own engine; test/e2e/doom-loop.test.ts tests the third equal call",
  "003.14": "pseudo-code: three of its functions are not there. The limits are those of test/e2e/output.test.ts",
  "003.15":
    "an output of opencode; ours names toolgate-output:ID in place of a path, and keeps the end of a command's output",
  "003.18": "a line that a person types to a model",
  "004.1":
    "Effect's types, which the product does not use: defineTool takes zod schemas and promises, and is as opaque",
  "004.2": "Effect's types; the context of a tool has these four values as sessionId, agent, messageId and callId",
  "004.3": "an Effect program; server.register takes the same record (test/tool/laws.test.ts)",
  "004.4": "Effect's types; server.register takes the same record and returns the function that removes it",
  "004.5": "an Effect program over services of opencode; a plan asks in place of permission.assert",
};

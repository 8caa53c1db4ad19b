import { Argument, type Command } from "commander";
import { answerClaude, denyClaude, ownClaudeTool } from "../../dialect/claude.ts";
import { type ClaudeHook, readClaudeHook } from "../../dialect/claude-hook.ts";
import {
  answerOpencode,
  denyOpencode,
  type OpencodeHook,
  ownOpencodeTool,
  readOpencodeHook,
} from "../../dialect/opencode.ts";
import type { CliContext } from "../context.ts";
import { type HookKind, type HookOptions, runHook } from "../hook/run-hook.ts";
import { wholeNumber } from "./call.ts";

/** Defines `toolgate hook`. */
export function defineHook(command: Command, context: CliContext): void {
  command
    .description("Answer a hook of an agent: its JSON on stdin, the decision on stdout; every failure refuses")
    .addArgument(new Argument("<agent>", "the kind of agent").choices(Object.keys(kinds)))
    .option("--uid <number>", "the user that owns the service's socket on this machine", wholeNumber)
    .option("--certificate <sha256>", "the SHA-256 of the certificate of an https service")
    .option("--mcp <name>", "the name under which the agent knows the MCP server of Toolgate")
    .option("--timeout <seconds>", "the agent's limit for the hook; the answer comes 5 s earlier", wholeNumber, 660)
    .addHelpText("after", hookHelp)
    .action((agent: keyof typeof kinds) => {
      const options = command.optsWithGlobals<HookOptions>();
      return agent === "claude" ? runHook(context, claude, options) : runHook(context, opencode, options);
    });
}

const claude: HookKind<ClaudeHook> = {
  name: "claude",
  read: readClaudeHook,
  answer: answerClaude,
  deny: (hook, reason) => denyClaude(hook?.event ?? "PreToolUse", reason),
  blocks: (hook) => hook === undefined || !hook.event.startsWith("PostToolUse"),
  ownToolName: ownClaudeTool,
};

const opencode: HookKind<OpencodeHook> = {
  name: "opencode",
  read: readOpencodeHook,
  answer: answerOpencode,
  deny: (_hook, reason) => denyOpencode(reason),
  blocks: (hook) => hook === undefined || hook.event === "before",
  ownToolName: ownOpencodeTool,
};

const kinds = { claude, opencode };

const hookHelp = `
\`toolgate connect\` writes this command into the configuration of the agent, with the server, the file of the token and the proof of
the service: it reads them from its options only, since a project may set the environment of hooks. It verifies the service before it sends anything. On every failure it prints the agent's own refusal and
exits with 2, which blocks the tool.`;

/** A fault of the hook itself, which no code of ours can answer. */
export type HookFault = "is killed" | "prints nothing" | "prints no JSON" | "takes too long";

/** Faults that another program can bring about; the others need another program in place of ours. */
export const foreignFaults: readonly HookFault[] = ["is killed", "takes too long"];

/** A setting with which a project switches off the hooks of an agent, or what they rest on. */
interface OffSetting {
  /** Files of the project: JSON, TOML, or variables in `.env`. */
  readonly files: readonly string[];
  /** Keys that lead to the value, with dots. A last key with `*` at its end is the beginning of several. */
  readonly path: string;
  /** The value, or an item of the list there; absent: any. */
  readonly value?: boolean | string;
  /** Tools that run unasked then; absent: all. */
  readonly uses?: "terminal";
  /** True if it also switches off hooks in settings of the machine. */
  readonly reachesMachine?: boolean;
}

/**
 * Facts about an agent that its connector cannot change. `npm run test:agents` measures them, and writes the table in
 * docs/agents/README.md.
 */
export interface AgentFacts {
  readonly name: string;
  /** The version that was measured. */
  readonly version: string;
  /** Faults after which it runs the tool. */
  readonly runsAfter: readonly HookFault[];
  /** True if without a hook it asks a person by itself, as it does where it is run as its page says. */
  readonly asksItself?: boolean;
  /** Settings of the machine that can hold its hooks, for all its users; absent: it has none that we write. */
  readonly machineSettings?: string;
  /** Settings with which a project switches off the hooks of the user. */
  readonly off: readonly OffSetting[];
}

/** The name of our hook, where the agent has names of hooks. */
export const hookName = "toolgate";

/** The facts by kind of agent. */
export const agentFacts: Readonly<Record<string, AgentFacts | undefined>> = {
  claude: {
    name: "Claude Code",
    version: "2.1.330",
    machineSettings: "/etc/claude-code/managed-settings.json",
    runsAfter: ["prints nothing", "prints no JSON"],
    off: [
      { files: [".claude/settings.json", ".claude/settings.local.json"], path: "disableAllHooks", value: true },
      // A library that the dynamic loader adds to the shell of the hook ends it before our program starts.
      { files: [".claude/settings.json", ".claude/settings.local.json"], path: "env.LD_*" },
    ],
  },
  codex: {
    name: "Codex",
    version: "0.169.0",
    machineSettings: "/etc/codex/requirements.toml",
    runsAfter: ["is killed", "prints nothing", "prints no JSON", "takes too long"],
    off: [
      { files: [".codex/config.toml"], path: "features.hooks", value: false },
      { files: [".codex/config.toml"], path: "features.unified_exec_tty", value: true, uses: "terminal" },
    ],
  },
  copilot: {
    name: "GitHub Copilot CLI",
    version: "1.0.102",
    runsAfter: [],
    asksItself: true,
    off: [
      {
        files: [".github/copilot/settings.json", ".github/copilot/settings.local.json"],
        path: "disableAllHooks",
        value: true,
      },
    ],
  },
  gemini: {
    name: "Gemini CLI",
    version: "0.61.0",
    machineSettings: "/etc/gemini-cli/settings.json",
    runsAfter: ["is killed", "prints nothing", "prints no JSON", "takes too long"],
    off: [
      { files: [".gemini/settings.json"], path: "hooksConfig.enabled", value: false },
      { files: [".gemini/settings.json"], path: "hooksConfig.disabled", value: hookName, reachesMachine: true },
      // Gemini CLI itself reads them, and starts every hook with them.
      { files: [".gemini/.env", ".env"], path: "LD_*", reachesMachine: true },
    ],
  },
  opencode: {
    name: "opencode",
    version: "1.18.33",
    runsAfter: [],
    off: [],
  },
};

/** A setting with which a project switches off the hooks of an agent, or what they rest on. */
interface OffSetting {
  /** Files of the project, in JSON or TOML. */
  readonly files: readonly string[];
  /** Keys that lead to the value, with dots. */
  readonly path: string;
  readonly value: boolean;
}

/** Agents whose hooks a project can switch off, by kind: name and settings. */
export const projectSettings: Readonly<
  Record<string, { readonly name: string; readonly off: readonly [OffSetting, ...OffSetting[]] } | undefined>
> = {
  claude: {
    name: "Claude Code",
    off: [{ files: [".claude/settings.json", ".claude/settings.local.json"], path: "disableAllHooks", value: true }],
  },
  codex: {
    name: "Codex",
    off: [
      { files: [".codex/config.toml"], path: "features.hooks", value: false },
      { files: [".codex/config.toml"], path: "features.unified_exec_tty", value: true },
    ],
  },
  copilot: {
    name: "GitHub Copilot CLI",
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
    off: [{ files: [".gemini/settings.json"], path: "hooksConfig.enabled", value: false }],
  },
};

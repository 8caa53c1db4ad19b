import { shellCommand } from "../../view/words.ts";

/** Paths of an installed service. */
export const installed = {
  user: "toolgate",
  config: "/etc/toolgate/toolgate.toml",
  unit: "/etc/systemd/system/toolgate.service",
  data: "/var/lib/toolgate",
  gitSettings: "/etc/gitconfig",
} as const;

/** Content of git's system file where there is none. */
export const gitSettingsText =
  "# Written by `toolgate install`: in the sandbox of commands Toolgate adds settings to this file, which must exist for that.\n";

/** A workspace root of the service. */
export interface InstalledWorkspace {
  readonly name: string;
  readonly directory: string;
}

/** Agents for `task` in addition to the built-in `explore`, and a program that runs them: lines to uncomment. */
const taskAgents = [
  "# Agents for the tool task, and a program that speaks ACP and runs them. Uncomment what you use, then restart the service.",
  "# [agent.librarian]",
  '# description = "Finds documentation and examples in other code."',
  '# permission = { "*" = "deny", read = "allow", grep = "allow", glob = "allow", webfetch = "ask", websearch = "ask", codesearch = "ask" }',
  "# [agent.oracle]",
  '# description = "Answers hard questions about the code, and changes nothing."',
  '# permission = { "*" = "deny", read = "allow", grep = "allow", glob = "allow" }',
  "# [agent.general]",
  '# description = "Does a task of several steps, by the rules of all agents."',
  "# [agent_runner.opencode]",
  '# command = "opencode"',
  '# args = ["acp"]',
  '# agents = ["explore", "librarian", "oracle", "general"]',
];

/** Returns the configuration of the service. */
export function configText(workspaces: readonly InstalledWorkspace[]): string {
  const roots = workspaces.map(({ name, directory }) => `${name} = ${JSON.stringify(directory)}`);
  return [
    "# Written by `toolgate install`; change it as you like, then: systemctl reload toolgate",
    'listen = "127.0.0.1:7420"',
    `data = "${installed.data}"`,
    "# The user of an agent cannot answer the agent's requests.",
    "require_other_user = true",
    "",
    "[workspace]",
    ...roots,
    "",
    ...taskAgents,
    "",
  ].join("\n");
}

/** Returns the systemd unit; `program` are the words that run this program, by absolute paths. */
export function unitText(program: readonly string[], workspaces: readonly InstalledWorkspace[]): string {
  const command = [...program, "serve", "--config", installed.config].map(unitWord).join(" ");
  const writable = workspaces.map(({ directory }) => `ReadWritePaths=${unitWord(directory)}`);
  return `${[
    "[Unit]",
    "Description=Toolgate, which runs tools for AI agents",
    "After=network.target",
    "",
    "[Service]",
    "Type=exec",
    `User=${installed.user}`,
    `Group=${installed.user}`,
    `ExecStart=${command}`,
    "ExecReload=/bin/kill -HUP $MAINPID",
    "Restart=on-failure",
    "TimeoutStopSec=60",
    "Environment=PATH=/usr/local/bin:/usr/bin:/bin",
    "StateDirectory=toolgate",
    "StateDirectoryMode=0700",
    "UMask=0007",
    "# The service limits memory and processes of each command by a control group below the one of this unit.",
    "Delegate=memory pids",
    "",
    "# Commands of tools run in a sandbox of their own, which needs user namespaces and an unmasked /proc: settings that change",
    "# those (ProtectKernelTunables, ProtectKernelLogs, ProtectHostname, ProtectProc, RestrictNamespaces) are left out.",
    "NoNewPrivileges=yes",
    "CapabilityBoundingSet=",
    "AmbientCapabilities=",
    "ProtectSystem=strict",
    ...writable,
    "PrivateTmp=yes",
    "ProtectClock=yes",
    "ProtectKernelModules=yes",
    "LockPersonality=yes",
    "RestrictRealtime=yes",
    "RestrictSUIDSGID=yes",
    "SystemCallArchitectures=native",
    "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK",
    "",
    "[Install]",
    "WantedBy=multi-user.target",
  ].join("\n")}\n`;
}

/** Quotes a word as units do; `%` and `$` have a meaning there. */
function unitWord(word: string): string {
  const plain = word.replaceAll("%", "%%").replaceAll("$", "$$$$");
  return /^[\w@%$+=:,./-]+$/.test(plain) ? plain : JSON.stringify(plain);
}

/** Returns the commands that give the service access to a workspace, and to the directories above it. */
export function aclCommands(directory: string, owner: string, closedParents: readonly string[]): string[][] {
  const { user } = installed;
  return [
    ...closedParents.map((parent) => ["setfacl", "-m", `u:${user}:x`, parent]),
    ["setfacl", "-R", "-m", `u:${user}:rwX,d:u:${user}:rwX,d:u:${owner}:rwX`, directory],
  ];
}

/** Returns what to do after the installation. */
export function nextSteps(): string[] {
  const { data } = installed;
  return [
    "systemctl daemon-reload && systemctl enable --now toolgate",
    shellCommand([
      "runuser",
      "-u",
      installed.user,
      "--",
      "toolgate",
      "token",
      "create",
      "--role",
      "approver",
      "--data",
      data,
    ]),
  ];
}

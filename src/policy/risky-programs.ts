import { RiskKind } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { optionsOf } from "./shell/behaviour.ts";
import type { Command } from "./shell/command.ts";
import { interpreter } from "./shell/interpreters.ts";

const { CREDENTIALS, DOWNLOADED_CODE, DELETE, PUBLISH, OUTSIDE, NETWORK } = RiskKind;

/** A program, its first words as a pattern, and the risks of commands that match; options may stand between the words. */
type Row = readonly [program: string, words: RegExp, ...risks: RiskKind[]];

const any = /^/;

/** Risks of known programs. All rows that match count. */
const rows: readonly Row[] = [
  ["rm rmdir unlink shred truncate wipefs dropdb trash srm", any, DELETE],
  ["mv", / \/dev\/null$/, DELETE],
  ["cp", /(^| )\/dev\/null [^-]/, DELETE],
  ["dd", /(^| )of=/, DELETE],
  ["find fd", / -delete\b/, DELETE],
  ["rsync", / --(del(?!ay)|remove-s)/, DELETE],
  ["tar", / --rem/, DELETE],
  ["git", /^(rm|filter-branch|filter-repo|update-ref -d)\b/, DELETE],
  ["git", /^clean(?!.* (-\w*n\w*|--dry-run)\b)/, DELETE],
  ["git", /^(reset\b.* --hard|restore\b.* (-W|--worktree))\b/, DELETE],
  [
    "git",
    /^(checkout( .*)? (--|\.)( |$)|(checkout|switch) (.* )?-(f|-force|-discard-changes)\b|restore\b(?!.* (--staged|-S)\b))/,
    DELETE,
  ],
  [
    "git",
    /^(branch\b.* (-[dD]|--delete)\b|tag\b.* (-d|--delete)\b|stash (drop|clear)|worktree remove|reflog expire|gc\b.*--prune)/,
    DELETE,
  ],
  ["git", /^push\b.* (--delete|-d|--mirror|--prune|-f|--force\S*)( |$)|^push\b.* [:+]\S/, DELETE],
  [
    "docker podman",
    /^(rm|rmi|(system|volume|image|container|network|builder) (prune|rm)|compose down\b.* (-v|--volumes))\b/,
    DELETE,
  ],
  ["kubectl oc", /^(delete|drain)\b/, DELETE, PUBLISH],
  ["helm", /^(uninstall|delete)\b/, DELETE, PUBLISH],
  ["terraform tofu pulumi", /^(destroy|down)\b/, DELETE, PUBLISH],
  ["gh glab", /\b(delete|remove)\b/, DELETE, PUBLISH],
  ["aws", /\b(s3 (rm|rb)|delete-\S+|terminate-\S+)( |$)/, DELETE, PUBLISH],
  ["gcloud az doctl fly flyctl heroku", /\b(delete|destroy|remove)\b/, DELETE, PUBLISH],
  ["ansible ansible-playbook", /^(?!.*--(check|list-\w+|syntax-check)\b)/, PUBLISH],
  ["docker podman", /^(config|secret) inspect\b/, CREDENTIALS],
  ["redis-cli", /\b(flushall|flushdb|del)\b/i, DELETE],
  ["crontab", /(^| )-r\b/, DELETE],
  ["git", /^push\b(?!.* (-n|--dry-run)\b)/, PUBLISH],
  ["git", /^send-email\b/, PUBLISH],
  ["npm pnpm yarn bun lerna", /^(publish|unpublish|deprecate|dist-tag|version .*--push)\b/, PUBLISH, NETWORK],
  ["cargo poetry uv flit hatch rye", /^publish\b/, PUBLISH, NETWORK],
  ["gem docker podman helm", /^push\b/, PUBLISH, NETWORK],
  ["docker podman", / --push\b/, PUBLISH, NETWORK],
  ["twine", /^upload\b/, PUBLISH, NETWORK],
  [
    "gh glab hub",
    /^\S+ (create|merge|close|comment|edit|review|upload|sync|fork|rename|archive|transfer|set|run)\b/,
    PUBLISH,
  ],
  ["gh", /^api\b.* (-X|--method|-f|-F|--field|--raw-field|--input)\b/, PUBLISH],
  [
    "kubectl oc",
    /^(apply|create|patch|replace|scale|rollout (?!status|history)|set|edit|annotate|label|cp|exec|expose)\b(?!.* --dry-run)/,
    PUBLISH,
  ],
  ["helm", /^(install|upgrade|rollback)\b/, PUBLISH],
  ["terraform tofu pulumi", /^(apply|up|import)\b/, PUBLISH],
  ["aws", /\bs3 (cp|mv|sync)\b.* s3:|\b(create|put|update|run|start|publish|send)-\S+/, PUBLISH],
  ["gsutil rclone", /^(-m )?(cp|mv|sync|rsync|copy)\b/, PUBLISH, NETWORK],
  [
    "vercel netlify firebase fly flyctl wrangler surge serverless sls cdk eb now",
    /^$|\b(deploy|--prod|publish)\b/,
    PUBLISH,
    NETWORK,
  ],
  ["heroku gcloud az", /\b(deploy|create|update|push|release)\b/, PUBLISH],
  ["scp rsync", /(^| )[\w.@-]+:\S*$/, PUBLISH, NETWORK],
  ["curl", / (-X ?|--request[ =])(POST|PUT|PATCH|DELETE)\b/i, PUBLISH],
  ["curl", / (-d|-F|-T|--data\S*|--form\S*|--upload-file|--json)\b/, PUBLISH],
  ["wget", / --(post-\w+|method|body-\w+)\b/, PUBLISH],
  ["http https xh", /^(-\S+ )*(POST|PUT|PATCH|DELETE)\b/, PUBLISH],
  ["mail mailx sendmail mutt", any, PUBLISH, NETWORK],
  ["npx pnpx bunx uvx", any, DOWNLOADED_CODE, NETWORK],
  [
    "npm",
    /^(exec|x|init|create|install|i|ci|add|update|up|install-test|it|clean-install|rebuild)\b/,
    DOWNLOADED_CODE,
    NETWORK,
  ],
  ["pnpm yarn bun", /^(dlx|x|create|init|install|i|add|update|up|upgrade)\b/, DOWNLOADED_CODE, NETWORK],
  ["yarn pnpm bun", /^(--\S+( |$))*$/, DOWNLOADED_CODE, NETWORK],
  ["pip pipx conda mamba", /^(install|run|create|update|upgrade|inject)\b/, DOWNLOADED_CODE, NETWORK],
  ["python", /^-m pip install\b/, DOWNLOADED_CODE, NETWORK],
  [
    "uv poetry pdm rye pipenv",
    /^(pip install|add|sync|install|update|run --with|tool (run|install))\b/,
    DOWNLOADED_CODE,
    NETWORK,
  ],
  [
    "cargo gem brew apt apt-get dnf yum apk pacman snap composer bundle nix-env port choco",
    /^(-\S+ )*(install|add|update|upgrade|require|-S\w*|-i)\b/,
    DOWNLOADED_CODE,
    NETWORK,
  ],
  // These run commands, use another configuration, or bring files instead of packages.
  [
    "apt apt-get dnf yum apk pacman zypper",
    /(^| )(download|source|changelog|--?(o|c|option|config|root|installroot|hookdir|setopt|config-file|releasever)(=| |$))/,
    DOWNLOADED_CODE,
    NETWORK,
  ],
  ["go", /^(install|get)\b|^run \S+@/, DOWNLOADED_CODE, NETWORK],
  ["go", /^list .*@/, NETWORK],
  ["deno", /^(run|install|x)\b.*(https?:|npm:|jsr:)/, DOWNLOADED_CODE, NETWORK],
  ["docker podman", /^(run|compose (up|run)|build|buildx)\b/, DOWNLOADED_CODE],
  ["nix", /^(run|shell|develop|build)\b/, DOWNLOADED_CODE, NETWORK],
  ["gpg", / ?--(export-secret|import|delete-secret)/, CREDENTIALS],
  [
    "ssh-add ssh-keygen ssh-copy-id pass op secret-tool security vault bw lpass keyring kinit passwd chpasswd gnome-keyring-daemon",
    any,
    CREDENTIALS,
  ],
  ["gh glab", /^auth\b/, CREDENTIALS],
  ["gh glab", /^secret\b/, CREDENTIALS, PUBLISH],
  [
    "aws",
    /^(configure|sts|sso|ecr get-login\S*|secretsmanager|ssm get-parameter\S*|iam create-access-key)\b/,
    CREDENTIALS,
  ],
  ["gcloud", /^(auth|iam service-accounts keys|secrets)\b/, CREDENTIALS],
  ["az", /^(account get-access-token|login|keyvault)\b/, CREDENTIALS],
  ["kubectl oc", /^(get|describe|create|edit)\b.*[ ,]secrets?\b|^config view\b.*--raw/i, CREDENTIALS],
  ["npm pnpm yarn", /^(token|login|adduser|logout|npm login)\b|^config (set|get) .*auth/i, CREDENTIALS],
  [
    "docker podman helm cargo heroku vercel netlify firebase twine",
    /^(login|registry login|auth:token)\b/,
    CREDENTIALS,
  ],
  ["git", /^(credential\S*|config\b.* credential\.)/, CREDENTIALS],
  ["printenv", any, CREDENTIALS],
  ["env", /^$/, CREDENTIALS],
  [
    "sudo doas su pkexec runuser chroot nsenter unshare systemctl service systemd-run launchctl mount umount useradd usermod visudo crontab at iptables nft sysctl modprobe insmod reboot shutdown",
    any,
    OUTSIDE,
  ],
  [
    "apt apt-get dnf yum apk pacman snap brew port choco",
    /\b(install|remove|purge|upgrade|add|del|-S\w*|-R\w*)\b/,
    OUTSIDE,
  ],
  ["npm pnpm", / (-g|--global)\b/, OUTSIDE],
  ["git", /^config\b.* --(global|system)\b/, OUTSIDE],
  [
    "docker podman",
    /^run\b.* (--privileged|-v ?\/|--volume[ =]\/|--mount\b|--pid[ =]host|--net(work)?[ =]host)/,
    OUTSIDE,
  ],
  ["ssh mosh", any, OUTSIDE, NETWORK],
  [
    "curl wget aria2c fetch http https xh lynx w3m links ftp lftp sftp scp nc ncat netcat socat telnet ping traceroute dig nslookup host whois nmap rclone gsutil",
    any,
    NETWORK,
  ],
  [
    "git",
    /^(push|pull|fetch|clone|ls-remote|remote update|submodule (update|add)|lfs (pull|push|fetch)|archive .*--remote|send-email)\b/,
    NETWORK,
  ],
  [
    "gh glab hub aws gcloud az kubectl oc helm heroku doctl fly flyctl vercel netlify firebase wrangler terraform tofu pulumi ansible ansible-playbook",
    any,
    NETWORK,
  ],
  ["docker podman", /^(pull|push|login|run|build|buildx|compose (up|pull|build))\b/, NETWORK],
  ["npm pnpm yarn bun", /^(view|info|audit|search|outdated|login|whoami|ping|token|dist-tag|pack [^.])\b/, NETWORK],
];

const byProgram = new Map<string, Row[]>();
for (const row of rows) {
  for (const name of row[0].split(" ")) byProgram.set(name, [...(byProgram.get(name) ?? []), row]);
}

/** Length of the words that are matched; what deletes or publishes stands at the beginning of a command. */
const maxLength = 8_192;

/** Returns the risks of one command by its words. */
export function commandRisks([program = "", ...rest]: readonly string[]): RiskKind[] {
  const name = programName(program);
  const words = rest.join(" ").slice(0, maxLength);
  // Options of the program before its sub-command, such as `git -C DIR push`.
  const plain = withoutOptions(name, rest);
  const spellings = [
    words,
    plain.join(" ").slice(0, maxLength),
    ...byOptions(name === "git" ? plain[0] : "", [program, ...rest]),
  ];
  const known = (byProgram.get(name) ?? []).filter(([, pattern]) =>
    spellings.some((words) => pattern.test(words) || pattern.test(` ${words}`)),
  );
  return [
    ...known.flatMap(([, , ...risks]) => risks),
    ...(/^mkfs/.test(name) ? [DELETE] : []),
    ...(deletingSql.test(words) && !isText.has(name) ? [DELETE] : []),
    ...(interpreter(name) !== undefined && deletesByCode(words) ? [DELETE] : []),
    ...(/\b(https?|ftp|wss?):\/\//i.test(words) &&
    !isText.has(name) &&
    !(name === "git" && /^(commit|tag|log)/.test(words))
      ? [NETWORK]
      : []),
  ];
}

const deletingSql = /\b(drop|truncate)\s+(table|database|schema)\b|\bdelete\s+from\b/i;

/** Calls by which code deletes files. */
const deletingCode =
  /\b(rmtree|unlink(Sync)?|rm(dir)?Sync|removedirs|remove_tree|rm_rf?|rm_f)\b|\bos\.(remove|rmdir|truncate)\b|\bfs(\.promises)?\.(rm|rmdir|unlink|truncate)\b|\b(File|Dir|FileUtils)\.(delete|unlink|remove|rm)|\.rmdir\(/;

/** Checks if code calls a function that deletes files. */
export const deletesByCode = (code: string) => deletingCode.test(code);

/** Programs that only print, search or compare their words. */
const isText = new Set("echo printf grep egrep fgrep rg ag sed test [ true false : expr".split(" "));

/** Checks if a program only prints, searches or compares its words. */
export const isTextProgram = (name: string) => isText.has(name);

const withValue: ReadonlyMap<string, RegExp> = new Map([
  ["git", /^(-C|-c|--git-dir|--work-tree|--namespace)$/],
  ["npm", /^(--prefix|-w|--workspace)$/],
  ["docker", /^(-H|--host|--context|--config)$/],
  ["kubectl", /^(-n|--namespace|--context|--kubeconfig)$/],
  ["aws", /^(--profile|--region|--endpoint-url)$/],
]);

/** Removes the options before the first operand. */
function withoutOptions(name: string, words: readonly string[]): readonly string[] {
  let at = 0;
  while (words[at]?.startsWith("-")) at += withValue.get(name)?.test(words[at] ?? "") ? 2 : 1;
  return words.slice(at);
}

/**
 * Returns the sub-command, if there is one, with the options in their full names: `reset --har` is `reset --hard`. The value of an
 * option is no option, and one that a later `--no-…` lifts is left out. Empty if the options of the program are not known.
 */
function byOptions(subcommand = "", words: readonly string[]): string[] {
  const word = (value: string) => ({ value, glob: false, status: false });
  const options = optionsOf(words.map(word));
  if (options === undefined) return [];
  const names = options.map(({ name, value }) => (value && /^[A-Z]+$/.test(value.value) ? name + value.value : name));
  const isLifted = (name: string, at: number) =>
    names.some((other, i) => i > at && other.startsWith("--no-d") && /^(-n|--dry-run)$/.test(name));
  return [[subcommand, ...names.filter((name, at) => !isLifted(name, at))].join(" ").slice(0, maxLength)];
}

/** Returns the files to which a command writes what it downloads. */
export function downloadsTo([program = "", ...words]: readonly string[]): string[] {
  if (!downloaders.test(programName(program))) return [];
  return words.flatMap((word, i) => {
    if (/^(-\w*[oO]|--output|--output-document)$/.test(word)) return [plain(words[i + 1] ?? "")];
    const attached = /^--output(?:-document)?=(.+)$/.exec(word)?.[1];
    const last = /^[a-z]+:\/\/[^?#]*\/([^/?#]+)/i.exec(word)?.[1];
    return [attached, last].flatMap((file) => (file === undefined ? [] : [plain(file)]));
  });
}

/** Checks if a command runs what another command downloads, through a pipe, a file or a substitution. */
export function runsDownloads(command: Command, files: ReadonlySet<string>): boolean {
  const { pipeline, scripts, mentions, opaque, inner } = command;
  if (inner.some((one) => runsDownloads(one, files))) return true;
  if (pipeline?.stages.some((words) => words.some((word) => downloaders.test(programName(word))))) return true;
  if (scripts.some((script) => files.has(plain(script)))) return true;
  const names = mentions.map(([name = ""]) => programName(name));
  // What was not understood may join its commands in any way.
  return opaque !== undefined && names.some((name) => downloaders.test(name)) && names.some(runsText);
}

/** Checks if a command downloads, or runs what it is given. */
export function takesPartInDownload([program = ""]: readonly string[]): boolean {
  return downloaders.test(programName(program)) || runsText(programName(program));
}

const runsText = (name: string) => interpreter(name) !== undefined || /^(eval|source|\.)$/.test(name);

const downloaders = /^(curl|wget|aria2c|fetch|https?|xh)$/;

const plain = (path: string) => path.replace(/^(\.\/)+/, "");

/** Returns the name of a program without directory and version. */
export function programName(program: string): string {
  const name = program.slice(program.lastIndexOf("/") + 1);
  return /^(python|pip|node|ruby|perl|php)[\d.]+$/.test(name) ? name.replace(/[\d.]+$/, "") : name;
}

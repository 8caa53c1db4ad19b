import { describe, expect, test } from "vitest";
import { PermissionAction as Action, PermissionLayer as Layer } from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { ExpandedAsk } from "../../src/policy/model.ts";
import { createPolicy } from "../../src/policy/policy.ts";
import { fromConfig } from "../../src/policy/rules.ts";

const policy = createPolicy({ guard: { dataDirectory: "/data" }, home: "/home/u" });
const layers = { wide: [{ layer: Layer.CONFIG, rules: fromConfig("allow", "/home/u") }], narrow: [] };

function judged(permission: string, path: string, rest: Partial<ExpandedAsk> = {}) {
  const [decision] = policy.judge({ permission, patterns: [path], ...rest }, layers);
  return decision;
}

describe("a change of a file that runs implicitly always asks, whatever rules allow:", () => {
  test.each([
    [
      "git",
      [".git/hooks/pre-commit", ".git/config", "sub/.git/info/attributes", ".git", ".gitmodules", "/home/u/.gitconfig"],
    ],
    ["in other letters", [".GIT/Hooks/pre-commit", ".g\u200cit/config", "GIT~1/config", "\uff0egit/config"]],
    ["programs", ["a/.gdbinit", ".Rprofile", "gradlew", "flake.nix", "sitecustomize.py", ".yarn/releases/yarn.cjs"]],
    [
      "more editors and agents",
      ["x.code-workspace", ".helix/config.toml", ".kiro/a", ".qwen/settings.json", ".mise.local.toml"],
    ],
    [
      "hooks",
      [
        ".git-hooks/x",
        ".hg/hgrc",
        ".jj/repo/config",
        ".overcommit.yml",
        ".husky/pre-push",
        "a/.githooks/x",
        "lefthook.yml",
        ".pre-commit-config.yaml",
      ],
    ],
    [
      "shells",
      ["/home/u/.bashrc", ".profile", ".zshenv", "/home/u/.config/fish/config.fish", ".envrc", "/etc/profile.d/x.sh"],
    ],
    ["the system", ["/etc/cron.d/x", "/etc/crontab", "/home/u/.config/systemd/user/x.service", "/etc/sudoers.d/x"]],
    ["CI", [".github/workflows/ci.yml", ".gitlab-ci.yml", ".circleci/config.yml", "Jenkinsfile", "a/.travis.yml"]],
    ["package managers", [".npmrc", "web/.yarnrc.yml", ".cargo/config.toml", ".mvn/extensions.xml", "pip.conf"]],
    ["editors", [".vscode/tasks.json", ".idea/workspace.xml", ".devcontainer/devcontainer.json", ".vimrc"]],
    [
      "agents",
      [
        ".claude/settings.json",
        ".cursor/mcp.json",
        ".opencode/tool/x.ts",
        ".opencode/plans/x.ts",
        ".opencode/plans/a/x.md",
        "opencode.json",
        ".mcp.json",
      ],
    ],
    ["keys", ["/home/u/.ssh/authorized_keys", ".gnupg/x", ".netrc"]],
  ])("%s", (_, paths) => {
    for (const path of paths) {
      expect([path, judged("edit", path)]).toMatchObject([path, { action: Action.ASK, layer: Layer.ENGINE }]);
    }
  });

  test("the reason describes the file", () => {
    expect(judged("edit", ".github/workflows/ci.yml")?.reason).toBe(
      "engine: .github/workflows/ci.yml is a build that a CI service runs: always asked",
    );
  });

  test.each([
    "src/git/hooks.ts",
    ".opencode/plans/next.md",
    "/srv/app/.opencode/plans/next.md",
    "config",
    "docs/.github/README.md",
    ".github/CODEOWNERS",
    "profile",
    "hooks/x",
    ".gitignore",
    "package.json",
    "x.git/config",
  ])("%s is not protected", (path) => expect(judged("edit", path)?.action).toBe(Action.ALLOW));
});

describe("reading asks although rules allow it:", () => {
  test.each<[string, string, Partial<ExpandedAsk>]>([
    ["a key", "/home/u/.ssh/id_ed25519", {}],
    ["credentials", "/home/u/.aws/credentials", {}],
    ["a process", "/proc/17/environ", {}],
    ["a device", "/dev/sda", {}],
    ["the kernel", "/sys/kernel/x", {}],
    ["what the tool says must be asked", "notes.txt", { alwaysAsk: "has other names" }],
  ])("%s", (_, path, rest) => {
    expect(judged("read", path, rest)).toMatchObject({ action: Action.ASK, layer: Layer.ENGINE });
  });

  test.each<[string, string, Partial<ExpandedAsk>]>([
    ["a setting that is protected from changes only", ".npmrc", {}],
    ["nothing at all", "/dev/null", {}],
  ])("but not of %s", (_, path, rest) => {
    expect(judged("read", path, rest)?.action).toBe(Action.ALLOW);
  });

  test("reading the service's own process is denied", () => {
    expect(judged("read", `/proc/${process.pid}/environ`)).toMatchObject({ action: Action.DENY, layer: Layer.ENGINE });
  });

  test("the directory of a process asks too", () => {
    expect(judged("external_directory", "/proc/17/*", { paths: ["/proc/17"] })?.action).toBe(Action.ASK);
    expect(judged("external_directory", "/usr/share/*", { paths: ["/usr/share"] })?.action).toBe(Action.ALLOW);
  });
});

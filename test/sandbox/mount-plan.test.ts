import { dirname } from "node:path";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { PermissionAction, PermissionLayer } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { createFileDecisions, type FileUse } from "../../src/policy/file-decisions.ts";
import { type FileRules, rulesThatName } from "../../src/policy/file-rules.ts";
import { defaultRules } from "../../src/policy/layers.ts";
import type { LayerRules } from "../../src/policy/model.ts";
import { createPolicy } from "../../src/policy/policy.ts";
import { liveNames, protectedFile } from "../../src/policy/protected-files.ts";
import { fromConfig, type Rule, type RuleConfig } from "../../src/policy/rules.ts";
import { isGitCode, pathInGitDirectory } from "../../src/sandbox/git-directories.ts";
import { type MountPlan, planMounts } from "../../src/sandbox/mount-plan.ts";
import type { NameTree } from "../../src/sandbox/name-tree.ts";
import type { PlanInput } from "../../src/sandbox/plan-input.ts";
import { restrictedPaths } from "../../src/sandbox/plan-thread.ts";

const root = "/project";
const home = "/home/me";
const guard = { dataDirectory: "/nowhere" };

/** Rules of a test: after the built-in ones, and a list that can only narrow. */
interface TestRules {
  config: readonly Rule[];
  narrow?: readonly Rule[];
}

function fileRules({ config, narrow = [] }: TestRules): FileRules {
  const list = (layer: PermissionLayer, rules: readonly Rule[]): LayerRules => ({ layer, rules });
  return {
    wide: [list(PermissionLayer.DEFAULTS, defaultRules), list(PermissionLayer.CONFIG, config)],
    narrow: narrow.length === 0 ? [] : [list(PermissionLayer.WORKSPACE, narrow)],
    ...{ guard, home, connectorFiles: [] },
  };
}

/** A tree of these files, by paths relative to the root. */
function treeOf(files: readonly string[]): NameTree {
  const paths = files.map((file) => `${root}/${file}`);
  const list = (directory: string) => {
    const below = paths
      .filter((path) => path.startsWith(`${directory}/`))
      .map((path) => path.slice(directory.length + 1));
    if (below.length === 0 && directory !== root) return undefined;
    const directories = below.filter((path) => path.includes("/")).map((path) => path.split("/", 1)[0] ?? "");
    return { directories: [...new Set(directories)], files: below.filter((path) => !path.includes("/")), links: [] };
  };
  return {
    list,
    select(directory, filter) {
      const found = list(directory);
      const names = [...(found?.directories ?? []), ...(found?.files ?? [])];
      return new Map(names.map((name) => [name, filter.test(name)] as const).filter(([, bits]) => bits !== 0));
    },
  };
}

/** Permissions of a call, and settings of the plan. */
interface PlanOptions {
  read?: string[];
  edit?: string[];
  editTrees?: string[];
  tracked?: string[];
  maxMasks?: number;
  maxDirectories?: number;
  isWritable?: boolean;
  tree?: NameTree;
}

const planOf = (...input: Parameters<typeof inputOf>): MountPlan => planMounts(inputOf(...input));

function inputOf(
  rules: TestRules,
  files: readonly string[],
  {
    read = [],
    edit = [],
    editTrees = [],
    tracked = [],
    maxMasks = 100,
    maxDirectories = 1_000,
    isWritable = true,
    tree = treeOf(files),
  }: PlanOptions = {},
): PlanInput {
  const absolute = (paths: readonly string[]) => new Set(paths.map((path) => `${root}/${path}`));
  return {
    roots: [{ absolute: root, pattern: ".", isWritable }],
    tree,
    decisions: createFileDecisions(fileRules(rules)),
    codeDecisions: createFileDecisions(rulesThatName(fileRules(rules))),
    allowed: { read: absolute(read), edit: absolute(edit) },
    hidden: new Set(),
    editTrees: [...absolute(editTrees)],
    hasTrackedFiles: (directory) => tracked.some((path) => `${root}/${path}`.startsWith(`${directory}/`)),
    maxMasks,
    maxDirectories,
  };
}

const isAt = (path: string, place: string) => path === place || path.startsWith(`${place}/`);
const covers = (covered: readonly { path: string }[], path: string) => covered.some((one) => isAt(path, one.path));

/** Reads a plan as the kernel does: what is mounted over a path decides. */
function accessOf(plan: MountPlan, path: string): { isReadable: boolean; isWritable: boolean } {
  const isClosed = covers(plan.closed, path) && !plan.shown.some((shown) => isAt(path, shown));
  const isReadable = !isClosed && !covers(plan.emptied, path) && !covers(plan.masked, path);
  const isSealed = covers(plan.sealed, path) && !plan.writable.some((open) => isAt(path, open));
  return { isReadable, isWritable: isReadable && !isSealed && !covers(plan.readOnly, path) };
}

const rulesOf = (config: RuleConfig): TestRules => ({ config: fromConfig(config, home) });
const relative = (covered: readonly { path: string }[]) =>
  covered.map(({ path }) => path.slice(root.length + 1)).sort();

const segment = fc.constantFrom(
  ...["src", "secrets", "conf", "SECRETS", ".env", "prod.env", "a.env.d", "key.txt", "db.yaml", "x.ts", "read me"],
  ...[
    ".git",
    "config",
    "hooks",
    "HEAD",
    ".vscode",
    "tasks.json",
    ".github",
    "workflows",
    "ci.yml",
    "grüße.env",
    "mcp.json",
  ],
);
const filePath = fc.array(segment, { minLength: 1, maxLength: 4 }).map((names) => names.join("/"));
/** No path of a file is also that of a directory. */
const fileTree = fc
  .uniqueArray(filePath, { minLength: 1, maxLength: 14 })
  .map((files) => files.filter((file) => !files.some((other) => other.startsWith(`${file}/`))));
const rule: fc.Arbitrary<Rule> = fc.record({
  permission: fc.constantFrom("read", "edit", "*"),
  pattern: fc.constantFrom(
    ...[
      "*",
      "*.env",
      "*.env*",
      "secrets/*",
      "*/secrets/*",
      "*secrets*",
      "conf/db.yaml",
      "conf/*",
      "src/*",
      "*.ts",
      "*/",
    ],
    ...[
      ".git/*",
      "/project/conf/*",
      "/project/*",
      "~/x",
      "?rc/*",
      "*key*",
      "src/secrets/k*",
      "read *",
      ".vscode/*",
      "*.yml",
    ],
  ),
  action: fc.constantFrom(PermissionAction.ALLOW, PermissionAction.ASK, PermissionAction.DENY),
});

/** Rules, files and what the call was allowed, at random; allowed and tracked files are named by their place in the list. */
const cases = fc
  .record({
    files: fileTree,
    config: fc.array(rule, { maxLength: 5 }),
    narrow: fc.array(rule, { maxLength: 2 }),
    readsAt: fc.array(fc.nat(20), { maxLength: 2 }),
    editsAt: fc.array(fc.nat(20), { maxLength: 2 }),
    trackedAt: fc.array(fc.nat(20), { maxLength: 3 }),
  })
  .map(({ files, config, narrow, readsAt, editsAt, trackedAt }) => {
    const pick = (indexes: readonly number[]) => indexes.flatMap((i) => files[i] ?? []);
    const allowed = { read: pick(readsAt), edit: pick(editsAt) };
    const layers = fileRules({ config, narrow });
    const policy = createPolicy({ guard, home });
    const actionOf = (permission: FileUse, file: string) =>
      policy.judge({ permission, patterns: [file], paths: [`${root}/${file}`] }, layers)[0]?.action;
    return {
      ...{ files, rules: { config, narrow }, allowed, tracked: pick(trackedAt) },
      /** Verdict of the policy on a file, whether it exists or not. */
      mayRead: (file: string) => allowed.read.includes(file) || actionOf("read", file) === PermissionAction.ALLOW,
      mayEdit(file: string) {
        const path = `${root}/${file}`;
        const inGit = pathInGitDirectory(path);
        const isGitData = inGit !== undefined && !isGitCode(inGit);
        const isProtected = protectedFile("edit", isGitData ? path.replace(/\/\.git\/.*$/, "/x") : path) !== undefined;
        return allowed.edit.includes(file) || (actionOf("edit", file) !== PermissionAction.DENY && !isProtected);
      },
    };
  });

test("inside a file can be read exactly if rules or the call allow it, and changed unless rules deny or protect it", () => {
  fc.assert(
    fc.property(cases, ({ files, rules, allowed, tracked, mayRead, mayEdit }) => {
      const plan = planOf(rules, files, { ...allowed, tracked });
      for (const file of files) {
        const [isReadable, isWritable] = [mayRead(file), mayEdit(file)];
        expect({ file, ...accessOf(plan, `${root}/${file}`) }).toEqual({
          ...{ file, isReadable },
          isWritable: isReadable && isWritable,
        });
      }
      for (const { path } of plan.emptied) expect(tracked.some((file) => isAt(`${root}/${file}`, path))).toBe(false);
    }),
    { numRuns: 400 },
  );
});

test("a new file is found after the command exactly if it may not be made, and a placeholder prevents only such files", () => {
  fc.assert(
    fc.property(cases, filePath, ({ files, rules, allowed, mayEdit }, file) => {
      fc.pre(!files.some((other) => isAt(other, file) || isAt(file, other)));
      const path = `${root}/${file}`;
      const plan = planOf(rules, files, allowed);
      const found = (tree: readonly string[]) => restrictedPaths(inputOf(rules, tree, allowed), [root]);
      const before = found(files);
      const isNew = (one: { path: string }) => !before.some((old) => old.path === one.path);
      const isFound = covers(found([...files, file]).filter(isNew), path);
      if (!covers(before, path)) expect({ file, isFound }).toEqual({ file, isFound: !mayEdit(file) });
      for (const absent of plan.absent) {
        const name = absent.path.slice(root.length + 1);
        expect(files.some((other) => isAt(other, name))).toBe(false);
        expect(files.some((other) => isAt(other, dirname(name))) || dirname(name) === ".").toBe(true);
        // As a file, or as a directory below which nothing may be made.
        expect({ name, mayEdit: mayEdit(name) && mayEdit(`${name}/below`) }).toEqual({ name, mayEdit: false });
      }
    }),
    { numRuns: 400 },
  );
});

describe("a directory of which nothing may be read", () => {
  const rules = rulesOf({ read: { "secrets/*": "deny" } });
  test("is emptied as a whole, so that files that come later are covered", () => {
    expect(relative(planOf(rules, ["secrets/a", "secrets/b/c", "x.ts"]).emptied)).toEqual(["secrets"]);
  });
  test("is masked file by file where git tracks one, since a commit would record the deletion", () => {
    const plan = planOf(rules, ["secrets/a", "secrets/b/c", "x.ts"], { tracked: ["secrets/a"] });
    expect(relative(plan.emptied)).toEqual(["secrets/b"]);
    expect(relative(plan.masked)).toEqual(["secrets/a"]);
    expect(plan.pins).toEqual(["/project/secrets"]);
  });
  test("is masked file by file where the call may read one", () => {
    const plan = planOf(rules, ["secrets/a", "secrets/b"], { read: ["secrets/a"] });
    expect(plan.emptied).toEqual([]);
    expect(relative(plan.masked)).toEqual(["secrets/b"]);
  });
});

test("a directory that a rule names cannot be renamed, one whose name does not matter can", () => {
  const rules = rulesOf({ read: { "conf/db.yaml": "deny", "*.env": "deny" } });
  expect(planOf(rules, ["conf/db.yaml", "src/prod.env"]).pins).toEqual(["/project/conf"]);
});

test("a directory with a file that a rule allows elsewhere cannot be moved there", () => {
  const rules = rulesOf({ read: { "*.env": "deny", "public/*": "allow" } });
  const files = ["src/a/prod.env", "public/dev.env"];
  expect(planOf(rules, files).pins).toEqual(["/project/src", "/project/src/a"]);
  const others = rulesOf({ read: { "public/*": "allow", "*.env": "deny", "*.env.example": "allow" } });
  expect(planOf(others, files).pins).toEqual([]);
});

test("a directory that cannot be searched is emptied, since a command of its owner could open it", () => {
  const tree = treeOf(["src/x.ts", "shut/x.ts"]);
  const list: NameTree["list"] = (directory) =>
    directory.endsWith("shut") ? { directories: [], files: [], links: [], isUnreadable: true } : tree.list(directory);
  const plan = planOf(rulesOf({}), [], { tree: { ...tree, list } });
  expect(relative(plan.emptied)).toEqual(["shut"]);
});

test("a directory whose name is not UTF-8, and a restricted file with such a name, make a plan that covers not all", () => {
  const isPartial = (file: string) => planOf(rulesOf({}), [file]).isPartial;
  expect(["x.ts", "x\uFFFD.ts", "\uFFFD/x.ts", "x\uFFFD.env"].map(isPartial)).toEqual([false, false, true, true]);
});

test("rules that allow only some files close the workspace and show those", () => {
  const plan = planOf(rulesOf({ read: { "*": "ask", "src/*": "allow", "*.md": "allow" } }), [
    ...["src/a.ts", "src/b/c.ts", "README.md", "conf/db.yaml", "x.ts"],
  ]);
  expect(relative(plan.closed)).toEqual([""]);
  expect(plan.shown).toEqual(["/project/src", "/project/README.md"]);
});

test("code of the program stays in a closed workspace, without the files that rules name", () => {
  const rules = rulesOf({ "*": "ask", read: { "*key*": "deny" } });
  const files = [".opencode/tool/a.ts", ".opencode/tool/key.ts", ".opencode/tool/.env", "x.ts"];
  const code = { absolute: `${root}/.opencode/tool`, pattern: ".opencode/tool", isWritable: false, isCode: true };
  const input = inputOf(rules, files);
  const plan = planMounts({ ...input, roots: [...input.roots, code] });
  expect(relative(plan.closed)).toEqual([""]);
  expect(plan.shown).toEqual([code.absolute]);
  expect(relative(plan.masked).toSorted()).toEqual([".opencode/tool/.env", ".opencode/tool/key.ts"]);
});

test("rules that deny all edits make the workspace read-only, but for what the call was allowed", () => {
  const plan = planOf(rulesOf({ edit: "deny" }), ["src/a.ts", "x.ts"], { edit: ["x.ts"] });
  expect(relative(plan.sealed)).toEqual([""]);
  expect(plan.writable).toEqual(["/project/x.ts"]);
});

describe("more files than can be masked", () => {
  const rules = rulesOf({ read: { "*.pem": "deny" } });
  const files = Array.from({ length: 12 }, (_, i) => `certs/${i}.pem`);
  test("are covered by their directory if it holds nothing else", () => {
    const plan = planOf(rules, [...files, "x.pem"], { maxMasks: 10 });
    expect([relative(plan.emptied), relative(plan.masked), plan.excess.read]).toEqual([["certs"], ["x.pem"], 0]);
  });
  test("are counted otherwise", () => {
    const plan = planOf(rules, [...files, "certs/readme.md"], { maxMasks: 10 });
    expect([plan.emptied, plan.masked.length, plan.excess.read]).toEqual([[], 10, 12]);
  });
});

test("what installed packages bring is not protected by its name", () => {
  const plan = planOf(rulesOf({}), ["node_modules/x/.npmrc", "node_modules/x/.env", ".npmrc"]);
  expect(relative(plan.readOnly)).toEqual([".npmrc"]);
  expect(relative(plan.masked)).toEqual(["node_modules/x/.env"]);
});

test("of the directory of git the settings and hooks are read-only, so that commits work", () => {
  const files = [
    "config",
    "hooks/pre-commit",
    "HEAD",
    "index",
    "objects/aa/bb",
    "refs/heads/config",
    "modules/m/hooks/x",
  ];
  const plan = planOf(
    rulesOf({}),
    files.map((file) => `.git/${file}`),
  );
  expect(relative(plan.readOnly)).toEqual([".git/config", ".git/hooks", ".git/modules/m/hooks"]);
  expect(plan.pins).toContain("/project/.git");
});

test("what the call may edit as a whole is writable, also in a directory that is protected", () => {
  const files = [".github/workflows/ci.yml", ".vscode/a.json", ".git/config", ".git/hooks/x"];
  const plan = planOf(rulesOf({}), files, { editTrees: [".github/workflows", ".git/config"] });
  expect(relative(plan.readOnly)).toEqual([".git/hooks", ".vscode"]);
});

test("a plan that does not search all directories says so", () => {
  const files = ["a/b/c", "d/e"];
  const isPartial = (maxDirectories: number) => planOf(rulesOf({}), files, { maxDirectories }).isPartial;
  expect([isPartial(4), isPartial(3)]).toEqual([false, true]);
});

describe("paths that do not exist and may not be made", () => {
  const absentIn = (config: RuleConfig, files: string[], options: PlanOptions = {}) =>
    relative(planOf(rulesOf(config), files, options).absent);
  test("are names that other programs apply at once, and literal paths of rules, directly below existing directories", () => {
    const found = absentIn(
      { edit: { "locked/new.txt": "deny", "gone/x": "deny", "out/*": "deny", "*.lock": "deny" } },
      [...["locked/f.txt", ".vscode/a.json"]],
    );
    expect(found).toEqual(["locked/new.txt", "out", ...liveNames].filter((name) => name !== ".vscode").sort());
  });
  test("are none that the call may edit, nor those of a later rule that allows them", () => {
    const rules: RuleConfig = { edit: { "a.txt": "deny", "b.txt": "deny", "*b.txt": "allow" } };
    const found = absentIn(rules, ["x.ts"], { edit: [".claude/settings.json"], editTrees: [".idea"] });
    expect(found).toEqual(["a.txt", ...liveNames].filter((name) => name !== ".claude" && name !== ".idea").sort());
  });
  test("are none in an empty directory, nor where the profile allows no changes", () => {
    expect([absentIn({}, []), absentIn({}, ["x.ts"], { isWritable: false })]).toEqual([[], []]);
  });
});

test("a workspace with nothing to cover has a plan of placeholders alone", () => {
  const { excess, isPartial: _, absent, ...lists } = planOf(rulesOf({}), ["src/a.ts", "package.json"]);
  expect([excess.read, excess.edit, ...Object.values(lists).flat()]).toEqual([0, 0]);
  expect(absent).toHaveLength(liveNames.length);
});

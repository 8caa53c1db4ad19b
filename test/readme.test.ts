import { execFile } from "node:child_process";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { promisify } from "node:util";
import { parse } from "smol-toml";
import { expect, onTestFinished, test } from "vitest";
import { declaredTools } from "../src/compose/built-in-tools.ts";
import { checkConfig } from "../src/config/check-config.ts";
import { parseRules } from "../src/policy/parse-rules.ts";
import { startService } from "./e2e/service.ts";

const root = resolve(import.meta.dirname, "..");
const text = (file: string) => readFileSync(join(root, file), "utf8");
const readme = text("README.md");
const blocks = (language: string) =>
  [...readme.matchAll(new RegExp(`^\`\`\`${language}\\n([^]*?)^\`\`\``, "gm"))].map(([, code = ""]) => code);

test("the client in the README is examples/call.ts, which works", async () => {
  expect(blocks("ts")[0]).toBe(text("examples/call.ts"));
  const service = await startService();
  const { stdout } = await promisify(execFile)(process.execPath, ["examples/call.ts"], {
    cwd: root,
    env: { ...process.env, TOOLGATE_URL: service.url, TOOLGATE_TOKEN: "caller-token-for-tests" },
  });
  expect(stdout).toBe("1 pending\n2 running\n3 completed\n");
});

test("the tool in the README is src/tools/echo.ts", () => {
  expect(blocks("ts")[1]).toBe(text("src/tools/echo.ts"));
});

test("the rules in the README are rules", () => {
  const { permission, agent } = parse(blocks("toml")[0] ?? "");
  expect(parseRules(permission, "permission", "/home/u")).toHaveLength(4);
  expect(agent).toEqual({ reviewer: { permission: { edit: "deny" } } });
});

test("the policy in the README is one that a server starts with", async () => {
  const folder = await mkdtemp(join(tmpdir(), "toolgate-readme-"));
  onTestFinished(() => rm(folder, { recursive: true }));
  const file = join(folder, "toolgate.toml");
  await writeFile(file, blocks("toml")[0] ?? "");
  const checked = await checkConfig(file, { env: {}, home: folder, directory: folder }, await declaredTools());
  expect(checked).toMatchObject({ rules: 5, tests: 1, findings: [] });
});

test("the rules in docs/policy.md are rules", async () => {
  const page = text("docs/policy.md");
  for (const [, code = ""] of page.matchAll(/^```toml\n([\s\S]*?)^```/gm)) {
    const { permission = {} } = parse(code);
    expect(parseRules(permission, "permission", "/home/u")).toEqual(expect.any(Array));
  }
});

const pages = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "examples/README.md"].concat(
  readdirSync(join(root, "docs"))
    .filter((file) => file.endsWith(".md"))
    .map((file) => `docs/${file}`),
);

test.each(pages)("the links of %s lead to files that exist", (page) => {
  const links = [...text(page).matchAll(/\]\(([^)#\s]+)(?:#[^)]*)?\)/g)].map(([, link = ""]) => link);
  const local = links.filter((link) => !/^https?:/.test(link));
  expect(local.filter((link) => !existsSync(join(root, dirname(page), link)))).toEqual([]);
});

test("docs/architecture.md names files that exist", () => {
  const named = [...text("docs/architecture.md").matchAll(/`([\w.-]+\/[\w./-]+)`/g)].map(([, file = ""]) => file);
  expect(named.length).toBeGreaterThan(30);
  expect(named.filter((file) => ![root, join(root, "src")].some((base) => existsSync(join(base, file))))).toEqual([]);
});

test("the README's npm scripts exist", () => {
  const { scripts } = JSON.parse(text("package.json"));
  const named = [...readme.matchAll(/npm (?:run -s |run )?(start|test|demo|toolgate|bench|generate)\b/g)].map(
    ([, name]) => name,
  );
  expect(new Set(named)).toEqual(new Set(["demo", "test", "start", "toolgate", "bench", "generate"]));
  expect(Object.keys(scripts)).toEqual(expect.arrayContaining(named));
});

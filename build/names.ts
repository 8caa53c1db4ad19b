import { execFile } from "node:child_process";
import { join } from "node:path";
import { installPythonTools } from "./python-tools.ts";

/** The owner of a name in a registry, or the reason why it is not known. */
export interface NameState {
  readonly registry: string;
  readonly name: string;
  readonly state: "free" | "ours" | "taken" | "not checked";
  readonly reason: string;
}

type Environment = Readonly<Record<string, string | undefined>>;

/** Asks the registry of which npm is configured to publish. A package is ours if its record names our repository. */
export async function npmName(name: string, repository: string, env: Environment = process.env): Promise<NameState> {
  const { stdout } = await run("npm", ["view", name, "repository", "--json"], env);
  const found = parsed(stdout);
  const state = (state: NameState["state"], reason: string) => ({ registry: "npm", name, state, reason });
  if (found?.error?.code === "E404") return state("free", "the registry has no such package");
  if (found?.error !== undefined) return state("not checked", `npm view failed with ${found.error.code}`);
  return stateOf(repository, [found?.url], state);
}

/** Asks the index of which pip is configured to install. Nothing of the package runs. */
export async function pythonName(name: string, repository: string, env: Environment = process.env): Promise<NameState> {
  const bin = installPythonTools();
  const pip = (...args: string[]) => run(join(bin, "pip"), [...args, "--quiet"], env);
  const state = (state: NameState["state"], reason: string) => ({ registry: "PyPI", name, state, reason });
  const isThere = async (project: string) => (await pip("index", "versions", "--pre", project)).code === 0;
  if (!(await isThere(name))) {
    // pip says the same of an index that it does not reach. This one is a package with which ours is built.
    if (await isThere("hatchling")) return state("free", "the index has no such package");
    return state("not checked", "pip finds no package in its index");
  }
  const wheels = ["--dry-run", "--ignore-installed", "--no-deps", "--pre", "--only-binary=:all:", "--report=-"];
  const { home_page, project_url = [] } =
    parsed((await pip("install", ...wheels, name)).stdout)?.install[0].metadata ?? {};
  return stateOf(repository, [home_page, ...project_url.map((each: string) => each.replace(/^[^,]*, /, ""))], state);
}

function stateOf(
  repository: string,
  urls: readonly (string | undefined)[],
  state: (state: NameState["state"], reason: string) => NameState,
): NameState {
  const named = urls.filter((url) => url !== undefined);
  if (named.some((url) => repository !== "" && placeOf(url) === placeOf(repository)))
    return state("ours", "its record names our repository");
  return state("taken", `its record names ${named.length === 0 ? "no repository" : JSON.stringify(named)}`);
}

/** Returns host and path of the address of a repository, in each of its forms. */
function placeOf(url: string): string {
  return url
    .replace(/^(git\+)?[a-z]+:\/\/([^@/]*@)?|^[^@/]+@/, "")
    .replace(/\/?(\.git)?\/?$/, "")
    .replace(":", "/")
    .toLowerCase();
}

/** Returns what a program printed as JSON, of which each caller reads what it has asked for. */
// biome-ignore lint/suspicious/noExplicitAny: the answers of npm and pip
function parsed(text: string): any {
  return text.trim() === "" ? undefined : JSON.parse(text);
}

function run(program: string, args: readonly string[], env: Environment): Promise<{ code: number; stdout: string }> {
  return new Promise((end) =>
    execFile(program, args, { env: { ...env } }, (error, stdout) => end({ code: error === null ? 0 : 1, stdout })),
  );
}

import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { promisify } from "node:util";
import { afterAll, beforeAll, expect, inject, test, vi } from "vitest";
import { needPrograms } from "../programs.ts";
import { callAndApprove } from "./approved-call.ts";

/** Each artifact of a release, installed by its own client into an empty environment; install.ts has done so with npm's. */
// The first time they download and compile what the artifacts need.
vi.setConfig({ testTimeout: 600_000 });
const { folder, artifacts } = inject("installed");
const program = [process.execPath, join(folder, "node_modules/toolgate/bin/toolgate.js")] as const;
const [nodePath, script] = program;
let home: string;
let end: () => Promise<void>;
let people: Record<"caller" | "approver", Record<string, string | undefined>>;

beforeAll(async () => {
  needPrograms([
    ["go", "golang-go"],
    ["python3", "python3-venv"],
  ]);
  home = await mkdtemp(join(tmpdir(), "toolgate-artifacts-"));
  const data = join(home, "data");
  await mkdir(join(home, "work"));
  const place = ["--listen", "127.0.0.1:0", "--data", data, "--workspace", join(home, "work")];
  const service = spawn(nodePath, [script, "serve", "--json", ...place], {
    env: { PATH: process.env.PATH, HOME: home },
    stdio: ["ignore", "pipe", "ignore"],
  });
  const ended = once(service, "exit");
  end = async () => {
    service.kill();
    await ended;
  };
  const [line] = await once(createInterface({ input: service.stdout }), "line");
  const { url } = JSON.parse(line);
  const own = async (role: string) => ({
    ...{ PATH: process.env.PATH, HOME: home, TOOLGATE_URL: url },
    TOOLGATE_TOKEN: await toolgate("token", "create", "--role", role, "--data", data),
  });
  people = { caller: await own("caller"), approver: await own("approver") };
});
afterAll(async () => {
  await end();
  await rm(home, { recursive: true, force: true, maxRetries: 10, retryDelay: 50 });
});

async function toolgate(...args: string[]): Promise<string> {
  return (await run(nodePath, [script, ...args], { PATH: process.env.PATH, HOME: home })).trim();
}

async function run(command: string, args: readonly string[], env = process.env, cwd = home): Promise<string> {
  const { stdout } = await promisify(execFile)(command, [...args], { cwd, env }).catch((error) => {
    throw new Error(`${command} ${args.join(" ")} failed:\n${error.stdout}${error.stderr}`);
  });
  return stdout;
}

test("npm: the program takes a call from its request over its approval to its result", async () => {
  expect(await callAndApprove(program, "echo ran", people)).toBe("ran\n");
});

test.each([
  ["wheel", "toolgate_client-0.1.0-py3-none-any.whl"],
  ["source distribution", "toolgate_client-0.1.0.tar.gz"],
])("pip installs the %s into an empty environment, whose client makes a call that is approved", async (_, name) => {
  const place = join(home, name);
  // The pip outside installs into it: copying pip into each environment takes longer than the package.
  await run("python3", ["-m", "venv", "--without-pip", place]);
  const python = join(place, "bin/python");
  const quiet = ["--quiet", "--disable-pip-version-check", "--no-compile"];
  await run("python3", ["-m", "pip", "--python", python, "install", ...quiet, join(artifacts, name)]);
  const call =
    'import toolgate\nwith toolgate.Client() as client: print(client.call("bash", {"command": "echo ran"}).output)';
  expect(await callAndApprove(program, [python, "-c", call], people)).toBe("ran\n\n");
});

test("go builds a program with the module, which makes a call that is approved", async () => {
  const place = join(home, "go");
  await mkdir(place);
  const unpack = "import sys, zipfile; zipfile.ZipFile(sys.argv[1]).extractall()";
  await run("python3", ["-c", unpack, join(artifacts, "toolgate-go-0.1.0.zip")], process.env, place);
  await writeFile(join(place, "main.go"), goProgram);
  const go = (...args: string[]) => run("go", args, process.env, place);
  await go("mod", "init", "example");
  await go("mod", "edit", "-require", "toolgate@v0.1.0", "-replace", "toolgate=./toolgate@v0.1.0");
  await go("mod", "tidy");
  await go("build", "-o", "program", ".");
  expect(await callAndApprove(program, [join(place, "program")], people)).toBe("ran\n\n");
});

const goProgram = `package main

import (
	"context"
	"fmt"
	"log"

	"toolgate"
)

func main() {
	call := toolgate.Call{Tool: "bash", Input: map[string]any{"command": "echo ran"}}
	completed, err := toolgate.NewClient(toolgate.Options{}).Call(context.Background(), call)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(completed.Output)
}
`;

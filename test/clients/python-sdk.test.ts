import { execFile } from "node:child_process";
import { mkdir, readdir, readFile, rm } from "node:fs/promises";
import { join, resolve } from "node:path";
import { promisify } from "node:util";
import { beforeAll, describe, expect, onTestFinished, test } from "vitest";
import { installPythonTools, pythonPackage } from "../../build/python-tools.ts";
import { useService } from "../e2e/service.ts";
import { programEntry } from "../main.ts";
import { layWire } from "./wire.ts";
import { useWorkerExample } from "./worker-example.ts";
import { kitWorkers, runKit } from "./worker-kit.ts";

const root = resolve(import.meta.dirname, "../..");
/** Holds the wheel, and an environment with the wheel, the frameworks of its adapters, and pytest. */
const directory = join(root, ".cache/python-sdk");
const installed = join(directory, "venv/bin");
const service = useService();
let tools: string;

beforeAll(async () => {
  tools = installPythonTools();
  await rm(directory, { recursive: true, force: true });
  await mkdir(directory, { recursive: true });
  await run(join(tools, "hatchling"), ["build", "--target", "wheel", "--directory", directory]);
  const [wheel = ""] = (await readdir(directory)).filter((name) => name.endsWith(".whl"));
  await run("python3", ["-m", "venv", join(directory, "venv")]);
  const pip = ["install", "--constraint", "requirements.txt", "--quiet", "--disable-pip-version-check", "--no-compile"];
  await run(join(installed, "pip"), [...pip, join(directory, wheel)]);
  // With nothing but what the wheel itself depends on.
  await run(join(installed, "python"), ["-P", "-c", "import toolgate.testing"]);
  await run(join(installed, "pip"), [...pip, "--requirement", "tests/requirements.txt"]);
});

/** Runs a program in the package's directory, and returns what it prints. */
async function run(program: string, args: readonly string[]): Promise<string> {
  const command = `${process.execPath} ${programEntry()}`;
  const env = { ...process.env, TOOLGATE_TEST_COMMAND: command, TOOLGATE_URL: "", TOOLGATE_TOKEN: "" };
  const options = { cwd: pythonPackage, env, maxBuffer: 16 * 1_048_576 };
  try {
    return (await promisify(execFile)(program, [...args], options)).stdout;
  } catch (error) {
    const { stdout = "", stderr = "" } = error as { stdout?: string; stderr?: string };
    throw new Error(`${program} failed:\n${stdout}${stderr}`, { cause: error });
  }
}

describe("the Python package", () => {
  test("has strict types and one format", async () => {
    expect(await run(join(tools, "mypy"), [])).toContain("no issues found");
    await run(join(tools, "ruff"), ["check", "."]);
    await run(join(tools, "ruff"), ["format", "--check", "."]);
  });

  test("has a name that no other project has in the registry", async () => {
    const [, name = ""] = /^name = "(.+)"$/m.exec(await readFile(join(pythonPackage, "pyproject.toml"), "utf8")) ?? [];
    const found = run(join(installed, "pip"), ["index", "versions", name, "--ignore-requires-python", "--pre"]);
    await expect(found).rejects.toThrow(`No matching distribution found for ${name}`);
  });

  test("passes its tests from an installed wheel, against a real service", async () => {
    // This program of pytest does not look for packages in the working directory.
    expect(await run(join(installed, "pytest"), ["-q"])).toMatch(/^\d+ passed/m);
  });

  test("passes the conformance kit for workers", async () => {
    const command = [join(installed, "python"), join(kitWorkers, "python.py")];
    expect(await runKit(command)).toBe("27 passed, 0 failed");
  });

  test("check 1: the worker of the page answers `toolgate call`, across kill -9 of the service in a wait, and drains", async () => {
    const wire = await layWire(service);
    onTestFinished(wire.close);
    const restart = async () => {
      await service.kill();
      wire.cut();
      await service.start();
    };
    const page = await readFile(join(root, "docs/clients/python.md"), "utf8");
    const program = await readFile(join(pythonPackage, "examples/worker.py"), "utf8");
    await useWorkerExample(
      { url: wire.url, data: service.data, restart },
      {
        ...{ page, program, folder: directory, toolgate: [process.execPath, programEntry()] },
        command: [join(installed, "python"), join(pythonPackage, "examples/worker.py")],
      },
    );
  });

  test.each([
    ["python.md", "call.py"],
    ["python.md", "worker.py"],
    ["openai-agents.md", "frameworks/openai_agents_program.py"],
    ["langchain.md", "frameworks/langchain_program.py"],
    ["pydantic-ai.md", "frameworks/pydantic_ai_program.py"],
    ["anthropic.md", "frameworks/anthropic_program.py"],
  ])("shows in %s the program that is tested", async (page, example) => {
    const shown = await readFile(join(root, "docs/clients", page), "utf8");
    expect(shown).toContain(`\`\`\`python\n${await readFile(join(pythonPackage, "examples", example), "utf8")}\`\`\``);
  });
});

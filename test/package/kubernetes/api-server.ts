import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { copyFile, mkdir, mkdtemp, open, readFile, rm, writeFile } from "node:fs/promises";
import { request } from "node:https";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { promisify } from "node:util";
import { makeCertificates } from "../../edge/certificates.ts";
import { freePorts } from "../../store/redis-server.ts";
import { directory, helm } from "./programs.ts";

const run = promisify(execFile);
const kubernetes = "1.36.3";
const staged = kubernetes.replace(/^1/, "v0");
const operator = "github.com/prometheus-operator/prometheus-operator@v0.85.0";
const place = join(directory, `api-server-${kubernetes}`);

/** The persons of the API server, by role: `owner` may do everything, `installer` has the rights of `admin` in a namespace. */
export type Person = "owner" | "installer";

// biome-ignore lint/suspicious/noExplicitAny: each test reads what it is about
type Json = any;

/** Response to a request, with the warnings for its sender. */
export interface Answer {
  readonly status: number;
  readonly body: Json;
  readonly warnings: readonly string[];
}

/** An API server of Kubernetes on an empty etcd, without controllers and nodes. */
export interface ApiServer {
  /** Sends a request of the owner. */
  send(method: "GET" | "POST" | "PATCH" | "DELETE", path: string, body?: object): Promise<Answer>;
  /** Returns the path of a manifest's kind in a namespace. */
  pathOf(manifest: Json, namespace: string): Promise<string>;
  helm(person: Person, ...args: string[]): Promise<string>;
  stop(): Promise<void>;
}

/** Builds the API server with its etcd, both of which are Go modules, into .cache. That takes minutes of CPU once. */
export async function buildApiServer(): Promise<void> {
  await mkdir(place, { recursive: true });
  const { Dir: source, GoMod: requirements } = await download(`k8s.io/kubernetes@v${kubernetes}`);
  // Its own requirements point into the repository: the proxy has these modules by version.
  const text = (await readFile(requirements, "utf8"))
    .replace(/^module .*$/m, "module api-server")
    .replace(/=> \.\/staging\/src\/(\S+)/g, `=> $1 ${staged}`);
  await writeFile(join(place, "go.mod"), `${text}\nrequire k8s.io/kubernetes v${kubernetes}\n`);
  await copyFile(join(source, "go.sum"), join(place, "go.sum"));
  await copyFile(join(import.meta.dirname, "api-server/main.go"), join(place, "main.go"));
  // Helm compares it with what the chart needs.
  const version = `-X k8s.io/component-base/version.gitVersion=v${kubernetes}`;
  await run("go", ["build", "-mod=mod", "-ldflags", version, "-o", "api-server", "."], { cwd: place });
}

/** Returns the definitions of ServiceMonitor and PrometheusRule. */
export async function readDefinitions(): Promise<string[]> {
  const { Dir: source } = await download(operator);
  const crds = join(source, "example/prometheus-operator-crd");
  const names = ["servicemonitors", "prometheusrules"];
  return Promise.all(names.map((name) => readFile(join(crds, `monitoring.coreos.com_${name}.yaml`), "utf8")));
}

async function download(module: string): Promise<{ Dir: string; GoMod: string }> {
  const { stdout } = await run("go", ["mod", "download", "-json", module], { cwd: directory });
  return JSON.parse(stdout);
}

export async function startApiServer(): Promise<ApiServer> {
  const data = await mkdtemp(join(tmpdir(), "toolgate-api-server-"));
  const { ca, server, remove } = await makeCertificates();
  await writeFile(join(data, "tokens.csv"), "owner,owner,1,system:masters\ninstaller,installer,2\n");
  const [port] = await freePorts(1);
  const log = await open(join(place, "api-server.log"), "w");
  const child = spawn(
    join(place, "api-server"),
    [
      ...["--bind-address=127.0.0.1", `--secure-port=${port}`, "--endpoint-reconciler-type=none"],
      ...[`--tls-cert-file=${server.certFile}`, `--tls-private-key-file=${server.keyFile}`],
      ...["--token-auth-file=tokens.csv", "--authorization-mode=RBAC", "--service-cluster-ip-range=10.96.0.0/24"],
      ...["--service-account-issuer=https://kubernetes.default.svc"],
      ...[`--service-account-signing-key-file=${server.keyFile}`, `--service-account-key-file=${server.certFile}`],
    ],
    { cwd: data, stdio: ["ignore", log.fd, log.fd] },
  );
  const ended = once(child, "exit");
  const kinds = new Map<string, Json[]>();
  while ((await send("GET", "/readyz").catch(() => undefined))?.status !== 200) {
    if (child.exitCode !== null)
      throw new Error(`the API server ended with ${child.exitCode}: see api-server.log in ${place}`);
    await pause(100);
  }
  return { send, pathOf, helm: helmOf, stop };

  async function send(method: string, path: string, body?: object): Promise<Answer> {
    const type = method === "PATCH" ? "application/apply-patch+yaml" : "application/json";
    const headers = { authorization: "Bearer owner", accept: "application/json", "content-type": type };
    const sent = request({ host: "127.0.0.1", port, method, path, headers, ca: ca.cert });
    sent.end(body && JSON.stringify(body));
    const [response] = await once(sent, "response");
    const text = Buffer.concat(await response.toArray()).toString();
    return {
      status: response.statusCode,
      body: text.startsWith("{") ? JSON.parse(text) : text,
      warnings: [response.headers.warning ?? []].flat(),
    };
  }

  async function pathOf({ apiVersion, kind }: Json, namespace: string): Promise<string> {
    const group = apiVersion === "v1" ? "/api/v1" : `/apis/${apiVersion}`;
    const found = kinds.get(group) ?? (await send("GET", group)).body.resources ?? [];
    kinds.set(group, found);
    const resource = found.find((each: Json) => each.kind === kind && !each.name.includes("/"));
    if (resource === undefined) throw new Error(`the API server does not know ${kind} of ${apiVersion}`);
    return `${group}/${resource.namespaced ? `namespaces/${namespace}/` : ""}${resource.name}`;
  }

  function helmOf(person: Person, ...args: string[]): Promise<string> {
    const address = ["--kube-apiserver", `https://127.0.0.1:${port}`, "--kube-ca-file", ca.certFile];
    return helm(...args, ...address, "--kube-token", person);
  }

  async function stop(): Promise<void> {
    child.kill("SIGKILL");
    await ended;
    await log.close();
    await remove();
    await rm(data, { recursive: true });
  }
}

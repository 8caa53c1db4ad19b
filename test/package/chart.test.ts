import { execFile } from "node:child_process";
import { mkdir, mkdtemp, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { promisify } from "node:util";
import { afterAll, beforeAll, describe, expect, inject, test } from "vitest";
import { parse, parseAllDocuments } from "yaml";
import { makeCertificates } from "../edge/certificates.ts";
import type { Life } from "./kubernetes/container.ts";
import { conform, helm, installKubernetesPrograms } from "./kubernetes/programs.ts";

const run = promisify(execFile);

/** The chart, and its archive in a release, as helm renders it for each file of values in the `ci` of the chart. */
const root = resolve(import.meta.dirname, "../..");
const chart = join(root, "deploy/helm/toolgate");
const forms = (await readdir(join(chart, "ci"))).map((file) => file.replace("-values.yaml", ""));
const valuesOf = (form: string) => join(chart, "ci", `${form}-values.yaml`);
const { folder: installed, artifacts } = inject("installed");
let directory: string;
const rendered = new Map<string, Manifest[]>();

/** A manifest, of which each test reads what it is about. */
// biome-ignore lint/suspicious/noExplicitAny: the schemas of Kubernetes are checked by kubeconform
type Manifest = any;

beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), "toolgate-chart-"));
  await installKubernetesPrograms();
  for (const form of forms) {
    const archive = join(artifacts, "toolgate-chart-0.1.0.tgz");
    const text = await helm("template", "toolgate", archive, "--namespace", "tools", "--values", valuesOf(form));
    await writeFile(join(directory, `${form}.yaml`), text);
    rendered.set(
      form,
      parseAllDocuments(text).map((document) => document.toJS()),
    );
  }
});
afterAll(() => rm(directory, { recursive: true, force: true }));

const of = (form: string, kind: string): Manifest[] => rendered.get(form)?.filter((found) => found.kind === kind) ?? [];
const replicas = (form: string): Manifest =>
  rendered.get(form)?.find(({ kind, metadata }) => /Deployment|StatefulSet/.test(kind) && metadata.name === "toolgate");
const container = (form: string): Manifest => replicas(form).spec.template.spec.containers[0];
const configOf = (form: string): string =>
  of(form, "ConfigMap").find(({ metadata }) => metadata.name === "toolgate").data["toolgate.toml"];
const selects = (labels: object, { metadata }: Manifest) => expect(metadata.labels).toMatchObject(labels);

/** What check-config prints about a configuration, with the files of its tokens; several forms have the same. */
const checks = new Map<string, Promise<string>>();
async function checkOf(config: string): Promise<string> {
  const found = checks.get(config) ?? check(config);
  checks.set(config, found);
  return await found;
}

async function check(config: string): Promise<string> {
  const secrets = await mkdtemp(join(directory, "secrets-"));
  for (const [, key = ""] of config.matchAll(/toolgate\/(.*)"$/gm))
    await writeFile(join(secrets, key), `token-of-${key}-with-length`);
  const file = join(secrets, "toolgate.toml");
  await writeFile(file, config.replaceAll("/run/secrets/toolgate", secrets));
  const program = join(installed, "node_modules/toolgate/bin/toolgate.js");
  const env = { PATH: process.env.PATH, HOME: secrets };
  const { stdout, stderr } = await run(process.execPath, [program, "check-config", file], { env });
  return stdout + stderr;
}

test("helm finds no fault in the chart, and Kubernetes' schemas none in what it renders", async () => {
  const all = forms.flatMap((form) => ["--values", valuesOf(form)]);
  await helm("lint", "--strict", chart, ...all);
  const kinds = [...rendered.values()].flat().filter(({ kind }) => !/ServiceMonitor|PrometheusRule/.test(kind));
  for (const summary of await conform(forms.map((form) => join(directory, `${form}.yaml`))))
    expect(summary).toContain(`Valid: ${kinds.length}, Invalid: 0, Errors: 0`);
});

test("values that the chart does not know, and a service in clear that is not stated, are refused", async () => {
  const plain = ["template", "toolgate", chart];
  await expect(helm(...plain)).rejects.toThrow("set tls.secretName");
  await expect(helm(...plain, "--set", "insecureListen=true,replica=2")).rejects.toThrow("replica");
  await expect(helm(...plain, "--set", "insecureListen=true,store=postgres")).rejects.toThrow("store");
});

describe.each(forms)("with the values of %s", (form) => {
  test("mounts, ports, selectors and secrets fit together", () => {
    for (const { kind, spec } of rendered.get(form) ?? []) {
      const pod = kind === "Pod" ? spec : spec?.template?.spec;
      if (pod === undefined) continue;
      const claims = (spec.volumeClaimTemplates ?? []).map(({ metadata }: Manifest) => metadata);
      const volumes = [...(pod.volumes ?? []), ...claims].map(({ name }) => name).sort();
      const mounts = pod.containers.flatMap(({ volumeMounts = [] }: Manifest) => volumeMounts);
      expect([...new Set(mounts.map(({ name }: Manifest) => name))].sort()).toEqual(volumes);
      expect(
        pod.containers.map(({ securityContext }: Manifest) => securityContext.readOnlyRootFilesystem),
      ).not.toContain(false);
    }
    const { spec } = replicas(form);
    const { env, ports, startupProbe, livenessProbe, readinessProbe } = container(form);
    const settings = Object.fromEntries(env.map(({ name, value }: Manifest) => [name, value]));
    const listens = ports.map(({ name, containerPort }: Manifest) => [name, `0.0.0.0:${containerPort}`]);
    expect(Object.fromEntries(listens)).toEqual({
      toolgate: settings.TOOLGATE_LISTEN,
      health: settings.TOOLGATE_HEALTH_LISTEN,
    });
    for (const { httpGet } of [startupProbe, livenessProbe, readinessProbe]) expect(httpGet.port).toBe("health");
    expect(spec.template.spec.terminationGracePeriodSeconds * 1_000).toBeGreaterThanOrEqual(
      Number(settings.TOOLGATE_DRAIN_MS) + 15_000,
    );
    const [service] = of(form, "Service");
    expect(service.spec.ports[0].targetPort).toBe("toolgate");
    const policies = of(form, "NetworkPolicy").map((policy) => policy.spec.podSelector);
    for (const { matchLabels } of [spec.selector, { matchLabels: service.spec.selector }, ...policies])
      selects(matchLabels, spec.template);
    for (const monitor of of(form, "ServiceMonitor")) {
      selects(monitor.spec.selector.matchLabels, service);
      expect(monitor.spec.endpoints[0].port).toBe(service.spec.ports[0].name);
    }
    for (const { scaleTargetRef } of of(form, "HorizontalPodAutoscaler").map((scaler) => scaler.spec))
      expect(scaleTargetRef).toMatchObject({ kind: replicas(form).kind, name: replicas(form).metadata.name });
    const files = [...configOf(form).matchAll(/^file = "\/run\/secrets\/toolgate\/(.*)"$/gm)].map(([, key]) => key);
    const tokens = spec.template.spec.volumes.find(({ name }: Manifest) => name === "tokens");
    expect(tokens.secret.items.map(({ path }: Manifest) => path)).toEqual(files);
  });

  test("the configuration is one that a start accepts, and no variable is unknown", async () => {
    expect(await checkOf(configOf(form))).not.toMatch(/warning|error/);
    const known = new Set((await readFile(join(root, "docs/configuration.md"), "utf8")).match(/TOOLGATE_\w+/g));
    const env = container(form).env.map(({ name }: Manifest) => name);
    expect(env.filter((name: string) => !known.has(name))).toEqual(["TOOLGATE_CONFIG", "NODE_OPTIONS"]);
  });
});

test.each(["sqlite-tls", "redis-network"])(
  "the pod of %s is ready, answers the test of the chart, runs a call that was approved, and drains",
  async (form) => {
    const tokens: Record<string, string> = { store: "redis://127.0.0.1:6379" };
    for (const key of ["caller", "watcher"]) tokens[key] = `token-of-${key}-with-length`;
    const envOf = ({ env }: Manifest): Record<string, string> =>
      Object.fromEntries(
        env.map(({ name, value, valueFrom }: Manifest) => [name, value ?? tokens[valueFrom.secretKeyRef.key]]),
      );
    const { args, lifecycle, readinessProbe, startupProbe } = container(form);
    const isSecure = replicas(form).spec.template.spec.volumes.some(({ name }: Manifest) => name === "tls");
    const [pod] = of(form, "Pod");
    const env = { PATH: "/usr/bin", HOME: "/home/toolgate", ...envOf(container(form)) };
    const toolgate: Life["toolgate"] = ["/opt/node/node", "/opt/package/node_modules/toolgate/bin/toolgate.js"];
    const life: Life = {
      redis: form.startsWith("redis"),
      ...{ toolgate, entrypoint: toolgate },
      serve: { command: args, env },
      preStop: lifecycle.preStop.exec.command,
      probes: [startupProbe, readinessProbe].map(({ httpGet }) => `http://127.0.0.2:7421${httpGet.path}`),
      metrics: {
        url: `${isSecure ? "https" : "http"}://127.0.0.2:7420/metrics`,
        token: tokens.watcher ?? "",
        serverName: "toolgate.tools.svc",
      },
      clients: [
        ...pod.spec.containers.map((client: Manifest) => ({
          command: client.command ?? client.args,
          env: { PATH: "/usr/bin", ...envOf(client) },
        })),
        { command: ["token", "create", "--role", "approver"], env },
      ],
      caller: { PATH: "/usr/bin", ...envOf(pod.spec.containers[0]) },
    };
    const { printed, called, scraped, exitCode } = await runPod(form, tokens, life);
    expect(printed[0]).toBe("toolgate answers");
    expect(JSON.parse(printed[1] ?? "")).toHaveProperty("sandbox");
    expect(printed[2]).toMatch(/^tg_/);
    expect({ called, status: scraped.status, exitCode }).toEqual({ called: "10001\n", status: 200, exitCode: 0 });
    const files = await Promise.all(
      ["alerts.yaml", "dashboard.json"].map((file) => readFile(join(chart, "files", file), "utf8")),
    );
    const drawn = new Set(files.join().match(/toolgate_\w+?(?=_bucket|\b)/g));
    const missing = [...drawn].filter((name) => !scraped.body.includes(`# HELP ${name} `));
    // They begin with the first channel, and the first worker.
    const later = ["toolgate_notices_total", "toolgate_workers_connected"];
    expect(missing).toEqual(configOf(form).includes("[channel.") ? later.slice(1) : later);
  },
);

/** Runs a pod on a read-only root with Debian's programs and the package, as user 10001, with the mounts of its manifest. */
async function runPod(form: string, tokens: Record<string, string>, life: Life) {
  const place = join(directory, `pod-${form}`);
  const certificates = await makeCertificates();
  const tls = await certificates.make("tls", "subjectAltName=DNS:toolgate.tools.svc", certificates.ca);
  const contents: Record<string, Record<string, string>> = {
    config: { "toolgate.toml": configOf(form) },
    tokens,
    tls: { "tls.crt": tls.cert, "tls.key": tls.key, "ca.crt": certificates.ca.cert },
    etc: { hosts: "127.0.0.1 localhost toolgate.tools.svc\n" },
  };
  await certificates.remove();
  const mounts: string[] = ["--ro-bind", join(place, "etc/hosts"), "/etc/hosts"];
  await fill("etc");
  for (const { name, mountPath, readOnly } of container(form).volumeMounts) {
    await fill(name);
    mounts.push(readOnly ? "--ro-bind" : "--bind", join(place, name), mountPath);
  }
  const system = ["bin", "lib", "lib64", "sbin"].flatMap((name) => ["--symlink", `usr/${name}`, `/${name}`]);
  const node = ["--ro-bind", dirname(process.execPath), "/opt/node"];
  const ours = ["--ro-bind", installed, "/opt/package", "--ro-bind", import.meta.dirname, "/opt/test"];
  const own = "--unshare-user --uid 10001 --gid 10001 --unshare-net --unshare-pid --die-with-parent".split(" ");
  const kernel = ["--ro-bind", "/usr", "/usr", "--proc", "/proc", "--dev", "/dev"];
  const script = ["/opt/node/node", "/opt/test/kubernetes/container.ts", JSON.stringify(life)];
  const args = [...own, ...kernel, ...system, ...node, ...ours, ...mounts, "--remount-ro", "/", ...script];
  const { stdout } = await run("bwrap", args, {
    env: { NODE_EXTRA_CA_CERTS: "/run/secrets/tls/ca.crt" },
  });
  return JSON.parse(stdout.trim().split("\n").at(-1) ?? "");

  async function fill(name: string): Promise<void> {
    await mkdir(join(place, name), { recursive: true });
    for (const [file, text] of Object.entries(contents[name] ?? {})) await writeFile(join(place, name, file), text);
  }
}

test("docs/kubernetes.md installs the chart with values that it has", async () => {
  const page = await readFile(join(root, "docs/kubernetes.md"), "utf8");
  const installs = [...page.matchAll(/^helm (?:install|upgrade) (?:--\S+ )*(.*)$/gm)].map(([, rest = ""]) =>
    rest.split(/\s+/),
  );
  expect(installs.length).toBeGreaterThan(0);
  for (const args of installs)
    expect(
      parse(
        (await helm("template", ...args.map((arg) => arg.replace(/^deploy/, `${root}/deploy`)))).split("\n---\n")[0] ??
          "",
      ),
    ).toBeDefined();
});

import { readdir, readFile } from "node:fs/promises";
import { join, resolve } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { parse, parseAllDocuments } from "yaml";
import { type ApiServer, buildApiServer, readDefinitions, startApiServer } from "./api-server.ts";
import { helm, installKubernetesPrograms } from "./programs.ts";

/** The chart on an API server of Kubernetes. No controller makes pods of its objects, and no node runs them. */
const root = resolve(import.meta.dirname, "../../..");
const chart = join(root, "deploy/helm/toolgate");
const forms = (await readdir(join(chart, "ci"))).map((file) => file.replace("-values.yaml", ""));
const valuesOf = (form: string) => ["--values", join(chart, "ci", `${form}-values.yaml`)];
let server: ApiServer;

// biome-ignore lint/suspicious/noExplicitAny: the API server checks the manifests
type Manifest = any;

beforeAll(async () => {
  await installKubernetesPrograms();
  await buildApiServer();
  server = await startApiServer();
  await create({ apiVersion: "v1", kind: "Namespace", metadata: { name: "tools" } });
  const labels = { "pod-security.kubernetes.io/enforce": "restricted" };
  await create({ apiVersion: "v1", kind: "Namespace", metadata: { name: "restricted", labels } });
  // A controller makes these: the account of each namespace, and the role `admin` of its parts.
  for (const namespace of ["tools", "restricted"])
    await create({ apiVersion: "v1", kind: "ServiceAccount", metadata: { name: "default" } }, namespace);
  const apiGroup = "rbac.authorization.k8s.io";
  const bind = (name: string, kind: string) =>
    create(
      {
        ...{ apiVersion: `${apiGroup}/v1`, kind: "RoleBinding", metadata: { name: name.replaceAll(":", "-") } },
        ...{ roleRef: { apiGroup, kind, name }, subjects: [{ apiGroup, kind: "User", name: "installer" }] },
      },
      "tools",
    );
  for (const part of ["admin", "edit", "view"]) await bind(`system:aggregate-to-${part}`, "ClusterRole");
  // Prometheus' operator grants these to nobody.
  const rules = [
    { apiGroups: ["monitoring.coreos.com"], resources: ["servicemonitors", "prometheusrules"], verbs: ["*"] },
  ];
  await create({ apiVersion: `${apiGroup}/v1`, kind: "Role", metadata: { name: "monitoring" }, rules }, "tools");
  await bind("monitoring", "Role");
});
afterAll(() => server?.stop());

async function create(manifest: Manifest, namespace = ""): Promise<void> {
  const { status, body } = await server.send("POST", await server.pathOf(manifest, namespace), manifest);
  expect({ status, message: body.message }).toEqual({ status: 201, message: undefined });
}

async function render(form: string, namespace: string): Promise<Manifest[]> {
  const text = await helm("template", "toolgate", chart, "--namespace", namespace, ...valuesOf(form));
  return parseAllDocuments(text).map((document) => document.toJS());
}

/** Applies a manifest as kubectl does with --server-side; returns what the API server has against it. */
async function apply(manifest: Manifest, namespace: string, options = ""): Promise<string[]> {
  const path = `${await server.pathOf(manifest, namespace)}/${manifest.metadata.name}`;
  const query = `fieldManager=test&fieldValidation=Strict${options}`;
  const { status, body, warnings } = await server.send("PATCH", `${path}?${query}`, manifest);
  return [...(status < 300 ? [] : [`${manifest.kind}: ${body.message}`]), ...warnings];
}

/** Returns the objects of the release in the namespace, by kind and name. */
async function objects(kinds: readonly Manifest[]): Promise<string[]> {
  const found = kinds.map(async (each) => {
    const selector = "labelSelector=app.kubernetes.io/instance=toolgate";
    const { body } = await server.send("GET", `${await server.pathOf(each, "tools")}?${selector}`);
    return body.items.map(({ metadata }: Manifest) => `${each.kind} ${metadata.name}`);
  });
  return [...new Set((await Promise.all(found)).flat())].sort();
}
const names = (manifests: readonly Manifest[]) =>
  manifests
    .filter(({ metadata }) => metadata.annotations?.["helm.sh/hook"] === undefined)
    .map(({ kind, metadata }) => `${kind} ${metadata.name}`)
    .sort();

test("a form with a ServiceMonitor is refused until the cluster has its definition", async () => {
  const install = ["install", "toolgate", chart, "--namespace", "tools", ...valuesOf("redis-network")];
  await expect(server.helm("installer", ...install)).rejects.toThrow("ensure CRDs are installed first");
  for (const definition of await readDefinitions()) {
    const manifest = parse(definition);
    await create(manifest);
    const path = `${await server.pathOf(manifest, "")}/${manifest.metadata.name}`;
    const isServed = ({ type, status }: Manifest) => type === "Established" && status === "True";
    while (!(await server.send("GET", path)).body.status?.conditions?.some(isServed)) await pause(50);
  }
});

describe.each(forms)("with the values of %s", (form) => {
  test("each object is accepted, with no field unknown and no warning", async () => {
    for (const manifest of await render(form, "tools"))
      expect(await apply(manifest, "tools", "&dryRun=All")).toEqual([]);
  });

  test("a namespace that enforces `restricted` admits its pods, except those with a sandbox", async () => {
    for (const { kind, metadata, spec } of await render(form, "restricted")) {
      if (kind !== "Pod" && spec?.template === undefined) continue;
      const pod = spec.template ?? { spec };
      const claims = (spec.volumeClaimTemplates ?? []).map(({ metadata: { name } }: Manifest) => ({
        name,
        persistentVolumeClaim: { claimName: `${name}-toolgate-0` },
      }));
      const volumes = [...(pod.spec.volumes ?? []), ...claims];
      const manifest = {
        ...{ apiVersion: "v1", kind: "Pod", metadata: { ...pod.metadata, name: metadata.name } },
        spec: { ...pod.spec, volumes },
      };
      const problems = await apply(manifest, "restricted", "&dryRun=All");
      if (!form.endsWith("sandbox") || kind === "Pod") expect(problems).toEqual([]);
      else expect(problems.join()).toContain("violates PodSecurity");
    }
  });
});

test("helm installs by the page, changes to each form of Redis, and removes all, with the rights of a namespace", async () => {
  const page = await readFile(join(root, "docs/kubernetes.md"), "utf8");
  const [, line = ""] = /^helm install (toolgate .*)$/m.exec(page) ?? [];
  await server.helm("installer", "install", ...line.replace("deploy", join(root, "deploy")).split(" "));
  let all = await render("sqlite", "tools");
  expect(await objects(all)).toEqual(names(all));
  // What a StatefulSet does not let change.
  const larger = [
    "upgrade",
    "toolgate",
    chart,
    "--namespace",
    "tools",
    ...valuesOf("sqlite"),
    "--set",
    "data.size=20Gi",
  ];
  await expect(server.helm("installer", ...larger)).rejects.toThrow("updates to statefulset spec");
  const others = ["--set", "sandbox.userNamespaces=true,memoryMiB=4096,drainMs=60000,hosts={gate.example}"];
  await server.helm(
    "installer",
    "upgrade",
    "toolgate",
    chart,
    "--namespace",
    "tools",
    ...valuesOf("sqlite"),
    ...others,
  );
  for (const form of forms.filter((each) => each.startsWith("redis"))) {
    await server.helm("installer", "upgrade", "toolgate", chart, "--namespace", "tools", ...valuesOf(form));
    const manifests = await render(form, "tools");
    all = [...all, ...manifests];
    expect(await objects(all)).toEqual(names(manifests));
  }
  await server.helm("installer", "uninstall", "toolgate", "--namespace", "tools");
  expect(await objects(all)).toEqual([]);
});

test("switching autoscaling on keeps the replicas that run", async () => {
  const values = [chart, "--namespace", "tools", "--set", "store=redis,insecureListen=true,replicas=5"];
  const deployment = { apiVersion: "apps/v1", kind: "Deployment" };
  const path = `${await server.pathOf(deployment, "tools")}/toolgate`;
  const replicas = async () => (await server.send("GET", path)).body.spec.replicas;
  await server.helm("installer", "install", "toolgate", ...values);
  expect(await replicas()).toBe(5);
  await server.helm("installer", "upgrade", "toolgate", ...values, "--set", "autoscaling.enabled=true");
  expect(await replicas()).toBe(5);
  // As the autoscaler does.
  await server.send("PATCH", `${path}/scale?fieldManager=autoscaler&force=true`, {
    ...{ apiVersion: "autoscaling/v1", kind: "Scale", metadata: { name: "toolgate", namespace: "tools" } },
    spec: { replicas: 7 },
  });
  await server.helm("installer", "upgrade", "toolgate", ...values, "--set", "autoscaling.enabled=true,drainMs=1");
  expect(await replicas()).toBe(7);
  await server.helm("installer", "uninstall", "toolgate", "--namespace", "tools");
});

test("objects applied by the server change from form to form, and are deleted", async () => {
  const paths = new Set<string>();
  for (const form of [...forms.filter((each) => each.startsWith("redis")), "sqlite"])
    for (const manifest of await render(form, "tools")) {
      if (manifest.metadata.annotations?.["helm.sh/hook"] !== undefined) continue;
      expect(await apply(manifest, "tools")).toEqual([]);
      paths.add(`${await server.pathOf(manifest, "tools")}/${manifest.metadata.name}`);
    }
  for (const path of paths) expect((await server.send("DELETE", path)).status).toBe(200);
});

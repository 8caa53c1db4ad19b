import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";

/** A package of npm whose code is part of ours. */
export interface Inlined {
  readonly name: string;
  readonly version: string;
  readonly license: string;
  readonly directory: string;
}

/** Returns the packages that these modules (paths) are of. */
export function packagesOf(modules: readonly string[]): Inlined[] {
  const found = modules.flatMap((path) => /^\0?(.*\/node_modules\/(?:@[^/]+\/)?[^/]+)\//.exec(path)?.[1] ?? []);
  return [...new Set(found)].toSorted().map((directory) => {
    const { name, version, license } = JSON.parse(readFileSync(join(directory, "package.json"), "utf8"));
    return { name, version, license, directory };
  });
}

/** The licences of packages as one text. */
export function licencesOf(packages: readonly Inlined[]): string {
  const sections = packages.map(({ name, version, license, directory }) => {
    const files = readdirSync(directory).filter((file) => /^(licen[cs]e|notice|copying)/i.test(file));
    const texts = files.toSorted().map((file) => readFileSync(join(directory, file), "utf8").trim());
    return [`${name} ${version} (${license})`, ...texts].join("\n\n");
  });
  return `Packages whose code is part of this one, with their licences.\n\n${sections.join(`\n\n${"-".repeat(80)}\n\n`)}\n`;
}

/** The bill of materials of our package, CycloneDX 1.6: what is inlined, and what npm installs beside it. */
export function billOf(
  ours: { name: string; version: string; license: string; dependencies: Record<string, string> },
  packages: readonly Inlined[],
): object {
  const component = (name: string, version: string) => ({
    ...{ type: "library", "bom-ref": purlOf(name, version), name, version, purl: purlOf(name, version) },
  });
  const root = { ...component(ours.name, ours.version), type: "application", licenses: [{ expression: ours.license }] };
  const inlined = packages.map(({ name, version, license }) => ({
    ...component(name, version),
    licenses: [{ expression: license }],
  }));
  const beside = Object.entries(ours.dependencies).map(([name, version]) => component(name, version));
  // Packages of two builds have one entry.
  const components = [...new Map([...inlined, ...beside].map((each) => [each.purl, each])).values()];
  return {
    ...{ bomFormat: "CycloneDX", specVersion: "1.6", version: 1, metadata: { component: root }, components },
    dependencies: [{ ref: root["bom-ref"], dependsOn: components.map(({ purl }) => purl).toSorted() }],
  };
}

const purlOf = (name: string, version: string) => `pkg:npm/${name.replace("@", "%40")}@${version}`;

import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";

/** The licences of the packages that these modules (paths) are of, as one text. */
export function licencesOf(modules: readonly string[]): string {
  const folders = modules.flatMap((path) => /^\0?(.*\/node_modules\/(?:@[^/]+\/)?[^/]+)\//.exec(path)?.[1] ?? []);
  const sections = [...new Set(folders)].toSorted().map((folder) => {
    const { name, version, license } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
    const files = readdirSync(folder).filter((file) => /^(licen[cs]e|notice|copying)/i.test(file));
    const texts = files.map((file) => readFileSync(join(folder, file), "utf8").trim());
    return [`${name} ${version} (${license})`, ...texts].join("\n\n");
  });
  return `Packages whose code is part of this one, with their licences.\n\n${sections.join(`\n\n${"-".repeat(80)}\n\n`)}\n`;
}

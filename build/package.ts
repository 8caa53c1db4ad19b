/** Builds what `npm pack` puts into the package: one bundle with an entry per export, its assets, its declarations, its licences. */
import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { writeDeclarations } from "./declarations.ts";
import { billOf, licencesOf, packagesOf } from "./licences.ts";
import { buildProgram, bundle, entries, peers } from "./program.ts";

const root = resolve(import.meta.dirname, "..");
const dist = join(root, "dist");

// After `npm ci --ignore-scripts` nothing has made it.
mkdirSync(dist, { recursive: true });
for (const name of readdirSync(dist, { withFileTypes: true }).map(({ name }) => name))
  if (name !== "console") rmSync(join(dist, name), { recursive: true });

const program = await buildProgram(dist);
const page = await bundle({ root: join(root, "src/console"), configFile: join(root, "build/console.ts") });
const { ai, index, client, plugin, testing, validators, worker } = entries;
const typed = writeDeclarations(
  root,
  join(dist, "types"),
  [ai, index, client, plugin, testing, validators, worker],
  peers,
);
const inlined = packagesOf([...program, ...page, ...typed]);
const { optionalDependencies, ...ours } = JSON.parse(readFileSync(join(root, "package.json"), "utf8"));
const bill = billOf({ ...ours, dependencies: { ...ours.dependencies, ...optionalDependencies } }, inlined);
writeFileSync(join(dist, "THIRD_PARTY"), licencesOf(inlined));
writeFileSync(join(dist, "sbom.cdx.json"), `${JSON.stringify(bill, undefined, 2)}\n`);

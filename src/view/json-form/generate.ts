/** `npm run generate`: writes gen/jsonschema/NAME.schema.json for each schema of the JSON form. */
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import * as z from "zod";
import { jsonForm } from "./schemas.ts";

const folder = join(import.meta.dirname, "../../../gen/jsonschema");
const file = (name: string) => `${name}.schema.json`;

// Input mode: readers must accept keys that a newer service adds.
const { schemas } = z.toJSONSchema(jsonForm, { uri: file, io: "input", target: "draft-2020-12" });
mkdirSync(folder, { recursive: true });
for (const [name, schema] of Object.entries(schemas)) {
  writeFileSync(join(folder, file(name)), `${JSON.stringify(schema, undefined, 2)}\n`);
}

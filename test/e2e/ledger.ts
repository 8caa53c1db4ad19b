import { randomUUID } from "node:crypto";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import type { Service } from "./service.ts";

/** A file that a command appends a line to each time it runs: the truth about how often that was. */
export function ledger({ workspace }: Pick<Service, "workspace">) {
  const name = `ledger-${randomUUID()}`;
  const file = join(workspace, name);
  return {
    file,
    /** The command that writes a line. */
    append: `echo ran >> ${name}`,
    async lines(): Promise<number> {
      const text = await readFile(file, "utf8").catch(() => "");
      return text.split("\n").length - 1;
    },
  };
}

import { randomUUID } from "node:crypto";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import type { Service } from "./service.ts";

/** A file that commands append a line to each time they run: the truth about how often that was. */
export function ledger({ workspace }: Pick<Service, "workspace">) {
  const name = `ledger-${randomUUID()}`;
  return {
    name,
    /** The command that writes a line. */
    append: (line: string) => `echo ${line} >> ${name}`,
    async lines(): Promise<string[]> {
      const text = await readFile(join(workspace, name), "utf8").catch(() => "");
      return text.split("\n").slice(0, -1);
    },
  };
}

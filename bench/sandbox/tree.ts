import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";

const filesPerDirectory = 10;
const directoriesPerParent = 50;

/** Files of the tree that may not be read. */
export const hiddenFiles = [".env", "prod.env", "conf/dev.env", "conf/test.env"];

/** Makes a workspace of that many files, ten in each directory. Four of them may not be read; hooks and settings are protected. */
export function makeTree(directory: string, files: number): void {
  const guarded = [
    ".git/config",
    ".git/hooks/pre-commit",
    ".vscode/settings.json",
    ".github/workflows/ci.yml",
    ".npmrc",
  ];
  for (const path of [...hiddenFiles, ...guarded]) {
    mkdirSync(join(directory, path, ".."), { recursive: true });
    writeFileSync(join(directory, path), "x\n");
  }
  for (let made = hiddenFiles.length + guarded.length; made < files; made += filesPerDirectory) {
    const number = Math.floor(made / filesPerDirectory);
    const place = join(directory, `d${Math.floor(number / directoriesPerParent)}`, `e${number % directoriesPerParent}`);
    mkdirSync(place, { recursive: true });
    for (let i = 0; i < filesPerDirectory; i += 1) writeFileSync(join(place, `f${i}.ts`), "");
  }
}

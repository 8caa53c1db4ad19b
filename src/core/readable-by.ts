import { readFileSync, statSync } from "node:fs";
import { dirname } from "node:path";

/** A user of the operating system, or `others`: any user that neither owns a file nor is in its group. */
type Reader = number | "others";

/**
 * Checks if a user can read a file, by the modes of the file and of the directories above it. An owner counts as a reader, since it can
 * change the mode. Access lists are not read.
 */
export function isReadableBy(user: Reader, path: string): boolean {
  const groups = user === "others" ? [] : groupsOf(user);
  const may = (place: string, bit: number) => {
    const found = statSync(place, { throwIfNoEntry: false });
    if (found === undefined) return false;
    if (found.uid === user) return true;
    return (found.mode & (groups.includes(found.gid) ? bit << 3 : bit)) !== 0;
  };
  return may(path, 4) && directoriesAbove(path).every((directory) => may(directory, 1));
}

function directoriesAbove(path: string): string[] {
  const parent = dirname(path);
  return parent === path ? [] : [parent, ...directoriesAbove(parent)];
}

/** Returns the groups of a user that the files of this machine name. */
function groupsOf(user: number): number[] {
  const rowsOf = (file: string) =>
    readFileSync(file, "utf8")
      .split("\n")
      .map((row) => row.split(":"));
  const [name, , , own] = rowsOf("/etc/passwd").find(([, , uid]) => uid === `${user}`) ?? [];
  if (name === undefined) return [];
  const more = rowsOf("/etc/group").filter(([, , , members = ""]) => members.split(",").includes(name));
  return [own, ...more.map(([, , gid]) => gid)].map(Number);
}

import { accessSync, constants } from "node:fs";
import { delimiter, join, resolve } from "node:path";

/** Finds a program: a path is taken as it is, a name is looked up in PATH. Undefined if it cannot be run. */
export function locateProgram(named: string, path: string | undefined): string | undefined {
  const places = named.includes("/")
    ? [resolve(named)]
    : (path ?? "").split(delimiter).map((place) => join(place, named));
  return places.find(canRun);
}

function canRun(file: string): boolean {
  try {
    accessSync(file, constants.X_OK);
    return true;
  } catch {
    return false;
  }
}

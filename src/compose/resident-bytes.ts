import { readFile } from "node:fs/promises";

/** Sums the resident memory of a process and of those that it started; 0 for what has ended. */
export async function residentBytes(pid: number): Promise<number> {
  const read = async (file: string) => await readFile(`/proc/${pid}/${file}`, "utf8").catch(() => "");
  const [statm, children] = await Promise.all([read("statm"), read(`task/${pid}/children`)]);
  const own = Number(statm.split(" ")[1] ?? 0) * pageBytes;
  const below = await Promise.all(
    children
      .trim()
      .split(" ")
      .filter(Boolean)
      .map((child) => residentBytes(Number(child))),
  );
  return below.reduce((sum, bytes) => sum + bytes, own);
}

const pageBytes = 4_096;

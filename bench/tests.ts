import { spawn } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";

/** Runs `npm test` and prints its last line: files, tests, wall and CPU time. */
export async function measureTests(print: (text: string) => void): Promise<void> {
  const child = spawn("npm", ["test"], {
    cwd: join(import.meta.dirname, ".."),
    stdio: ["ignore", "pipe", "inherit"],
    env: { ...process.env, NO_COLOR: "1" },
  });
  const ended = once(child, "exit");
  let text = "";
  for await (const chunk of child.stdout) text += chunk;
  const [code] = await ended;
  if (code !== 0) throw new Error(`npm test failed with status ${code}`);
  const last = text.trimEnd().split("\n").at(-1) ?? "";
  if (!last.includes("CPU")) throw new Error(`npm test did not end with its figures: ${last}`);
  print(last);
}

import { execFileSync } from "node:child_process";
import { createMountPoints } from "../../src/sandbox/mount-points.ts";

// A process for mount-points.test.ts: holds mount points, of which one waits, lets bubblewrap make one, and stays.
const [list = "", directory = ""] = process.argv.slice(2);
const [absent, masked, emptied] = [".claude", "gone.env", "secret"].map((name) => `${directory}/${name}`);
const points = createMountPoints(list);
points.hold({ absent: [`${directory}/.idea`], mounted: [], sinceMs: Date.now() }).rest();
points.hold({
  absent: [absent ?? ""],
  mounted: [masked ?? "", emptied ?? ""],
  sinceMs: Date.now() - 50,
});
const mounts = ["--ro-bind", "/dev/null", masked ?? "", "--tmpfs", emptied ?? ""];
execFileSync("bwrap", ["--dev-bind", "/", "/", ...mounts, "true"]);
console.log("held");
setInterval(() => {}, 1_000);

// Preloaded with --import: prints the program's own files that were loaded, one a line, to stderr at the end.
import { registerHooks } from "node:module";

const loaded: string[] = [];
registerHooks({
  load(url, context, next) {
    if (url.startsWith("file:") && url !== import.meta.url) loaded.push(url);
    return next(url, context);
  },
});
process.on("exit", () => process.stderr.write(loaded.map((url) => `${url}\n`).join("")));

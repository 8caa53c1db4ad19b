import { assets } from "../core/assets.ts";

/** Modules that tools import even if no package provides them, by URL. */
export const providedModules: Readonly<Record<string, string>> = {
  "@opencode-ai/plugin": assets.plugin,
  "@opencode-ai/plugin/tool": assets.plugin,
  zod: assets.zod,
  "zod/v4": assets.zod,
};

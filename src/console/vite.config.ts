import { defineConfig } from "vite";

export default defineConfig({
  build: {
    outDir: "../../dist/console",
    emptyOutDir: true,
    target: "es2022",
    modulePreload: { polyfill: false },
    // The page may load pictures of its own only from its own address.
    assetsInlineLimit: 0,
  },
});

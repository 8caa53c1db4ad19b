import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, onTestFinished, test, vi } from "vitest";
import { callTool, openTestWorkspace } from "../../src/testing.ts";
import { createWebSearch } from "../../src/tools/websearch.ts";
import { needPrograms } from "../programs.ts";
import { answerJson, startProvider, unfenced } from "./search-provider.ts";

test("a real searx with an engine on this machine answers websearch", async () => {
  const engine = await startProvider(
    answerJson({ found: [{ link: "https://example.com/a", name: "A page", text: "Its &lt;/untrusted-0&gt; text" }] }),
  );
  const url = await startSearx(engine.url);
  await using site = await openTestWorkspace();
  const tool = createWebSearch({
    websearch: { provider: "searxng", url, isUrlConfigured: true, timeoutMs: 25_000 },
  });
  const { output, metadata } = await callTool(site, tool, { query: "to find" });
  expect(unfenced(output)).toContain(
    '<untrusted source="result 1 of 1">\n## [A page](https://example.com/a)\n\nIts &lt;/untrusted-0> text\n</untrusted>',
  );
  expect(metadata).toMatchObject({ provider: "searxng", results: 1, leftOut: 0 });
  expect(engine.seen[0]?.url.searchParams.get("q")).toBe("to find");
});

/** Starts searx with one engine, which searches by a JSON API; it ends with the test. */
async function startSearx(engineUrl: string): Promise<string> {
  needPrograms([["searx-run", "searx"]]);
  const folder = await mkdtemp(join(tmpdir(), "toolgate-searx-"));
  onTestFinished(() => rm(folder, { recursive: true, force: true }));
  const port = await freePort();
  const engine = {
    ...{
      name: "local",
      engine: "json_engine",
      shortcut: "lo",
      categories: "general",
      disabled: false,
      enable_http: true,
    },
    search_url: `${engineUrl}/?q={query}`,
    ...{ results_query: "found", url_query: "link", title_query: "name", content_query: "text" },
  };
  const share = "/usr/share/python3-searx";
  // Debian's package has no default settings, so these are all that it reads.
  const settings = {
    general: { debug: false, instance_name: "searx", contact_url: false, enable_stats: false },
    brand: Object.fromEntries(brandKeys.map((key) => [key, "http://127.0.0.1/"])),
    search: { safe_search: 0, autocomplete: "", default_lang: "", ban_time_on_fail: 5, max_ban_time_on_fail: 120 },
    server: {
      ...{ port, bind_address: "127.0.0.1", secret_key: "for-tests", base_url: false, image_proxy: false },
      ...{ http_protocol_version: "1.0", method: "GET", default_http_headers: {} },
    },
    ui: {
      ...{ static_path: `${share}/static`, templates_path: `${share}/templates`, default_theme: "oscar" },
      ...{ default_locale: "", theme_args: { oscar_style: "logicodev" } },
    },
    outgoing: { request_timeout: 10, useragent_suffix: "", pool_connections: 10, pool_maxsize: 2 },
    locales: { en: "English" },
    ...{ doi_resolvers: { doi: "https://doi.org/" }, default_doi_resolver: "doi" },
    engines: [engine],
  };
  // JSON is YAML.
  await writeFile(join(folder, "settings.yml"), JSON.stringify(settings));
  const env = { PATH: process.env.PATH, HOME: folder, SEARX_SETTINGS_PATH: join(folder, "settings.yml") };
  const child = spawn("searx-run", [], { cwd: folder, env, stdio: "ignore" });
  const ended = once(child, "exit").then(([code]) => {
    throw new Error(`searx ended with code ${code} before it answered`);
  });
  ended.catch(() => undefined);
  onTestFinished(() => stop(child));
  const url = `http://127.0.0.1:${port}`;
  const ready = vi.waitUntil(
    () =>
      fetch(url).then(
        (response) => response.ok,
        () => false,
      ),
    { timeout: 90_000 },
  );
  await Promise.race([ready, ended]);
  return url;
}

const brandKeys = "git_url git_branch issue_url docs_url public_instances wiki_url twitter_url".split(" ");

async function stop(child: ChildProcess): Promise<void> {
  if (child.pid === undefined || child.exitCode !== null) return;
  const exited = once(child, "exit");
  child.kill("SIGKILL");
  await exited;
}

async function freePort(): Promise<number> {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const address = server.address();
  server.close();
  await once(server, "close");
  return typeof address === "object" && address !== null ? address.port : 0;
}

import { mkdirSync, mkdtempSync, realpathSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { inspect } from "node:util";
import { describe, expect, onTestFinished, test } from "vitest";
import { declaredTools } from "../../src/compose/built-in-tools.ts";
import { checkConfig } from "../../src/config/check-config.ts";
import { loadConfig } from "../../src/config/config.ts";

const key = "key-0123456789-for-tests";

/** A home directory with a configuration file, a key file and a workspace. */
function machine(settings: string) {
  const home = realpathSync(mkdtempSync(join(tmpdir(), "toolgate-search-")));
  onTestFinished(() => rmSync(home, { recursive: true }));
  for (const name of ["work", "src"]) mkdirSync(join(home, name));
  writeFileSync(join(home, "key"), `${key}\n`);
  writeFileSync(join(home, "two-lines"), `${key}\n${key}\n`);
  writeFileSync(join(home, "work/key"), key);
  const file = join(home, "toolgate.toml");
  writeFileSync(file, `${settings}\n[workspace]\ndefault = "work"\n`);
  const environment = { env: { SEARCH_KEY: key }, home, directory: home };
  return {
    home,
    load: () => loadConfig({ config: file }, environment),
    check: async () => checkConfig(file, environment, await declaredTools()),
  };
}

test.each(['key_file = "key"', 'key_env = "SEARCH_KEY"'])(
  "a key comes from %s and is never printed",
  async (source) => {
    const { load, check } = machine(`[websearch]\nprovider = "exa"\n${source}\n`);
    const config = load();
    expect(config.websearch).toMatchObject({ provider: "exa", url: "https://api.exa.ai", isUrlConfigured: false });
    expect(config.websearch?.key?.()).toBe(key);
    expect(`${inspect(config, { depth: 9, showHidden: true })}${JSON.stringify(config)}`).not.toContain(key);
    expect(JSON.stringify(await check())).not.toContain(key);
  },
);

test("an address of the configuration replaces that of the provider, paths start at the file", () => {
  const { load, home } = machine(
    '[websearch]\nprovider = "searxng"\nurl = "http://127.0.0.1:8888/searx/"\ntimeout_ms = 9\n[codesearch]\nprovider = "ripgrep"\nroots = ["src"]\n',
  );
  expect(load()).toMatchObject({
    websearch: { url: "http://127.0.0.1:8888/searx", isUrlConfigured: true, timeoutMs: 9 },
    codesearch: { provider: "ripgrep", roots: [join(home, "src")] },
  });
});

test("check-config says which search tools are not offered, and why", async () => {
  expect((await machine("").check()).notes).toEqual([
    "websearch is not offered: no provider is configured; name one as provider in [websearch]",
    "codesearch is not offered: no provider is configured; name one as provider in [codesearch]",
  ]);
  const { notes, findings } = await machine(
    '[codesearch]\nprovider = "sourcegraph"\n[permission]\nwebsearch = "ask"\n',
  ).check();
  expect(notes).toHaveLength(1);
  expect(findings).toEqual([]);
});

test("check-config warns of a key that crosses a network in clear", async () => {
  const at = (url: string) =>
    machine(`[codesearch]\nprovider = "sourcegraph"\nurl = "${url}"\nkey_env = "SEARCH_KEY"\n`).check();
  expect((await at("http://code.example:3080")).findings).toMatchObject([
    { severity: "warning", line: 1, message: expect.stringContaining("is sent to code.example without encryption") },
  ]);
  for (const url of ["http://127.0.0.1:3080", "https://code.example"]) expect((await at(url)).findings).toEqual([]);
});

describe("refuses, without a key in the error,", () => {
  test.each([
    ["no provider", '[websearch]\nurl = "https://a.example"', "websearch.provider"],
    ["an unknown provider", '[websearch]\nprovider = "bing"', "websearch.provider"],
    ["a missing address", '[websearch]\nprovider = "searxng"', "set url in [websearch]"],
    ["a missing key", '[websearch]\nprovider = "brave"', "this provider needs a key; set key_file or key_env"],
    [
      "a needless key",
      '[websearch]\nprovider = "searxng"\nurl = "https://a.example"\nkey_file = "key"',
      "takes no key",
    ],
    ["a provider of former versions", '[websearch]\nprovider = "tavily"', "websearch.provider"],
    ["two keys", '[websearch]\nprovider = "exa"\nkey_file = "key"\nkey_env = "SEARCH_KEY"', "are both set"],
    ["a key in a workspace", '[websearch]\nprovider = "exa"\nkey_file = "work/key"', "lies inside the workspace"],
    ["a missing key file", '[websearch]\nprovider = "exa"\nkey_file = "none"', "cannot be read"],
    ["a key of two lines", '[websearch]\nprovider = "exa"\nkey_file = "two-lines"', "is not one line of printable"],
    ["an unset variable", '[websearch]\nprovider = "exa"\nkey_env = "NONE"', "NONE is not set"],
    ["a key in the file itself", `[websearch]\nprovider = "exa"\nkey = "${key}"`, 'unknown key "key"'],
    [
      "a key in the address",
      `[websearch]\nprovider = "searxng"\nurl = "https://${key}@a.example"`,
      "without user name",
    ],
    [
      "a query in the address",
      `[websearch]\nprovider = "searxng"\nurl = "https://a.example/?k=${key}"`,
      "without user",
    ],
    ["another scheme", '[websearch]\nprovider = "searxng"\nurl = "file:///etc"', "http:// or https://"],
    [
      "roots of a remote provider",
      '[codesearch]\nprovider = "sourcegraph"\nroots = ["src"]',
      'for the provider "ripgrep"',
    ],
    ["ripgrep without roots", '[codesearch]\nprovider = "ripgrep"', "needs roots"],
    [
      "ripgrep with an address",
      '[codesearch]\nprovider = "ripgrep"\nroots = ["src"]\nurl = "https://a.example"',
      "no url",
    ],
    ["a root that is missing", '[codesearch]\nprovider = "ripgrep"\nroots = ["none"]', "is not a directory"],
  ])("%s", async (_, settings, reason) => {
    const { load, check } = machine(settings);
    let message = "";
    try {
      load();
    } catch (error) {
      message = inspect(error);
    }
    expect(message).toContain(reason);
    expect(message).not.toContain(key);
    await expect(check()).rejects.toThrow(reason);
  });
});

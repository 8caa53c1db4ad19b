import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { findServer } from "../../src/client/find-server.ts";

let data: string;
beforeEach(async () => {
  data = await mkdtemp(join(tmpdir(), "toolgate-data-"));
  await mkdir(join(data, "tokens"));
  await writeFile(join(data, "tokens/caller"), "local\n");
  for (const name of ["URL", "TOKEN", "CA", "CERT", "KEY"]) vi.stubEnv(`TOOLGATE_${name}`, "");
  vi.stubEnv("TOOLGATE_DATA", data);
});
afterEach(async () => {
  vi.unstubAllEnvs();
  await rm(data, { recursive: true });
});

test("without options it is the service of this machine, with its caller token, which no worker takes", () => {
  expect(findServer({}, "caller")).toEqual({ url: "http://127.0.0.1:7420", token: "local" });
  expect(findServer({}, "worker")).toEqual({ url: "http://127.0.0.1:7420" });
});

test("the environment names another one, and options come before it", async () => {
  await writeFile(join(data, "ca.pem"), "PEM");
  vi.stubEnv("TOOLGATE_URL", "https://tools.example.com/");
  vi.stubEnv("TOOLGATE_CA", join(data, "ca.pem"));
  // The local token is sent to no other machine.
  expect(findServer({}, "caller")).toEqual({ url: "https://tools.example.com", ca: "PEM" });
  vi.stubEnv("TOOLGATE_TOKEN", "named");
  for (const role of ["caller", "worker"] as const) expect(findServer({}, role).token).toBe("named");
  expect(findServer({ url: "10.0.0.1:80", token: "given" }, "worker")).toMatchObject({
    ...{ url: "http://10.0.0.1:80", token: "given" },
  });
});

test("a token that was given empty is refused, and no other takes its place", () => {
  for (const token of ["", " \n"])
    for (const role of ["caller", "worker"] as const)
      expect(() => findServer({ token }, role)).toThrow("the token is empty");
});

test("an address that is none, and a certificate that cannot be read, are named", () => {
  expect(() => findServer({ url: "ftp://x" }, "caller")).toThrow('"ftp://x" is not the address of a service');
  vi.stubEnv("TOOLGATE_CERT", join(data, "none.pem"));
  expect(() => findServer({}, "caller")).toThrow(/none\.pem cannot be read: let TOOLGATE_CERT name/);
});

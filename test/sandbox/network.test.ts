import { execFileSync } from "node:child_process";
import { once } from "node:events";
import { readdirSync, readFileSync } from "node:fs";
import { createServer, type RequestListener, type Server } from "node:http";
import { createServer as createSecureServer } from "node:https";
import { type AddressInfo, createServer as createTcpServer, type Server as TcpServer } from "node:net";
import { join } from "node:path";
import { afterAll, beforeAll, beforeEach, describe, expect, onTestFinished, test } from "vitest";
import { openSandbox } from "../../src/sandbox/sandbox.ts";
import { callTool, judgeBy, openTestWorkspace, type RunOptions, type TestWorkspace } from "../../src/testing.ts";
import { createBash } from "../../src/tools/bash.ts";
import { createPipes } from "../../src/tools/process/run-command.ts";
import { createSupervisor } from "../../src/tools/process/supervisor.ts";
import { isBroad } from "../breadth.ts";
import { makeCertificates } from "../edge/certificates.ts";
import { killIfAlive } from "../tools/processes.ts";
import { runConfined } from "./confined.ts";

/** An address of this machine that proxy variables do not except, unlike 127.0.0.1. */
const loopback = "127.0.0.2";
const supervisor = createSupervisor({ replicaId: `network-test-${process.pid}`, leaseMs: 15_000 });
const pipes = createPipes();
const wanted = { profile: "workspace-write", network: "proxy" } as const;
const open = { profile: "workspace-write", network: "open" } as const;
const sandbox = await openSandbox({ wanted, agents: new Map([["plan", open]]), writable: [], hidden: [] });
const bash = createBash({ supervisor, sandbox, pipes });
let site: TestWorkspace;
beforeAll(async () => {
  site = await openTestWorkspace();
});
beforeEach(() => {
  site.judge = judgeBy({});
});
afterAll(async () => {
  await site.remove();
  await supervisor.close();
  await pipes.close();
  sandbox.close();
});

async function listen(server: Server | TcpServer): Promise<string> {
  server.listen(0, loopback);
  await once(server, "listening");
  onTestFinished(() => {
    if ("closeAllConnections" in server) server.closeAllConnections();
    server.close();
  });
  return `${loopback}:${(server.address() as AddressInfo).port}`;
}

const hello: RequestListener = ({ headers, url }, response) => response.end(`hello ${headers.host}${url}\n`);
const serve = async (answer = hello) => `http://${await listen(createServer(answer))}`;
const run = (command: string, options?: RunOptions) => callTool(site, bash, { command }, options);
/** Rules that name a host, without which addresses of this machine are refused. */
const rule = (url: string, action: "allow" | "ask" | "deny") => judgeBy({ webfetch: { [`${url}/*`]: action } });

describe("a command whose network is the proxy", () => {
  test("reaches a host that rules allow, and the result has the host and the bytes", async () => {
    const url = await serve();
    site.judge = rule(url, "allow");
    const { written, metadata } = await run(
      `curl -sS ${url}/a; python3 -c "import urllib.request as u; print(u.urlopen('${url}/b').read())"`,
    );
    const host = new URL(url).host;
    expect(written).toBe(`hello ${host}/a\nb'hello ${host}/b\\n'\n`);
    expect(metadata?.network).toMatchObject({
      hosts: [{ host: loopback, port: Number(new URL(url).port), connections: 2, sentBytes: expect.any(Number) }],
      refused: [],
    });
  });

  test("gets an error from the proxy for a host that rules deny, and the result names the rule", async () => {
    const url = await serve();
    site.judge = rule(url, "deny");
    const { written, note } = await run(`curl -sS ${url}/a; curl -sS -p -x $http_proxy ${url}/b`, { onAsk: never });
    expect(written).toContain(`toolgate: ${url}/a is not allowed: `);
    expect(written).toContain("403");
    expect(note).toContain(`The network refused: ${url}/a is not allowed: `);
  });

  test("does not reach an address of this machine that no rule names, even if all hosts are allowed", async () => {
    const url = await serve();
    site.judge = judgeBy({ webfetch: "allow" });
    expect((await run(`curl -sS ${url}/`)).written).toContain("is not a public address (loopback)");
  });

  test("waits for a person at an unknown host, once for each host", async () => {
    const url = await serve();
    site.judge = rule(url, "ask");
    const { written, asked } = await run(`curl -sS ${url}/a; curl -sS ${url}/b`);
    expect(written).toMatch(/^hello .*\/a\nhello .*\/b\n$/);
    expect(asked).toEqual([
      expect.objectContaining({ permission: "webfetch", patterns: [`${url}/`], always: [`${url}/*`], refusable: true }),
    ]);
  });

  test("goes on without a host that a person refuses", async () => {
    const url = await serve();
    site.judge = rule(url, "ask");
    const { written, metadata } = await run(`curl -sS ${url}/a; echo on`, { onAsk: never });
    expect(written).toMatch(/toolgate: .* was refused: not today\non\n$/);
    expect(metadata).toMatchObject({ exit: 0, network: { refused: [{ url: `${url}/a` }] } });
  });

  test("reaches neither this machine nor the web past the proxy, nor a resolver, and the result names the switch", async () => {
    const url = await serve();
    site.judge = rule(url, "allow");
    const past = `curl -sS -m3 --noproxy '*' ${url}/`;
    const { written, note } = await run(
      `curl -sS -m3 --noproxy '*' http://192.0.2.1/; getent hosts example.com || echo unresolved; ${past}`,
    );
    expect(written).not.toContain("hello");
    expect(written).toContain("unresolved");
    expect(note).toContain('set network = "open" under [sandbox.agent.NAME]');
    // The control: a command with the open network.
    const plain = createBash({ supervisor, pipes, sandbox: { ...sandbox, confine: confineAsPlan } });
    expect((await callTool(site, plain, { command: past })).written).toContain("hello");
  });

  test("cannot make the proxy send a request to another host than the one that was judged", async () => {
    const [url, other] = [await serve(), await serve(() => expect.unreachable())];
    site.judge = rule(url, "allow");
    const { written } = await run(`curl -sS -H "Host: ${new URL(other).host}" ${url}/a`);
    expect(written).toBe(`hello ${new URL(url).host}/a\n`);
  });

  test("gets an error for an answer that is none, and the proxy goes on", async () => {
    const odd = `http://${await listen(
      createTcpServer((socket) => {
        socket.on("error", () => undefined).once("data", () => socket.end("HTTP/1.1 099 odd\\r\\n\\r\\n"));
      }),
    )}`;
    site.judge = rule(odd, "allow");
    const before = proxies();
    const { written } = await run(`curl -sS -o /dev/null -w '%{http_code}\\n' ${odd}/a`);
    expect(written).toBe("502\n");
    const url = await serve();
    site.judge = rule(url, "allow");
    expect((await run(`curl -sS ${url}/c`)).written).toContain("/c");
    expect(proxies()).toEqual(before);
  });

  test("lists few refused requests, however many there are", async () => {
    const { metadata } = await run(
      `for n in $(seq 60); do curl -s -o /dev/null http://127.0.0.3/$n$(printf x%.0s $(seq 3000)); done`,
    );
    const { refused = [] } = (metadata?.network ?? {}) as { refused?: { url: string }[] };
    expect(refused).toHaveLength(20);
    for (const { url } of refused) expect(url.length).toBeLessThanOrEqual(1_000);
  });

  test("leads git over ssh through the proxy, where it is judged as ssh", async () => {
    const { written, asked } = await run("git ls-remote ssh://git@example.com/x", { onAsk: never });
    expect(asked).toMatchObject([{ permission: "webfetch", patterns: ["ssh://example.com/"] }]);
    expect(written).toContain("toolgate: ssh://example.com/ was refused");
  });

  test("reaches a server that another command of its session tree runs", async () => {
    const stop = new AbortController();
    const server = run("exec python3 -um http.server --bind 127.0.0.1 8099", { signal: stop.signal });
    const { written } = await run("for i in $(seq 100); do curl -s http://127.0.0.1:8099/ && break; sleep 0.1; done");
    expect(written).toContain("Directory listing");
    stop.abort();
    await expect(server).rejects.toThrow();
  });
});

const confineAsPlan: typeof sandbox.confine = (argv, place) => sandbox.confine(argv, { ...place, agent: "plan" });

function never(): never {
  throw new Error("not today");
}

test("after the proxy was killed commands reach nothing, and the next command has a network again", async () => {
  const url = await serve();
  site.judge = rule(url, "allow");
  const { written } = await run(
    `curl -sS ${url}/a; touch ready; until [ -e killed ]; do sleep 0.05; done; curl -sS ${url}/b`,
    {
      async onOutput(text) {
        if (!text.endsWith("/a\n")) return;
        for (const pid of proxies()) killIfAlive(pid);
        execFileSync("touch", [join(site.directory, "killed")]);
      },
    },
  );
  expect(written).toMatch(/^hello .*\/a\ncurl: .*(Couldn't connect|Connection reset|Empty reply)/);
  expect((await run(`curl -sS ${url}/c`)).written).toContain("/c");
});

/** Process IDs of the proxies that this process started. */
function proxies(): number[] {
  return readdirSync("/proc")
    .filter((name) => /^\d+$/.test(name))
    .filter((pid) => {
      try {
        const parent = /^PPid:\t(\d+)/m.exec(readFileSync(`/proc/${pid}/status`, "utf8"))?.[1];
        return parent === String(process.pid) && readFileSync(`/proc/${pid}/cmdline`, "utf8").includes("proxy-process");
      } catch {
        return false;
      }
    })
    .map(Number);
}

test.runIf(process.getuid?.() === 0)(
  "a user's commands reach what is allowed, and nothing past the proxy",
  async () => {
    const url = await serve();
    const line = `curl -sS ${url}/a; curl -sS http://127.0.0.3/; curl -sS -m3 --noproxy '*' ${url}/b`;
    const { printed, errors } = await runConfined(["/bin/bash", "-c", line], {
      ...{ asUser: true, network: "proxy", allowed: url },
    });
    expect(printed).toMatch(/^hello .*\/a\ntoolgate: .*127\.0\.0\.3.* is not allowed/);
    expect(errors).toContain("Couldn't connect");
  },
);

test.runIf(isBroad)("git clones and npm installs over HTTPS", async () => {
  const certificates = await makeCertificates();
  onTestFinished(certificates.remove);
  const { cert, key } = certificates.server;
  execFileSync("bash", ["-ec", repositoryAndPackage], { cwd: site.outside });
  const host = await listen(
    createSecureServer({ cert, key }, ({ url = "", headers }, response) => {
      const path = url.split("?", 1)[0] ?? "";
      try {
        if (path === "/tidy") return response.end(packument(`https://${headers.host}/tidy.tgz`));
        response.end(readFileSync(join(site.outside, path)));
      } catch {
        response.writeHead(404).end();
      }
    }),
  );
  site.judge = judgeBy({ webfetch: { [`https://${host}/*`]: "allow" } });
  const git = await run(`git -c http.sslVerify=false clone -q https://${host}/repo.git clone && cat clone/file`);
  expect(git.written).toBe("content\n");
  const npm = await run(
    `export HOME=$PWD npm_config_strict_ssl=false; npm install --no-audit --no-fund --registry https://${host}/ tidy && cat node_modules/tidy/index.js`,
  );
  expect(npm.written).toContain("module.exports = 1");
});

const repositoryAndPackage = `
  git init -q source && cd source
  echo content > file && git add file
  git -c user.name=a -c user.email=a@b commit -qm first
  cd .. && git clone -q --bare source repo.git && git -C repo.git update-server-info
  mkdir package && echo 'module.exports = 1' > package/index.js
  echo '{"name":"tidy","version":"1.0.0"}' > package/package.json
  tar czf tidy.tgz package
`;

const packument = (tarball: string) =>
  JSON.stringify({
    name: "tidy",
    "dist-tags": { latest: "1.0.0" },
    versions: { "1.0.0": { name: "tidy", version: "1.0.0", dist: { tarball } } },
  });

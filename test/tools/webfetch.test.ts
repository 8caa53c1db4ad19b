import { subscribe, unsubscribe } from "node:diagnostics_channel";
import { once } from "node:events";
import { createServer, type RequestListener } from "node:http";
import type { AddressInfo } from "node:net";
import type { Worker } from "node:worker_threads";
import { brotliCompressSync, deflateSync, gzipSync } from "node:zlib";
import { afterEach, beforeEach, describe, expect, onTestFinished, test } from "vitest";
import type { Ask } from "../../src/core/ask.ts";
import { callTool, judgeBy, openTestWorkspace, planCall, type TestWorkspace } from "../../src/testing.ts";
import { InvalidInput } from "../../src/tool/errors.ts";
import { createWebFetch } from "../../src/tools/webfetch.ts";
import { casesOf } from "../breadth.ts";

const webfetch = createWebFetch();
let site: TestWorkspace;
beforeEach(async () => {
  site = await openTestWorkspace();
});
afterEach(() => site.remove());

/** Starts a web server on a free port, which a rule names; it ends with the test. */
async function serve(answer: RequestListener): Promise<string> {
  const server = createServer(answer).listen(0, "127.0.0.1");
  await once(server, "listening");
  onTestFinished(() => {
    server.closeAllConnections();
    server.close();
  });
  const { port } = server.address() as AddressInfo;
  site.judge = judgeBy({ webfetch: { [`http://127.0.0.1:${port}/*`]: "allow" } });
  return `http://127.0.0.1:${port}`;
}

const page = (html: string, headers: Record<string, string> = {}): RequestListener => {
  return (_, response) => response.writeHead(200, { "content-type": "text/html; charset=utf-8", ...headers }).end(html);
};
const fetch = (url: string, rest: Record<string, string | number> = {}) => callTool(site, webfetch, { url, ...rest });

describe("what is asked for", () => {
  test.each([
    ["HTTPS://Example.COM:443/a/../b?q=1#part", "https://example.com/b?q=1"],
    ["https://example.com./", "https://example.com/"],
    ["http://0x7f.1/", "http://127.0.0.1/"],
    ["https://bücher.example", "https://xn--bcher-kva.example/"],
  ])("%s is %s", async (url, pattern) => {
    const { plan } = await planCall(site, webfetch, { url });
    expect(plan.asks).toMatchObject([{ permission: "webfetch", patterns: [pattern] }]);
    expect((await plan.inspect?.())?.preview?.()).toEqual({ hosts: [new URL(pattern).host] });
  });

  test.each([
    ["ftp://example.com/", "must start with http"],
    ["file:///etc/passwd", "must start with http"],
    ["https://user@example.com/", "user name"],
    ["https://example.com@evil.example/", "user name"],
    ["https://example.com/\r\nHost: evil", "control character"],
    ["https://example.com/a\tb", "control character"],
    ["https://exa mple.com/", "not a valid URL"],
    ["https://[::1%25lo]/", "not a valid URL"],
    ["https://*.example.com/", "invalid host name"],
    ["https://example..com/", "invalid host name"],
  ])("%s is refused as input", async (url, why) => {
    const refused = planCall(site, webfetch, { url });
    await expect(refused).rejects.toThrow(InvalidInput);
    await expect(refused).rejects.toThrow(why);
  });

  test("an address of over 4,096 characters is refused as input", async () => {
    const url = `https://example.com/${"a".repeat(5_000)}`;
    await expect(planCall(site, webfetch, { url })).rejects.toThrow("at most 4096");
  });
});

/** Tags that nest too deeply for the converter; of the second ones it spends its whole time limit. */
const endless = [
  ["<span>", "failed, perhaps because it is nested too deeply"],
  ["<div>", "takes longer than 5 s"],
] as const;

describe("a page", () => {
  const html =
    "<html><head><title>t</title><style>p{}</style></head><body><h1>Title</h1><p>One <b>two</b> &amp; three</p>" +
    "<script>steal()</script><table><tr><th>a</th></tr><tr><td>1</td></tr></table></body></html>";

  test("comes as markdown, as text or as it is", async () => {
    const url = await serve(page(html));
    const markdown = await fetch(url);
    expect(markdown.output).toBe("# Title\n\nOne **two** & three\n\n| a   |\n| --- |\n| 1   |");
    expect(markdown.title).toBe(`${url}/ (text/html; charset=utf-8)`);
    const text = (await fetch(url, { format: "text" })).output;
    expect(text).toContain("Title\n\nOne two & three");
    expect(text).not.toMatch(/steal|p\{\}/);
    expect((await fetch(url, { format: "html" })).output).toBe(html);
  });

  test("is converted while at most one other is", async () => {
    const url = await serve(page(html));
    let [running, max] = [0, 0];
    const count = (message: unknown) => {
      running += 1;
      max = Math.max(max, running);
      (message as { worker: Worker }).worker.once("exit", () => {
        running -= 1;
      });
    };
    subscribe("worker_threads", count);
    onTestFinished(() => void unsubscribe("worker_threads", count));
    for (const { output } of await Promise.all(Array.from({ length: 8 }, () => fetch(url))))
      expect(output).toContain("# Title");
    expect(max).toBe(2);
  });

  test("is read in the encoding that the server, or the page, names", async () => {
    const latin = Buffer.from("<meta charset=iso-8859-1><p>caf\xe9", "latin1");
    const url = await serve((request, response) => {
      const type = request.url === "/header" ? "text/plain; charset=latin1" : "text/html";
      response.writeHead(200, { "content-type": type }).end(latin);
    });
    expect((await fetch(url)).output).toBe("café");
    expect((await fetch(`${url}/header`)).output).toContain("café");
  });

  test.each([
    ["gzip", gzipSync],
    ["deflate", deflateSync],
    ["br", brotliCompressSync],
  ])("is decompressed (%s)", async (encoding, compress) => {
    const url = await serve((_, response) =>
      response.writeHead(200, { "content-type": "text/plain", "content-encoding": encoding }).end(compress("hello")),
    );
    expect((await fetch(url)).output).toBe("hello");
  });

  test.each(casesOf(endless, endless.slice(0, 1)))("of nested %s fails with the next step: %s", async (tag, why) => {
    const url = await serve(page(`${tag.repeat(50_000)}x`));
    await expect(fetch(url)).rejects.toThrow(`${why}. Call again with format html.`);
  });

  test("that is an image is an attachment", async () => {
    const png = Buffer.from(
      "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==",
      "base64",
    );
    const url = await serve((_, response) => response.writeHead(200, { "content-type": "image/png" }).end(png));
    const { output, attachments } = await fetch(`${url}/a/dot.png`);
    expect(output).toBe("Image fetched successfully");
    expect(attachments).toEqual([{ mime: "image/png", filename: "dot.png", data: png }]);
  });

  test("that is neither text nor an image is refused", async () => {
    const url = await serve((_, response) => response.writeHead(200, { "content-type": "application/zip" }).end("PK"));
    await expect(fetch(url)).rejects.toThrow("is application/zip, which cannot be shown");
  });
});

describe("bounds", () => {
  test("an error of the server is reported by its status", async () => {
    const url = await serve((_, response) => response.writeHead(404).end("nothing here"));
    await expect(fetch(url)).rejects.toThrow("Request failed with status code: 404");
  });

  test("more than 5 MiB is refused, by Content-Length and after decompression", async () => {
    const bomb = gzipSync(Buffer.alloc(6 * 1024 * 1024));
    const url = await serve((request, response) => {
      if (request.url === "/said") return response.writeHead(200, { "content-length": 9_000_000 }).flushHeaders();
      response.writeHead(200, { "content-type": "text/plain", "content-encoding": "gzip" }).end(bomb);
    });
    await expect(fetch(`${url}/said`)).rejects.toThrow("Response too large (exceeds 5MB limit)");
    expect(bomb.length).toBeLessThan(10_000);
    await expect(fetch(`${url}/bomb`)).rejects.toThrow("Response too large (exceeds 5MB limit)");
  });

  test("a server that sends nothing, or stops in the middle, times out", async () => {
    const url = await serve((request, response) => {
      if (request.url === "/half") response.writeHead(200, { "content-type": "text/plain" }).write("half");
    });
    const late = "Request timed out after 0.2 seconds. Give a longer timeout, at most 120.";
    await expect(fetch(url, { timeout: 0.2 })).rejects.toThrow(late);
    await expect(fetch(`${url}/half`, { timeout: 0.2 })).rejects.toThrow(late);
    await expect(planCall(site, webfetch, { url, timeout: 121 })).rejects.toThrow(InvalidInput);
  });

  test("a cancelled call stops at once with the reason", async () => {
    const stop = new AbortController();
    const url = await serve(() => stop.abort(new Error("enough")));
    await expect(callTool(site, webfetch, { url }, { signal: stop.signal })).rejects.toThrow("enough");
  });

  test.each(["gzip, gzip", "constructor", "zstd"])("an encoding that is not known fails (%s)", async (encoding) => {
    const url = await serve((_, response) => response.writeHead(200, { "content-encoding": encoding }).end("x"));
    await expect(fetch(url)).rejects.toThrow(`unknown content encoding: ${encoding}`);
  });

  test("a response that breaks off fails", async () => {
    const url = await serve((_, response) => {
      response.writeHead(200, { "content-type": "text/plain", "content-length": 10 }).write("half");
      response.destroy();
    });
    await expect(fetch(url)).rejects.toThrow(/response broke off|socket hang up|aborted/);
  });
});

describe("redirects", () => {
  test("on the same host are followed, ten of them", async () => {
    const url = await serve((request, response) => {
      const left = Number(request.url?.slice(1));
      if (left === 0) return response.writeHead(200, { "content-type": "text/plain" }).end("there");
      response.writeHead(302, { location: `/${left - 1}` }).end();
    });
    expect((await fetch(`${url}/10`)).output).toBe("there");
    await expect(fetch(`${url}/11`)).rejects.toThrow("redirects more than 10 times");
  });

  test("to another host or port are reported, not followed", async () => {
    const asked: string[] = [];
    const other = await serve((request, response) => response.end(asked.push(request.url ?? "")));
    const url = await serve((request, response) =>
      response.writeHead(301, { location: request.url === "/port" ? `${other}/x` : "https://example.com/y" }).end(),
    );
    const rules = { [`${url}/*`]: "allow", [`${other}/*`]: "allow", "https://*": "allow" } as const;
    site.judge = judgeBy({ webfetch: rules });
    const host = await fetch(`${url}/host`);
    expect(host.output).toContain(
      "redirects to https://example.com/y, which was not followed, because it is on another host",
    );
    expect(host.metadata).toEqual({ redirect: "https://example.com/y" });
    expect((await fetch(`${url}/port`)).output).toContain("it has another scheme or port");
    expect(asked).toEqual([]);
  });

  test("are evaluated: denied ones fail, ones that would ask are reported", async () => {
    const url = await serve((request, response) => {
      if (request.url === "/admin") return response.end("secret");
      response.writeHead(302, { location: "/public/../admin" }).end();
    });
    site.judge = judgeBy({ webfetch: { [`${url}/*`]: "ask", [`${url}/public/*`]: "allow" } });
    expect((await fetch(`${url}/public/a`)).output).toContain(`redirects to ${url}/admin, which was not followed`);
    site.judge = judgeBy({ webfetch: { [`${url}/*`]: "allow", [`${url}/admin*`]: "deny" } });
    await expect(fetch(`${url}/public/a`)).rejects.toThrow(`redirects to ${url}/admin, which is not allowed`);
  });

  test("into the private network are refused", async () => {
    const url = await serve((_, response) =>
      response.writeHead(302, { location: "http://169.254.169.254/latest/meta-data/" }).end(),
    );
    await expect(fetch(url)).rejects.toThrow("which is not allowed: engine: 169.254.169.254 is not a public address");
  });

  test("to other than web addresses are refused", async () => {
    const url = await serve((_, response) => response.writeHead(302, { location: "file:///etc/passwd" }).end());
    await expect(fetch(url)).rejects.toThrow("must start with http");
  });
});

describe("where it connects", () => {
  test("http without a port goes to https, whose rules count, unless a rule names http", async () => {
    const asked: unknown[] = [];
    site.judge = judgeByName("public.example", judgeBy({ webfetch: "allow" }), asked);
    await expect(fetch("http://localhost/a")).rejects.toThrow("leads to");
    expect(new Set(asked)).toEqual(new Set(["http://localhost/a", "https://localhost/a"]));
    site.judge = judgeBy({ webfetch: { "*": "allow", "https://example.com/*": "deny" } });
    await expect(fetch("http://example.com/a")).rejects.toThrow("https://example.com/a is not allowed");
    asked.length = 0;
    site.judge = judgeByName("public.example", judgeBy({ webfetch: { "http://public.example/*": "allow" } }), asked);
    await expect(fetch("http://localhost/a")).rejects.toThrow();
    expect(asked).not.toContain("https://localhost/a");
  });

  test("a name that resolves into the private network is refused, unless a rule names it", async () => {
    const url = await serve((request, response) => response.end(`host ${request.headers.host}`));
    const { port } = new URL(url);
    const named = `http://localhost:${port}`;
    site.judge = judgeByName("public.example", judgeBy({ webfetch: "allow" }));
    await expect(fetch(named)).rejects.toThrow(/leads to (127\.0\.0\.1|::1), which is not allowed/);
    site.judge = judgeBy({ webfetch: { [`${named}/*`]: "allow" } });
    expect((await fetch(named)).output).toBe(`host localhost:${port}`);
  });

  test("no cookie comes back, and no proxy of the environment is used", async () => {
    const cookies: unknown[] = [];
    const url = await serve((request, response) => {
      cookies.push(request.headers.cookie);
      if (request.url === "/") return response.writeHead(302, { location: "/next", "set-cookie": "a=b" }).end();
      response.writeHead(200, { "content-type": "text/plain" }).end("ok");
    });
    expect((await fetch(url)).output).toBe("ok");
    expect(cookies).toEqual([undefined, undefined]);
  });
});

/** Judges as if localhost were called otherwise: a public name that leads here. */
function judgeByName(name: string, judge: TestWorkspace["judge"], asked: unknown[] = []): TestWorkspace["judge"] {
  const byName = (ask: Ask) => {
    asked.push(...ask.patterns);
    return judge({ ...ask, patterns: ask.patterns.map((text) => text.replace("localhost", name)) });
  };
  return Object.assign(byName, { restrictedNameHints: judge.restrictedNameHints, fileRules: judge.fileRules });
}

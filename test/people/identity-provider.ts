import { fork } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import { installPackages } from "../bodies/processes/installed.ts";
import type { Command } from "./oidc-provider/program.ts";

/** Starts the certified provider of the lock file in its own process. */
export async function startIdentityProvider() {
  const modules = installPackages("oidc-provider", "an identity provider, oidc-provider", import.meta.dirname);
  const library = join(modules, "oidc-provider/lib/index.js");
  const child = fork(join(import.meta.dirname, "oidc-provider/program.ts"), [library], {
    stdio: ["ignore", "ignore", "ignore", "ipc"],
  });
  const answer = async (): Promise<string> => {
    const [{ done }] = await once(child, "message");
    return done;
  };
  const issuer = await answer();
  return {
    issuer,
    /** Sends a command, and waits until it was done. */
    async do(command: Command) {
      const done = answer();
      child.send(command);
      await done;
    },
    /** Follows the redirects of a sign-in as a browser does, until the provider sends the person back; returns that address. */
    async follow(url: string, back: string): Promise<URL> {
      const open = createBrowser();
      for (let next = url, hops = 0; hops < 20; hops++) {
        const response = await open(next);
        const location = response.headers.get("location");
        if (location === null) throw new Error(`${next} answered ${response.status}: ${await response.text()}`);
        next = new URL(location, next).href;
        if (next.startsWith(back)) return new URL(next);
      }
      throw new Error(`${url} leads in circles`);
    },
    /** Enters the code of a device flow as a person does in a browser, confirms it and signs in; returns the last page. */
    async enter(url: string, userCode: string): Promise<string> {
      const open = createBrowser();
      let page = await (await open(url)).text();
      for (const answer of [{}, { confirm: "yes" }]) {
        const [, xsrf = ""] = /name="xsrf" value="([^"]+)"/.exec(page) ?? [];
        let response = await open(url, new URLSearchParams({ xsrf, user_code: userCode, ...answer }));
        for (let hops = 0; response.status >= 300 && response.status < 400 && hops < 20; hops++)
          response = await open(new URL(response.headers.get("location") ?? "", url).href);
        page = await response.text();
      }
      return page;
    },
    close: () => child.kill(),
  };
}

/** Opens addresses with the cookies of earlier answers, and follows no redirect; a form is posted. */
function createBrowser() {
  const cookies = new Map<string, string>();
  return async (url: string, form?: URLSearchParams): Promise<Response> => {
    const cookie = [...cookies].map(([name, value]) => `${name}=${value}`).join("; ");
    const post = form && { method: "POST", body: form };
    const response = await fetch(url, { redirect: "manual", headers: { cookie }, ...post });
    for (const set of response.headers.getSetCookie()) {
      const [, name = "", value = ""] = /^([^=]+)=([^;]*)/.exec(set) ?? [];
      cookies.set(name, value);
    }
    return response;
  };
}

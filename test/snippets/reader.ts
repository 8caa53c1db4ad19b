import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { stripVTControlCharacters } from "node:util";
import { connect, findToken, type ToolgateClient } from "../../src/client/client.ts";

const url = "http://127.0.0.1:7420";

/** Variables by which a machine reaches its registries; everything else of the developer's environment stays out. */
const network =
  /^(https?_proxy|no_proxy|npm_config_(registry|cafile|proxy|https_proxy)|pip_(cert|index_url)|go(proxy|sumdb|flags)|node_extra_ca_certs|ssl_cert_\w+)$/i;

/** The environment of a reader, with an empty home directory. */
export function environmentOf(machine: string): NodeJS.ProcessEnv {
  const installed = ["bin", "venv/bin"].map((name) => join(machine, "installed", name));
  const path = (process.env.PATH ?? "").split(":").filter((directory) => !directory.includes("node_modules"));
  const go = (name: string) => execFileSync("go", ["env", name], { encoding: "utf8" }).trim();
  return {
    ...Object.fromEntries(Object.entries(process.env).filter(([name]) => network.test(name))),
    ...{ HOME: join(machine, "home"), PATH: [...installed, ...path].join(":"), SHELL: "/bin/bash" },
    ...{ LANG: "C.UTF-8", TERM: "xterm-256color" },
    // Caches of what is downloaded and compiled.
    ...{ GOMODCACHE: go("GOMODCACHE"), GOCACHE: go("GOCACHE") },
  };
}

/** The same without a network: package managers have what the setup has downloaded. */
const offline = (machine: string, { GOMODCACHE }: NodeJS.ProcessEnv): NodeJS.ProcessEnv => ({
  npm_config_offline: "true",
  ...{ PIP_NO_INDEX: "1", PIP_FIND_LINKS: join(machine, "wheels"), PIP_DISABLE_PIP_VERSION_CHECK: "1" },
  ...{ GOPROXY: `file://${GOMODCACHE}/cache/download`, GOSUMDB: "off" },
});

/** The machine of a reader: an empty home directory, an environment without the developer's, and a port for the service. */
export interface Reader {
  readonly home: string;
  /**
   * Runs one command of a page, as it stands there, and returns what it printed. Variables stay for the next one. One that starts the
   * service ends the service that runs.
   */
  run(command: string, cwd: string): Promise<string>;
  /** Opens a call that waits, and names its request in place of the examples of a page. */
  withRequest(command: string): Promise<string>;
  /** Runs a program that answers requests, until it has answered one. */
  answerBy(command: string, cwd: string): Promise<string>;
}

export async function createReader(machine: string): Promise<Reader> {
  const online = environmentOf(machine);
  const env = { ...online, ...offline(machine, online) };
  const home = join(machine, "home");
  const state = join(machine, "variables");
  await writeFile(state, "");
  await mkdir(join(home, "project/src"), { recursive: true });
  await writeFile(join(home, "project/README.md"), "# Shop\n");
  execFileSync("git", ["init", "--quiet", join(home, "project")]);
  let approver: ToolgateClient | undefined;
  let serving: ReturnType<typeof start> | undefined;
  let held = 0;
  let beforeAnswer: Promise<unknown> = Promise.resolve();

  /** Starts a command, at a terminal if a person answers it there. */
  function start(command: string, cwd: string) {
    // The variables of a service that ends are older than those of the page.
    const keep = isService(command) ? "" : `export -p > '${state}'`;
    const script = `cd '${cwd}'; . '${state}'; set -ae -o pipefail\n${command}\n${keep}`;
    const isPerson = terminal.some(({ command: known }) => known.test(command));
    const [program = "", ...args] = isPerson
      ? ["script", "-qefc", `bash -c ${quote(script)}`, "/dev/null"]
      : ["bash", "-c", script];
    const child = spawn(program, args, {
      cwd,
      env,
      stdio: [isPerson ? "pipe" : "ignore", "pipe", "pipe"],
    });
    let [all, out] = ["", ""];
    child.stdout?.setEncoding("utf8").on("data", (piece: string) => {
      all += piece;
      out += piece;
      child.emit("printed");
    });
    child.stderr?.setEncoding("utf8").on("data", (piece: string) => {
      all += piece;
      child.emit("printed");
    });
    const ended = once(child, "close").then(([code]) => code as number | null);
    return {
      child,
      ended,
      out: () => stripVTControlCharacters(out).replaceAll("\r\n", "\n"),
      all: () => stripVTControlCharacters(all).replaceAll("\r\n", "\n"),
      async sees(pattern: RegExp) {
        while (!pattern.test(this.all())) {
          const code = await Promise.race([once(child, "printed").then(() => undefined), ended]);
          if (code !== undefined && !pattern.test(this.all()))
            throw new Error(`${command}\nended with ${code} before it printed ${pattern}:\n${this.all()}`);
        }
      },
    };
  }

  /** Signs in with the link that the service printed: an approver, who answers what is asked, and the reader's terminal. */
  async function signIn(link: string, cwd: string): Promise<void> {
    const newcomer = connect({ url });
    const { token } = await newcomer.credentials.signIn({ code: link.slice(link.indexOf("#code=") + 6) });
    newcomer.close();
    approver = connect({ url, token });
    void answerAll(approver, () => beforeAnswer);
    const { code } = await approver.credentials.createCode({});
    const login = start(
      `command -v toolgate >/dev/null || toolgate() { npx toolgate "$@"; }; toolgate login '${url}/#code=${code}'`,
      cwd,
    );
    if ((await login.ended) !== 0) throw new Error(`the terminal is not signed in:\n${login.all()}`);
  }

  /** Opens a request of a new session, which only the reader answers. */
  async function openRequest(isQuestion = false) {
    const token = findToken("caller", url, { TOOLGATE_DATA: join(home, ".local/share/toolgate") });
    const caller = connect({ url, ...(token !== undefined && { token }) });
    held += 1;
    const sessionId = `ses_held${held}`;
    await caller.sessions.createSession({ sessionId });
    const call = {
      ...{ sessionId, callId: "call_1", tool: isQuestion ? "question" : "bash", waitMs: 500 },
      input: isQuestion ? { questions } : { command: `echo ${held}` },
    };
    for (;;) {
      const { part, permissions } = await caller.tools.callTool(call);
      if (permissions[0]) return { caller, call, sessionId, permissionId: permissions[0].id };
      if (part?.state.case === "error") throw new Error(part.state.value.error);
    }
  }

  const reader: Reader = {
    home,
    async run(command, cwd) {
      const service = isService(command);
      if (service) {
        serving?.child.stdin?.write(interrupt);
        await serving?.ended;
      }
      // A person takes longer than the short wait of a request, and answers after it.
      const running = start(command, cwd);
      const isShort = /"waitMs": 1000\b/.test(command);
      if (isShort) beforeAnswer = running.ended;
      if (service) {
        serving = running;
        await running.sees(/#code=[\w-]+/);
        await signIn(/http:\S+#code=[\w-]+/.exec(running.all())?.[0] ?? "", cwd);
        return running.all().replaceAll(home, "~");
      }
      if (/--role worker\b.*\) \S/.test(command)) {
        await running.sees(/^connected/m);
        return running.all();
      }
      for (const { command: known, sees, types } of terminal)
        if (known.test(command)) {
          await running.sees(sees);
          running.child.stdin?.write(types);
        }
      const code = await running.ended;
      // curl ends with 0 after an answer that is an error, too.
      if (code !== 0 || (/^curl[\s\S]*/.test(command) && /^\{"code":/.test(running.out())))
        throw new Error(`${command}\nended with ${code}:\n${running.all()}`);
      // A busy machine may not have come to the request in that time.
      if (isShort && !running.out().includes('"permissions"')) return await reader.run(command, cwd);
      return running.out();
    },
    async withRequest(command) {
      if (!/per_(…|1)|ses_(…|1)/.test(command)) return command;
      const { caller, sessionId, permissionId } = await openRequest(command.includes("answer"));
      caller.close();
      const named = command.replaceAll(/per_(…|1)/g, permissionId).replaceAll(/ses_(…|1)/g, sessionId);
      // A person answers at a terminal that is signed in, and has no token of a program.
      return named.startsWith("toolgate ") ? `(unset TOOLGATE_TOKEN; ${named}\n)` : named;
    },
    async answerBy(command, cwd) {
      const { caller, call } = await openRequest();
      const running = start(command, cwd);
      for (;;) {
        const { part } = await caller.tools.callTool({ ...call, waitMs: 1_000 });
        if (part?.state.case === "completed") break;
        if (running.child.exitCode !== null) throw new Error(`${command}\ndid not answer:\n${running.all()}`);
      }
      caller.close();
      return running.out();
    },
  };
  return reader;
}

const isService = (command: string) => /^[^#]*\b(toolgate serve|npm start)\b/.test(command);

/** Ctrl-C. */
const interrupt = "\x03";

/** Commands that a person answers at the terminal: what they see, and what they type then. */
const terminal = [
  { command: /^[^#]*\b(toolgate serve|npm start)\b/, sees: /#code=/, types: "" },
  { command: /\btoolgate inbox\b/, sees: /\S/, types: "q" },
  { command: /\btoolgate connect (claude|opencode|mcp)/, sees: /\[y\/N\]/, types: "y\n" },
];

/** Questions that the answers of the pages fit. */
const questions = [
  { header: "Store", question: "Which?", options: ["SQLite", "Redis"].map((label) => ({ label, description: label })) },
  {
    header: "Ports",
    question: "Which?",
    multiple: true,
    options: ["80", "8080"].map((label) => ({ label, description: label })),
  },
  { header: "More", question: "Anything else?", options: ["No"].map((label) => ({ label, description: label })) },
];

async function answerAll(approver: ToolgateClient, before: () => Promise<unknown>): Promise<void> {
  try {
    for await (const ask of approver.asks())
      if (!ask.sessionId.startsWith("ses_held")) {
        await before();
        await approver.reply(ask, "once").catch(() => undefined);
      }
  } catch {
    // The reader is closed.
  }
}

const quote = (text: string) => `'${text.replaceAll("'", "'\\''")}'`;

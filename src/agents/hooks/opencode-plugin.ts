/**
 * Returns the source of our plugin for opencode, for its plugin directory. It runs a command for each use of a tool, with the JSON
 * that the dialect `opencode` reads on stdin, and throws unless the command allows the use: opencode then reports the error to the
 * model and runs nothing.
 */
export function opencodePlugin(command: readonly string[]): string {
  return source.replace("COMMAND", () => JSON.stringify(command));
}

const source = `// Written by \`toolgate connect opencode\`. Toolgate decides on each use of a tool; every failure refuses it.
import { spawn } from "node:child_process";
import { env } from "node:process";

const [program, ...args] = COMMAND;

/** Sends one JSON object to the command and returns its answer. */
function send(message) {
  return new Promise((resolve, reject) => {
    const fail = (reason) => reject(new Error(\`Toolgate: \${reason}. Nothing was run.\`));
    const child = spawn(program, args, { env: { HOME: env.HOME ?? "" }, stdio: ["pipe", "pipe", "pipe"] });
    const timer = setTimeout(() => child.kill("SIGKILL"), 660_000);
    let stdout = "";
    child.stdout.setEncoding("utf8").on("data", (text) => (stdout += text));
    child.stderr.resume();
    child.stdin.on("error", () => undefined);
    child.on("error", (error) => fail(\`\${program} cannot be started (\${error.code})\`));
    child.on("close", (code) => {
      clearTimeout(timer);
      try {
        resolve(JSON.parse(stdout));
      } catch {
        fail(\`\${program} ended with \${code} and without an answer\`);
      }
    });
    child.stdin.end(JSON.stringify(message));
  });
}

export const Toolgate = async ({ client, directory, worktree }) => {
  /** Agent of each session, and the uses that began and have no result yet. */
  const agents = new Map();
  const begun = new Map();

  async function parentOf(id) {
    const { data } = await client.session.get({ path: { id } });
    if (data?.id !== id) throw new Error("Toolgate: opencode does not know the session. Nothing was run.");
    return data.parentID ?? "";
  }

  async function report(call, result) {
    const use = begun.get(call);
    begun.delete(call);
    // The tool ran already, so a failure to report must not hide its result; the service shows that none was reported.
    if (use !== undefined) await send({ ...use, ...result }).catch(() => undefined);
  }

  return {
    "chat.message": async ({ sessionID, agent }) => {
      if (agent !== undefined) agents.set(sessionID, agent);
    },
    "tool.execute.before": async ({ tool, sessionID: session, callID: call }, output) => {
      const parent = await parentOf(session);
      const agent = agents.get(session) ?? "";
      const use = { session, parent, agent, call, tool, input: output.args ?? {}, cwd: directory, root: worktree };
      const { decision, reason, input } = await send({ ...use, event: "before" });
      if (decision !== "allow" || typeof input !== "object" || input === null) throw new Error(reason ?? "Toolgate refused it.");
      for (const name of Object.keys(output.args ?? {})) delete output.args[name];
      output.args = Object.assign(output.args ?? {}, input);
      begun.set(call, { ...use, input });
    },
    "tool.execute.after": async ({ callID, args }, { output, metadata }) => {
      const exit = Number.isInteger(metadata?.exit) ? { exit: metadata.exit } : {};
      // What ran: a plugin of the project that comes after this one can have changed it.
      const ran = typeof args === "object" && args !== null ? { input: args } : {};
      await report(callID, { event: "after", output: String(output ?? ""), ...ran, ...exit });
    },
    event: async ({ event: { type, properties } }) => {
      const part = type === "message.part.updated" ? properties?.part : undefined;
      if (part?.type === "tool" && part.state?.status === "error")
        await report(part.callID, { event: "failed", error: String(part.state.error ?? "") });
    },
  };
};
`;

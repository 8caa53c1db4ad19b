import { spawn } from "node:child_process";
import { createSupervisor } from "../../src/tools/process/supervisor.ts";

// A small service for supervisor.test.ts: starts two commands, one of them in a separate session, prints their ids, stays.
const supervisor = createSupervisor({ replicaId: process.argv[2] ?? "", leaseMs: 5_000 });
const marks = await supervisor.watch({ sessionId: "ses_test", callId: "call" });
const env = { PATH: process.env.PATH, ...marks };
const command = "setsid sleep 1000 & echo $$ $!; exec sleep 1000";
spawn("/bin/bash", ["-c", command], { env, detached: true, stdio: ["ignore", "inherit", "ignore"] });

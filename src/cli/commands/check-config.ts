import type { Command } from "commander";
import { withScreen } from "../command.ts";
import type { CheckedConfig, CliContext } from "../context.ts";
import { CommandError, exitCodes } from "../failure/command-error.ts";
import type { Paint } from "../terminal/screen.ts";
import { terminalLine } from "../terminal/terminal-safe.ts";

/** Defines `toolgate check-config`. */
export function defineCheckConfig(command: Command, context: CliContext): void {
  command
    .description(
      "Check a configuration file: what a start reads (workspaces, tokens, certificates, plugins), its rules and their tests ([[permission_test]]), permissions that nothing asks for, rules that never decide. Nothing is started or created",
    )
    .argument("[file]", "the file, or a workspace's .opencode/config.toml (default: what `toolgate serve` would read)")
    .addHelpText("after", checkExamples)
    .action((file: string | undefined) =>
      withScreen(context, command, async (screen) => {
        const service = await context.loadService();
        const checked = await service.checkConfiguration(file);
        const { findings } = checked;
        for (const finding of findings)
          screen.result({ file: checked.file, ...finding }, (paint) => [findingLine(checked.file, finding, paint)]);
        const errors = findings.filter(({ severity }) => severity === "error").length;
        if (errors > 0) {
          throw new CommandError(
            `${checked.file}: a server does not start with ${count(errors, "error")}`,
            "correct the rules or the tests on these lines, then check again",
            exitCodes.failed,
          );
        }
        const warned = findings.length === 0 ? "" : `, ${count(findings.length, "warning")}`;
        const { rules, tests } = checked;
        screen.note(`${checked.file} is good: ${count(rules, "rule")}, ${count(tests, "test")} passed${warned}`);
        for (const note of checked.notes) screen.note(terminalLine(note));
        screen.note(
          "a server reads tokens, rules and search providers of toolgate.toml at SIGHUP, all else when it starts; .opencode/config.toml it reads by itself",
        );
      }),
    );
}

function findingLine(
  file: string,
  { severity, line, message }: CheckedConfig["findings"][number],
  paint: Paint,
): string {
  const place = `${file}${line === undefined ? "" : `:${line}`}`;
  return `${place}: ${paint(severity === "error" ? "red" : "yellow", severity)}: ${terminalLine(message)}`;
}

const count = (many: number, what: string) => `${many} ${what}${many === 1 ? "" : "s"}`;

const checkExamples = `
Examples:
  toolgate check-config
  toolgate check-config ./toolgate.toml
  toolgate check-config ~/project/.opencode/config.toml

A test in the file is checked here and at each start, and a start is refused where it fails:
  [[permission_test]]
  permission = "bash"
  pattern = "git push --force"
  expect = "deny"
  agent = "build"        # may be left out`;

import type { Command } from "commander";
import { CreateCodeResponseSchema, type Credential } from "../../../gen/opencode/tool/v1/credential_service_pb.ts";
import {
  type Delegate,
  LinkAccountResponseSchema,
  type PersonRecord,
  PersonRecordSchema,
} from "../../../gen/opencode/tool/v1/person_service_pb.ts";
import { pagesOf } from "../../core/pages-of.ts";
import { collect, readDuration, withServer } from "../command.ts";
import { asAdmin, forOperator } from "../connection/as-admin.ts";
import { type ServerConnection, serverWords } from "../connection/connection.ts";
import type { CliContext, TableFlags } from "../context.ts";
import type { Paint, Screen } from "../terminal/screen.ts";
import { terminalLine } from "../terminal/terminal-safe.ts";
import { commandLine, momentOf, signInLink } from "../view/words.ts";

/** Defines `toolgate people` and its subcommands. */
export function definePeople(command: Command, context: CliContext): void {
  command
    .description("list who signed in, invite a person, or revoke one; without a subcommand it lists")
    .action(() => withServer(context, command, "approver", listPeople));
  command
    .command("list")
    .description("list the persons, with their devices")
    .action((_options: object, sub: Command) => withServer(context, sub, "approver", listPeople));
  command
    .command("link")
    .description("print a code that links an account in Slack to you; the form behind a button there takes it")
    .action((_options: object, sub: Command) =>
      withServer(context, sub, "approver", async ({ people }, screen) => {
        const response = await people.linkAccount({});
        screen.show(LinkAccountResponseSchema, response, (paint) => [
          `${paint("bold", response.code)}  valid once, for 10 minutes, in Slack`,
        ]);
      }),
    );
  command
    .command("delegate")
    .description("name the approver who answers for you while you are away; without an id no one does any more")
    .argument("[id]", "the id of that person (prs_…), as `toolgate people` prints it", "")
    .option("--for <time>", "how long, such as 8h or 14d, at most 30d (default: 7d)", readDuration)
    .option("--permission <name>", "only requests of this permission (repeatable; default: all)", collect, [])
    .action((to: string, { for: ms = 7 * 86_400_000, permission: permissions }: AwayOptions, sub: Command) =>
      withServer(context, sub, "approver", async ({ people, tools }, screen) => {
        const personId = (await tools.getServerInfo({})).person?.id ?? "";
        const { person } = await (to === ""
          ? people.removeDelegate({ personId })
          : people.putDelegate({ personId, to, until: Date.now() + ms, permissions }));
        showPerson(person, screen);
      }),
    );
  forOperator(command.command("invite").description("print a code with which a new person signs in as approver"))
    .argument("[name]", "the name of the person (default: the sign-in asks for it)", "")
    .action((name: string, flags: TableFlags, sub: Command) =>
      asAdmin(context, sub, flags, async ({ url, credentials }, screen) => {
        const response = await credentials.createCode({ newPerson: name });
        screen.show(CreateCodeResponseSchema, response, (paint) => [
          `${paint("bold", response.code)}  valid once, for 10 minutes, at this server`,
          `  in a browser   ${signInLink(url, response.code)}`,
          `  in a terminal  ${commandLine("toolgate", "login", response.code, ...serverWords(url))}`,
          ...(isLoopback(url)
            ? [`  ${paint("yellow", "this address reaches the service from this machine only")}`]
            : []),
        ]);
      }),
    );
  forOperator(
    command
      .command("revoke")
      .description("end all sign-ins of a person for good, one device, or the link of an account"),
  )
    .argument("<id>", "the id of the person (prs_…), of the device or of the account, as `toolgate people` prints it")
    .action((id: string, flags: TableFlags, sub: Command) =>
      asAdmin(context, sub, flags, async ({ people, credentials }, screen) => {
        if (id.startsWith("slack:")) {
          const owner = (await personsOf(people)).find(({ accounts }) => accounts.some((account) => account.id === id));
          const { person } = await people.unlinkAccount({ personId: owner?.id ?? id, id });
          return showPerson(person, screen);
        }
        if (!id.startsWith("prs_")) {
          const { credential } = await credentials.revokeCredential({ id });
          for (const line of credential ? [deviceLine(credential, screen.paint.out)] : []) screen.write(`${line}\n`);
          return;
        }
        showPerson((await people.revokePerson({ id })).person, screen);
      }),
    );
  forOperator(command.command("rename").description("change the name of a person"))
    .argument("<id>", "the id of the person (prs_…)")
    .argument("<name>", "the name from now on")
    .action((id: string, name: string, flags: TableFlags, sub: Command) =>
      asAdmin(context, sub, flags, async ({ people }, screen) => {
        showPerson((await people.renamePerson({ id, name })).person, screen);
      }),
    );
}

/** Options of `toolgate people delegate`. */
interface AwayOptions {
  for?: number;
  permission: string[];
}

/** Checks if an address means another machine there. */
const isLoopback = (url: string) => /^(?:localhost|127\..*|\[::1\])$/.test(new URL(url).hostname);

function showPerson(person: PersonRecord | undefined, screen: Screen): void {
  if (person) screen.show(PersonRecordSchema, person, (paint) => personLines(person, paint));
}

async function listPeople({ people }: ServerConnection, screen: Screen): Promise<void> {
  const found = await personsOf(people);
  for (const person of found) showPerson(person, screen);
  if (found.length === 0) screen.note("no person has signed in");
}

async function personsOf(people: ServerConnection["people"]): Promise<PersonRecord[]> {
  const pages = await Array.fromAsync(pagesOf((page) => people.listPeople(page)));
  return pages.flatMap((page) => page.people);
}

function personLines(
  { id, person, revoked, devices, accounts, invitedBy, delegate }: PersonRecord,
  paint: Paint,
): string[] {
  const { name = "", issuer = "", subject = "", groups = [] } = person ?? {};
  const facts = [
    `${issuer}:${subject}`,
    ...(groups.length > 0 ? [`groups ${groups.join(", ")}`] : []),
    ...(invitedBy === "" ? [] : [`invited by ${invitedBy}`]),
  ];
  const state = revoked > 0 ? `  ${paint("red", `revoked at ${momentOf(revoked)}`)}` : "";
  return [
    `${paint("bold", terminalLine(name || "(no name yet)"))}  ${id}${state}`,
    `  ${paint("dim", terminalLine(facts.join("; ")))}`,
    ...devices.map((device) => deviceLine(device, paint)),
    ...accounts.map(
      (account) => `  ${terminalLine(account.id)}  ${paint("dim", `linked at ${momentOf(account.linked)}`)}`,
    ),
    ...(delegate ? [`  ${delegateLine(delegate)}`] : []),
  ];
}

function delegateLine({ to, until, permissions }: Delegate): string {
  const limits = permissions.length === 0 ? "" : `  ${permissions.join(", ")}`;
  return terminalLine(`away: ${to} answers until ${momentOf(until)}${limits}`);
}

function deviceLine({ id, label, lastSeen, revoked, expires }: Credential, paint: Paint): string {
  const seen = lastSeen === 0 ? "not seen yet" : `last seen at ${momentOf(lastSeen)}`;
  const hasEnded = revoked > 0 || (expires > 0 && expires <= Date.now());
  const end = revoked > 0 ? `revoked at ${momentOf(revoked)}` : `until ${momentOf(expires)}`;
  return `  ${terminalLine(id)}  ${terminalLine(label)}  ${paint("dim", seen)}  ${paint(hasEnded ? "red" : "green", end)}`;
}

import type { Command } from "commander";
import {
  type Channel,
  ChannelSchema,
  type NoticeRecord,
  NoticeRecordSchema,
  NoticeState,
  TestChannelResponseSchema,
} from "../../../gen/opencode/tool/v1/channel_service_pb.ts";
import { channelFacts, channelState, noticeWords } from "../../view/notices.ts";
import { withServer } from "../command.ts";
import { asAdmin, forOperator } from "../connection/as-admin.ts";
import type { ServerConnection } from "../connection/connection.ts";
import type { CliContext, TableFlags } from "../context.ts";
import { CommandError, exitCodes } from "../failure/command-error.ts";
import type { Paint, Screen } from "../terminal/screen.ts";
import { terminalLine } from "../terminal/terminal-safe.ts";
import { momentOf } from "../view/words.ts";

/** Defines `toolgate channel` and its subcommands. */
export function defineChannel(command: Command, context: CliContext): void {
  command
    .description("list the channels that reach people, or test one; without a subcommand it lists")
    .action(() => withServer(context, command, "approver", listChannels));
  command
    .command("list")
    .description("list the channels, with what was delivered since the service started")
    .action((_options: object, sub: Command) => withServer(context, sub, "approver", listChannels));
  command
    .command("notices")
    .description("list the last notices, newest first")
    .argument("[name]", "only those of this channel", "")
    .action((channel: string, _options: object, sub: Command) =>
      withServer(context, sub, "approver", async ({ channels }, screen) => {
        const { notices } = await channels.listNotices({ channel });
        for (const notice of notices) screen.show(NoticeRecordSchema, notice, (paint) => [noticeLine(notice, paint)]);
        if (notices.length === 0) screen.note("nothing was sent yet; `toolgate channel test NAME` sends a test");
      }),
    );
  forOperator(command.command("test").description("send a test notice to a channel, and print the provider's answer"))
    .argument("<name>", "the NAME of [channel.NAME]")
    .action((name: string, flags: TableFlags, sub: Command) =>
      asAdmin(context, sub, flags, async ({ channels }, screen) => {
        const response = await channels.testChannel({ name });
        const { accepted, answer, next } = response;
        if (accepted || screen.json)
          screen.show(TestChannelResponseSchema, response, (paint) => [
            `${paint("green", "accepted")}  ${terminalLine(name)}: ${terminalLine(answer)}`,
          ]);
        if (!accepted)
          throw new CommandError(
            `the provider of ${terminalLine(name)} did not accept the notice: ${terminalLine(answer)}`,
            terminalLine(next),
            exitCodes.failed,
          );
      }),
    );
}

async function listChannels({ channels: service }: ServerConnection, screen: Screen): Promise<void> {
  const { channels } = await service.listChannels({});
  for (const channel of channels) screen.show(ChannelSchema, channel, (paint) => channelLines(channel, paint));
  if (channels.length === 0)
    screen.note("the configuration has no channel; add a [channel.NAME], and a [[notify]] that names it");
}

const stateColors = { disabled: "red", failing: "yellow", working: "green", "not used yet": "green" } as const;

function channelLines(channel: Channel, paint: Paint): string[] {
  const { name, kind, lastFailed, lastFailure } = channel;
  const state = channelState(channel);
  return [
    `${paint("bold", terminalLine(name))}  ${kind}  ${paint(stateColors[state], state)}  ${paint("dim", channelFacts(channel))}`,
    ...(lastFailed > 0 ? [`  ${momentOf(lastFailed)}: ${terminalLine(lastFailure)}`] : []),
  ];
}

function noticeLine(notice: NoticeRecord, paint: Paint): string {
  const { opened, channel, personId, state, attempts, why, agent, permission, permissionId } = notice;
  const words = noticeWords[state] ?? "";
  const facts = [
    ...(attempts > 0 ? [`${attempts} failed`] : []),
    ...(why === "" ? [] : [why]),
    ...(personId === "" ? [] : [`to ${personId}`]),
    permissionId,
  ];
  const what = `${terminalLine(agent)} asks: ${terminalLine(permission)}`;
  return `${momentOf(opened)}  ${paint("bold", terminalLine(channel))}  ${state === NoticeState.DEAD ? paint("red", words) : words}  ${what}  ${paint("dim", terminalLine(facts.join("; ")))}`;
}

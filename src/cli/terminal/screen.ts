import { styleText } from "node:util";
import { type DescMessage, type MessageShape, toJsonString } from "@bufbuild/protobuf";
import type { CliProcess, OutputStream } from "../context.ts";
import type { CommandFailure } from "../failure/failure.ts";

/** Colours text if the stream that it is for shows colours. */
export type Paint = (format: Parameters<typeof styleText>[0], text: string) => string;

/** Where a command's words go: results to stdout, everything for the person beside them to stderr. */
export interface Screen {
  readonly json: boolean;
  /** The streams and the environment of the command. */
  readonly io: CliProcess;
  /** Whether colours of tools may pass to stdout. */
  readonly coloured: boolean;
  readonly paint: { readonly out: Paint; readonly err: Paint };
  /** A part of the result, as it is. */
  write(text: string | Uint8Array): void;
  /** A message as one line of JSON on stdout. */
  emit<D extends DescMessage>(schema: D, message: MessageShape<D>): void;
  /** A message of the result: as JSON under --json, else as lines. */
  show<D extends DescMessage>(schema: D, message: MessageShape<D>, lines: (paint: Paint) => readonly string[]): void;
  /** A line about progress; left out under --json. */
  note(text: string): void;
  /** A line that must be seen, under --json too. */
  alert(text: string): void;
  fail(failure: CommandFailure): void;
  /** A last line that is redrawn every second, on a terminal only; undefined takes it away. */
  status(text: (() => string) | undefined): void;
}

/** Makes the screen of one command. */
export function createScreen(io: CliProcess, json: boolean): Screen {
  const { stdout, stderr } = io;
  // Whether the terminal's cursor is in the middle of a line of stdout, where words on stderr would stick to it.
  let midLine = false;
  const status = createStatus(stderr, () => !midLine);
  const paintFor =
    (stream: OutputStream): Paint =>
    (format, text) =>
      styleText(format, text, { stream });
  const out = paintFor(stdout);
  const err = paintFor(stderr);

  function write(text: string | Uint8Array): void {
    if (text.length === 0) return;
    status.hide();
    stdout.write(text);
    midLine = stdout.isTTY === true && text.at(-1) !== "\n" && text.at(-1) !== 10;
    status.show();
  }
  function emit<D extends DescMessage>(schema: D, message: MessageShape<D>): void {
    write(`${toJsonString(schema, message)}\n`);
  }
  function alert(text: string): void {
    status.hide();
    if (midLine) stdout.write("\n");
    midLine = false;
    stderr.write(`${text}\n`);
    status.show();
  }
  return {
    json,
    io,
    coloured: stdout.isTTY === true && stdout.hasColors?.() === true,
    paint: { out, err },
    write,
    emit,
    show(schema, message, lines) {
      if (json) emit(schema, message);
      else for (const line of lines(out)) write(`${line}\n`);
    },
    note: (text) => {
      if (!json) alert(text);
    },
    alert,
    fail({ message, next }) {
      status.set(undefined);
      alert(`${err("red", "error:")} ${message}`);
      if (next !== "") alert(`${err("dim", " next:")} ${next}`);
    },
    status: (text) => status.set(json ? undefined : text),
  };
}

function createStatus(stderr: OutputStream, isFree: () => boolean) {
  let text: (() => string) | undefined;
  let timer: NodeJS.Timeout | undefined;
  let drawn = false;
  function hide(): void {
    if (drawn) stderr.write("\r\x1b[K");
    drawn = false;
  }
  function show(): void {
    if (!text || !stderr.isTTY || !isFree()) return;
    hide();
    stderr.write(styleText("dim", text().slice(0, (stderr.columns || 80) - 1), { stream: stderr }));
    drawn = true;
  }
  return {
    hide,
    show,
    set(next: (() => string) | undefined) {
      hide();
      clearInterval(timer);
      text = next;
      if (next) timer = setInterval(show, 1_000).unref();
      show();
    },
  };
}

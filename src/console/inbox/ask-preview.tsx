import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import type { PermissionRequest, Preview } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { directoryWords } from "../../view/asks.ts";
import { fileText, unreadWords } from "../../view/file-text.ts";
import { countOf } from "../../view/quantities.ts";
import { maxChangeBytes, readWhole } from "../../view/read-output.ts";
import { hasSameView, type ViewLine, viewLines, withWholeInput } from "../../view/view-lines.ts";
import { capitalized, hiddenWords } from "../../view/words.ts";
import { DiffView } from "../parts/diff-view.tsx";
import { LongText } from "../parts/long-text.tsx";
import { visibleLines, visibleText } from "../parts/visible-text.ts";
import { useAttempt, useLoaded } from "../shell/load.ts";
import type { ConsoleConnection } from "../stream/connection.ts";
import { AskReasons, hasMorePatterns } from "./ask-reasons.tsx";

/** The properties of a part of a request. */
interface PartProps {
  connection: ConsoleConnection;
  /** Opens all that is folded. */
  isOpen: boolean;
  /** Called once all of the part is on the page. */
  onWhole: () => void;
  /** Called with a part that cannot be shown, at least not all of it, and again once it is. */
  onUnread: (part: string, isUnread: boolean) => void;
  /** True once the request is settled: then the files that it names are not read any more. */
  isOver?: boolean;
}

/**
 * All that an approval is about: the effects that the service derived (the command, the change, the hosts, the text for the model),
 * the whole call with its input, and what is asked for, which may be known from there alone, such as where a link leads. Calls `onWhole` once each part is on the page, each fold was opened, and the end was on the screen.
 */
export function AskPreview({ requests, ...props }: PartProps & { requests: readonly PermissionRequest[] }) {
  const previews = distinct(requests, ({ preview }) => effectOf(preview)).filter(({ preview }) => preview);
  const views = requests.filter((one, at) => !requests.slice(0, at).some((other) => hasSameView(one, other)));
  const keyOf = (kind: string, { id }: PermissionRequest) => `${kind} ${id}`;
  const isRead = useSignal(false);
  const see = useAllSeen(
    [
      ...previews.map((one) => keyOf("effects", one)),
      ...views.map((one) => keyOf("call", one)),
      ...requests.filter(hasMorePatterns).map((one) => keyOf("patterns", one)),
    ],
    () => {
      isRead.value = true;
    },
  );
  const shown = requests.flatMap(({ preview }) => (preview?.command ? preview.command : []));
  const place = requests.map(directoryWords).find(Boolean);
  return (
    <>
      {previews.map((one) => (
        <Effects key={one.id} request={one} place={place} {...props} onWhole={see(keyOf("effects", one))} />
      ))}
      {views.map((one) => (
        <Call key={one.id} request={one} shown={shown} {...props} onWhole={see(keyOf("call", one))} />
      ))}
      <AskReasons asks={requests} isOpen={props.isOpen} onOpen={(one) => see(keyOf("patterns", one))()} />
      <End isRead={isRead.value} isOpen={props.isOpen} onSeen={props.onWhole} />
    </>
  );
}

/** The end of what an approval is about. Calls `onSeen` once it was on the screen, above the bar with the answers. */
function End({ isRead, isOpen, onSeen }: { isRead: boolean; isOpen: boolean; onSeen: () => void }) {
  const end = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const [mark, card] = [end.current, end.current?.closest(".ask-card")];
    if (!isRead || !mark || !card) return undefined;
    const bar = card.querySelector(".answer-bar");
    let seen: IntersectionObserver | undefined;
    const look = (entries: IntersectionObserverEntry[]) => {
      if (entries.some(({ isIntersecting }) => isIntersecting)) onSeen();
      else if (isOpen) mark.scrollIntoView({ block: "center" });
    };
    // A form makes the bar higher, and the browser knows the height of a long text only once it is near.
    const size = new ResizeObserver(() => {
      seen?.disconnect();
      const covered = bar ? Math.ceil(innerHeight - bar.getBoundingClientRect().top) : 0;
      seen = new IntersectionObserver(look, { rootMargin: `0px 0px -${covered}px 0px` });
      seen.observe(mark);
    });
    for (const one of bar ? [card, bar] : [card]) size.observe(one);
    return () => {
      size.disconnect();
      seen?.disconnect();
    };
  }, [isRead, isOpen]);
  return <div ref={end} class="ask-end" />;
}

/** Returns the function that marks a part as seen; calls `onWhole` once all parts are. */
function useAllSeen(keys: readonly string[], onWhole: () => void): (key: string) => () => void {
  const seen = useSignal<ReadonlySet<string>>(new Set());
  const isWhole = keys.every((key) => seen.value.has(key));
  useEffect(() => {
    if (isWhole) onWhole();
  }, [isWhole]);
  return (key) => () => {
    if (!seen.peek().has(key)) seen.value = new Set([...seen.peek(), key]);
  };
}

function distinct<T>(all: readonly T[], keyOf: (item: T) => string): readonly T[] {
  return [...new Map(all.toReversed().map((item) => [keyOf(item), item])).values()].toReversed();
}

function effectOf(preview: Preview | undefined): string {
  const { command, diff, url, hosts, text, paths, hidden } = preview ?? {};
  return JSON.stringify([command, diff, url, hosts, text, paths, hidden]);
}

/** The effects of a call, as far as the service knows them. */
function Effects({
  request,
  place = "",
  connection,
  isOpen,
  onWhole,
}: Omit<PartProps, "onUnread"> & { request: PermissionRequest; place: string | undefined }) {
  const { preview, sessionId } = request;
  const { command = "", diff = "", hosts = [], paths = [], text = "" } = preview ?? {};
  const parts = Object.entries({ command, diff, text }).flatMap(([name, value]) => (value === "" ? [] : name));
  const see = useAllSeen(parts, onWhole);
  const hidden = preview ? hiddenWords(preview.hidden) : "";
  return (
    <>
      {command !== "" && (
        <section class="block">
          <h2>{["Command", place].filter(Boolean).map(visibleText).join(", ")}</h2>
          <FoldedText
            text={visibleLines(command)}
            label="Command"
            isOpen={isOpen}
            line={commandLine}
            onWhole={see("command")}
          />
          {hidden !== "" && <p class="hint">{capitalized(visibleText(hidden))}</p>}
        </section>
      )}
      {hosts.length > 0 && (
        <section class="block">
          <h2>Sent to</h2>
          <p>
            {hosts.map((host) => (
              <span key={host} class="chip mono">
                {visibleText(host)}
              </span>
            ))}
          </p>
        </section>
      )}
      {preview && diff !== "" && (
        <section class="block">
          <h2>{paths.length === 1 ? `Change to ${visibleText(paths[0] ?? "")}` : "Change"}</h2>
          <Diff {...{ preview, sessionId, connection, isOpen }} onWhole={see("diff")} />
        </section>
      )}
      {text !== "" && (
        <section class="block">
          <h2>The model will read {paths.map(visibleText).join(", ")}</h2>
          <FoldedText text={visibleLines(text)} label="Text for the model" isOpen={isOpen} onWhole={see("text")} />
        </section>
      )}
    </>
  );
}

function commandLine(text: string, i: number) {
  return (
    <p key={i} class="command-line">
      {text}
    </p>
  );
}

/** A diff; a long one is folded, and one of which only the beginning is here is loaded in full on demand. */
function Diff({
  preview: { diff, url, additions, deletions },
  sessionId,
  connection,
  isOpen,
  onWhole,
}: Omit<PartProps, "onUnread"> & { preview: Preview; sessionId: string }) {
  const whole = useSignal(url === "" ? diff : undefined);
  const { failure, attempt } = useAttempt();
  const load = () =>
    attempt(async () => {
      const bytes = await readWhole(connection, { sessionId, output: url }, maxChangeBytes);
      if (bytes.length >= maxChangeBytes) throw new Error("It is too large for this page.");
      whole.value = new TextDecoder().decode(bytes);
    });
  return (
    <>
      <DiffView
        diff={whole.value ?? diff}
        counts={{ additions, deletions }}
        isCut={whole.value === undefined}
        isOpen={isOpen}
        load={() => void load()}
        onWhole={onWhole}
      />
      {failure !== "" && <p class="problem">{failure}</p>}
    </>
  );
}

/** The tool, every value of the input, the files that run, and what is missing; a value that the command shows is not repeated. */
function Call({ request, shown, ...props }: PartProps & { request: PermissionRequest; shown: readonly string[] }) {
  const { connection, isOpen, onUnread } = props;
  const whole = useSignal(request);
  const { failure, attempt } = useAttempt();
  const load = () =>
    void attempt(async () => {
      whole.value = await withWholeInput(connection, request);
    });
  const lines = viewLines(whole.value).filter((line) => !shown.some((command) => isCommand(line, command)));
  // The whole input may have another order than its beginning.
  const keys = lines.map(({ kind, name, text }) => (kind === "input" ? `input ${name}` : `${kind} ${name} ${text}`));
  // The names of two values, or the paths of two files, may be escaped to the same text.
  const parts = lines.map(({ kind, name, text, hash = "" }) => `${kind} ${name} ${text} ${hash}`);
  const see = useAllSeen(parts, props.onWhole);
  return (
    <section class="block">
      <h2>The whole call</h2>
      <dl class="call-lines">
        {lines.map((line, at) => (
          <div key={keys[at]} data-kind={line.kind}>
            <dt>{line.name}</dt>
            <dd dir="auto">
              <Line {...{ line, request, connection, isOpen, load, onUnread }} onWhole={see(parts[at] ?? "")} />
            </dd>
          </div>
        ))}
      </dl>
      {failure !== "" && <p class="problem">{failure}</p>}
    </section>
  );
}

/** Checks that a value is the command that the page shows in full. */
function isCommand({ kind, text, bytes }: ViewLine, command: string): boolean {
  const isSame = visibleLines(command).startsWith(text);
  return kind === "input" && isSame && new TextEncoder().encode(command).length === bytes;
}

/** A line of a call: short ones as they are, others with a fold, and the text of a short file that will run. */
function Line({
  line,
  request,
  load,
  onWhole,
  ...props
}: PartProps & { line: ViewLine; request: PermissionRequest; load: () => void }) {
  const { text, cut, name, path, hash } = line;
  const isRead = path !== undefined && !props.isOver;
  const isPlain = cut === "" && !isRead && !text.includes("\n") && (hash !== undefined || text.length <= 300);
  const named = hash === undefined ? text : <FileName {...{ text, hash }} />;
  useEffect(() => {
    if (isPlain) onWhole();
  }, [isPlain, text]);
  if (isPlain) return named;
  if (isRead) return <BoundFile {...{ named, path, onWhole, ...props }} permissionId={request.id} />;
  return <FoldedText {...{ text, cut, load, onWhole }} label={`Value of ${name}`} isOpen={props.isOpen} />;
}

/** A file with the beginning of its hash, which opens. */
function FileName({ text, hash }: { text: string; hash: string }) {
  return (
    <>
      {text}
      <details>
        <summary>SHA-256 {hash.slice(0, 8)}…</summary>
        {hash}
      </details>
    </>
  );
}

/** A file that will run, with its text. One that cannot be read any more can be approved as it is named; the answer then says so. */
function BoundFile({
  permissionId,
  path,
  named,
  connection,
  isOpen,
  onWhole,
  onUnread,
}: PartProps & { permissionId: string; path: string; named: ComponentChildren }) {
  const file = useLoaded(
    (signal) => connection.permissions.readBoundFile({ permissionId, path }, { signal }),
    [permissionId, path],
  );
  const known = file.value && fileText(file.value);
  const unread = file.problem || (known?.unread ?? "");
  useEffect(() => {
    onUnread(path, unread !== "");
    if (unread !== "" && known === undefined) onWhole();
  }, [unread]);
  return (
    <>
      <div>{named}</div>
      {unread !== "" && (
        <p class="problem">
          {visibleText(unreadWords(unread))}{" "}
          <button type="button" onClick={file.reload}>
            Read it again
          </button>
        </p>
      )}
      {known !== undefined && (
        <FoldedText text={known.text} label={`Text of ${visibleText(path)}`} isOpen={isOpen} onWhole={onWhole} />
      )}
    </>
  );
}

/** A text up to this size is shown whole. */
const maxCharacters = 2_000;
const maxLines = 24;
/** The beginning and the end of a longer one, so that both fit on a screen. */
const headCharacters = 400;
const headLines = 8;
const tailCharacters = 300;
const tailLines = 4;

/** The properties of a text that may be folded. */
interface FoldedTextProps {
  /** The text, escaped. */
  text: string;
  label: string;
  /** Description of what `text` leaves out; then `load` has to bring the rest. */
  cut?: string;
  load?: () => void;
  /** Opens the text as its button does. */
  isOpen: boolean;
  line?: (text: string, index: number) => ComponentChildren;
  /** Called once all of the text is on the page. */
  onWhole: () => void;
}

/** A text of a request. Of a long one the beginning, its length and its end are shown until the reader opens all of it. */
function FoldedText({ text, label, cut = "", load, isOpen, line = plainLine, onWhole }: FoldedTextProps) {
  const wanted = useSignal(false);
  const isWanted = wanted.value || isOpen;
  useEffect(() => {
    if (isWanted && cut !== "") load?.();
  }, [isWanted, cut]);
  const folded = isWanted && cut === "" ? undefined : foldOf(text, cut);
  if (folded === undefined) {
    return <LongText lines={text.split("\n")} label={label} line={line} onWhole={onWhole} />;
  }
  const { head, tail, left } = folded;
  return (
    <div class="cut-text">
      <LongText lines={head.split("\n")} label={`Beginning of the ${label.toLowerCase()}`} line={line} />
      <p class="cut">
        <span>… {left} …</span>{" "}
        <button type="button" onClick={() => (wanted.value = true)}>
          {cut === "" ? `Show all ${text.length} characters` : "Show all of it"}
        </button>
      </p>
      {tail !== "" && (
        <LongText lines={tail.split("\n")} label={`End of the ${label.toLowerCase()}`} line={plainLine} />
      )}
    </div>
  );
}

function plainLine(text: string, i: number) {
  return <p key={i}>{text}</p>;
}

/** Cuts a long text in the middle, or one of which only the beginning is here; undefined for one that is short enough. */
function foldOf(text: string, cut: string): { head: string; tail: string; left: string } | undefined {
  const lines = text.split("\n");
  if (cut === "" && text.length <= maxCharacters && lines.length <= maxLines) return undefined;
  const head = lines.slice(0, headLines).join("\n").slice(0, headCharacters);
  if (cut !== "") return { head, tail: "", left: cut };
  const tail = lines.slice(-tailLines).join("\n").slice(-tailCharacters);
  return { head, tail, left: countOf(text.length - head.length - tail.length, "more character") };
}

import { useSignal, useSignalEffect } from "@preact/signals";
import type { FunctionComponent } from "preact";
import { useEffect, useMemo, useRef } from "preact/hooks";
import iconWaiting from "../icon-waiting.svg";
import { type AskFeed, createAskFeed } from "../inbox/ask-feed.ts";
import { groupByCall } from "../inbox/ask-list.ts";
import { InboxPage } from "../inbox/inbox-page.tsx";
import { boundTo } from "../parts/bound.ts";
import { visibleText } from "../parts/visible-text.ts";
import type { ConsoleConnection } from "../stream/connection.ts";
import { isTyping } from "./keys.ts";
import { Empty, lazyPage, type PageProps } from "./page.tsx";
import type { Route } from "./route.ts";
import type { SignIn } from "./sign-in.ts";

const Sessions = lazyPage(async () => (await import("../session/sessions.tsx")).SessionsPage);
const Policy = lazyPage(async () => (await import("../policy/policy.tsx")).PolicyPage);
const Tools = lazyPage(async () => (await import("../tools/tools.tsx")).Tools);
const Sources = lazyPage(async () => (await import("../sources/sources.tsx")).SourcesPage);
const People = lazyPage(async () => (await import("../people/people.tsx")).PeoplePage);
const Notices = lazyPage(async () => (await import("../channels/notices-page.tsx")).NoticesPage);
const AddDevice = lazyPage<Pick<PageProps, "connection">>(
  async () => (await import("../people/add-device.tsx")).AddDevice,
);
const YourName = lazyPage(async () => (await import("../people/your-name.tsx")).YourName);
const NotifyMe = lazyPage(async () => (await import("./notify-me.tsx")).NotifyMe);
const Providers = lazyPage<object>(async () => (await import("./providers.tsx")).Providers);
const Workers = lazyPage(async () => (await import("../workers/workers.tsx")).WorkersPage);

/** A page without an icon is not in the navigation. */
const pages: Readonly<Record<string, { title: string; icon?: string; Page: FunctionComponent<PageProps> }>> = {
  inbox: { title: "Inbox", icon: "M3 13h5l1.5 3h5L16 13h5M5 5h14l2 8v6H3v-6z", Page: InboxPage },
  sessions: { title: "Sessions", icon: "M4 6h10M4 12h16M4 18h7M18 5v2M15 17v2", Page: Sessions },
  policy: { title: "Policy", icon: "M12 3l8 3v6c0 5-3.5 8-8 9-4.5-1-8-4-8-9V6zM9 12l2 2 4-4", Page: Policy },
  tools: { title: "Tools", icon: "M14 7a4 4 0 0 1 5-4l-2.5 3 1.5 1.5 3-2.5a4 4 0 0 1-5 5L7 19l-2-2z", Page: Tools },
  sources: { title: "Sources", icon: "M4 5h16v5H4zM4 14h16v5H4zM8 7.5v.1M8 16.5v.1", Page: Sources },
  people: {
    title: "People",
    icon: "M9 11a3.5 3.5 0 1 0 0-7 3.5 3.5 0 0 0 0 7zM3 20c1-4 3-6 6-6s5 2 6 6M17 5v6M14 8h6",
    Page: People,
  },
  notices: { title: "Notices", Page: Notices },
  workers: { title: "Workers", icon: "M5 4h6v6H5zM13 14h6v6h-6zM8 10v7h5M16 14V7h-5", Page: Workers },
};

/** The console: the sign-in page or, when signed in, the pages. */
export function App({ signIn, route }: { signIn: SignIn; route: Route }) {
  const signedIn = signIn.current.value;
  if (signedIn.state === "in") return <Shell connection={signedIn.connection} signIn={signIn} route={route} />;
  return <SignInPage signIn={signIn} />;
}

function Shell({ connection, signIn, route }: { connection: ConsoleConnection; signIn: SignIn; route: Route }) {
  const feed = useMemo(() => createAskFeed(connection), [connection]);
  useEffect(() => connection.stream.close, [connection]);
  const waiting = useSignal(0);
  /** On a phone: the sign-in, devices and notifications are shown. */
  const isOpen = useSignal(false);
  useSignalEffect(() => {
    waiting.value = groupByCall(feed.asks.value).filter(({ open }) => open.length > 0).length;
  });
  // A request is shown in the inbox.
  const current = route.page.value === "requests" ? "inbox" : route.page.value;
  const { title, Page } = pages[current] ?? { title: "Nothing here", Page: NotFound };
  useEffect(() => showWaiting(waiting.value, pages[current]?.title ?? ""), [waiting.value, current]);

  return (
    <div class="shell">
      <button type="button" class="skip" onClick={() => document.getElementById("main")?.focus()}>
        Skip to content
      </button>
      <aside class="side" data-open={isOpen.value}>
        <div class="brand">
          <Icon path="M6 20V11a6 6 0 0 1 12 0v9M12 5v15" />
          Toolgate
        </div>
        <nav aria-label="Pages">
          {Object.entries(pages).map(
            ([name, page]) =>
              page.icon && (
                <a key={name} href={`#/${name}`} aria-current={current === name ? "page" : undefined}>
                  <Icon path={page.icon} />
                  {page.title}
                  {name === "inbox" && waiting.value > 0 && (
                    <span class="badge">
                      {waiting.value > 99 ? "99+" : waiting.value}
                      <span class="unseen"> waiting</span>
                    </span>
                  )}
                </a>
              ),
          )}
          <button
            type="button"
            class="account"
            aria-expanded={isOpen.value}
            onClick={() => (isOpen.value = !isOpen.value)}
          >
            <Icon path="M12 12a4 4 0 1 0 0-8 4 4 0 0 0 0 8zM4 20c1-4 4-6 8-6s7 2 8 6" />
            You
          </button>
        </nav>
        <div class="side-foot">
          {connection.may("approver", "admin") && (
            <a href="#/notices" aria-current={current === "notices" ? "page" : undefined}>
              Notices
            </a>
          )}
          <NotifyMe connection={connection} feed={feed} route={route} />
          <Live feed={feed} />
          <Who connection={connection} signIn={signIn} />
        </div>
      </aside>
      <main id="main" tabIndex={-1} aria-label={title}>
        {isNameless(connection) && <YourName connection={connection} feed={feed} route={route} />}
        <Page connection={connection} feed={feed} route={route} />
      </main>
      <KeyHelp />
      <p class="unseen" role="status">
        {waiting.value === 0 ? "Nothing is waiting for an answer" : `${waiting.value} waiting for an answer`}
      </p>
    </div>
  );
}

function Live({ feed }: { feed: AskFeed }) {
  const liveness = feed.liveness.value;
  const words = {
    live: "Live",
    connecting: "Connecting…",
    lost: "Not live: connection lost, trying again",
    refused: "Not live: the service refuses this token",
  };
  return (
    <p class="live" data-liveness={liveness} role={liveness === "live" ? undefined : "alert"}>
      <span class="dot" />
      {words[liveness]}
    </p>
  );
}

function Who({ connection, signIn }: { connection: ConsoleConnection; signIn: SignIn }) {
  const { server } = connection;
  const isOpenToAll = server.principal === "anonymous";
  return (
    <div class="who">
      <span>
        <b>{visibleText(server.person?.name || server.principal)}</b>
        <small>{server.roles.join(", ")}</small>
      </span>
      {connection.may("approver", "admin") && !isOpenToAll && <AddDevice connection={connection} />}
      <button type="button" class="quiet" onClick={() => void signIn.leave()}>
        Sign out
      </button>
    </div>
  );
}

/** Returns true for a person who signed in with a code and gave no name yet. */
function isNameless({ server: { person } }: ConsoleConnection): boolean {
  return person?.issuer === "local" && person.name === "";
}

function NotFound() {
  return (
    <Empty title="Page not found">
      <a href="#/inbox">Go to the inbox</a>
    </Empty>
  );
}

function Icon({ path }: { path: string }) {
  return (
    <svg class="icon" viewBox="0 0 24 24" aria-hidden="true">
      <path d={path} />
    </svg>
  );
}

/** Shows on the browser's tab how many calls are waiting for an answer. */
function showWaiting(count: number, page: string): void {
  document.title = `${count > 0 ? `(${count}) ` : ""}${page} · Toolgate`;
  const link = document.querySelector<HTMLLinkElement>("link[rel=icon]");
  if (link === null) return;
  link.dataset.calm ??= link.href;
  link.href = count > 0 ? iconWaiting : link.dataset.calm;
}

const keys: readonly [keys: readonly string[], words: string][] = [
  [["j", "k"], "next and previous request"],
  [["/"], "filter the requests"],
  [["o"], "approve once"],
  [["a"], "always: approve and remember"],
  [["e"], "edit the arguments, then approve"],
  [["r"], "reject, with advice for the model"],
  [["Ctrl ↵"], "send the rejection"],
  [["Esc"], "back"],
  [["?"], "this list"],
];

/** The dialog with all keys, which `?` opens. While it is open no key answers a request. */
function KeyHelp() {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const press = ({ key, ctrlKey, metaKey, altKey, target }: KeyboardEvent) => {
      if (key === "?" && !ctrlKey && !metaKey && !altKey && !isTyping(target)) dialog.current?.showModal();
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, []);
  return (
    <dialog class="key-help" ref={dialog} aria-labelledby="key-help">
      <h2 id="key-help">Keys</h2>
      <dl>
        {keys.map(([names, words]) => (
          <div key={words}>
            <dt>
              {names.map((name) => (
                <kbd key={name}>{name}</kbd>
              ))}
            </dt>
            <dd>{words}</dd>
          </div>
        ))}
      </dl>
      <form method="dialog">
        <button type="submit">Close</button>
      </form>
    </dialog>
  );
}

/** The form for a code or a token, and where to find one. */
function SignInPage({ signIn }: { signIn: SignIn }) {
  const secret = useSignal("");
  const signedIn = signIn.current.value;
  const problem = signedIn.state === "in" ? "" : signedIn.problem;
  if (signedIn.state === "connecting") {
    return (
      <main class="sign-in" aria-busy="true">
        <h1>Toolgate</h1>
        <p role="status">
          {problem === "" ? "Connecting…" : `The service does not answer (${problem}). Trying again…`}
        </p>
      </main>
    );
  }
  const submit = (event: Event) => {
    event.preventDefault();
    void signIn.use(secret.value.trim());
  };
  return (
    <main class="sign-in">
      <h1>Toolgate</h1>
      <p>Agents ask here for approval. Sign in to see their requests.</p>
      <Providers />
      <form onSubmit={submit}>
        <label for="secret">Code or token</label>
        <input id="secret" type="password" autocomplete="off" required {...boundTo(secret)} />
        <button type="submit" class="primary">
          Sign in
        </button>
        {problem !== "" && <p role="alert">{problem}</p>}
      </form>
      <p class="hint">
        <code>toolgate serve</code> prints a link with a code at its terminal, and a signed-in browser shows one under{" "}
        <i>Add a device</i>. Without either, <code>toolgate token create --role approver</code> prints a token.
      </p>
    </main>
  );
}

import type { CDPSession, Page, Worker } from "playwright-core";
import { expect, onTestFinished } from "vitest";
import { createService, type Service, unconfined } from "../e2e/service.ts";
import { invite, newBrowser, startPushService } from "../reach/push-service.ts";
import { answersOf, type Browsers, untilArmed, untilLive } from "./browser.ts";

/** Starts a service that keeps its address, and sends pushes to this push service. */
async function startPushing(settings: string) {
  const flags: string[] = [];
  const service = createService({ settings: `lease_ms = 5000\n${settings}${unconfined}`, flags });
  onTestFinished(() => service.close());
  await service.start();
  flags.push("--listen", new URL(service.url).host);
  const crash = async () => {
    await service.kill();
    await service.start();
  };
  return { service, crash };
}

/** Opens a phone whose browser subscribes at a push service of the test, and was not asked for notifications yet. */
async function openPhone(browsers: Browsers, endpoint: string) {
  const keys = newBrowser();
  const browser = await browsers.browser({ viewport: { width: 390, height: 844 }, hasTouch: true, isMobile: true });
  const bytes = (data: Uint8Array) => `new Uint8Array(${JSON.stringify([...data])}).buffer`;
  await browser.addInitScript(`{
    let permission = "default";
    Object.defineProperty(Notification, "permission", { get: () => permission });
    Notification.requestPermission = async () => (permission = "granted");
    let made = null;
    PushManager.prototype.getSubscription = async () => made;
    PushManager.prototype.subscribe = async (options) => (made = {
      endpoint: ${JSON.stringify(endpoint)},
      options,
      getKey: (name) => (name === "auth" ? ${bytes(keys.auth)} : ${bytes(keys.p256dh)}),
      unsubscribe: async () => ((made = null), true),
    });
  }`);
  return { browser, keys };
}

/** Delivers what the push service got to the service worker, as a browser does. Headless Chromium shows no notifications, so the worker keeps them. */
async function createDelivery(page: Page, origin: string) {
  const devtools: CDPSession = await page.context().newCDPSession(page);
  const registered = new Promise<string>((resolve) => {
    devtools.on("ServiceWorker.workerRegistrationUpdated", ({ registrations }) => {
      const [found] = registrations.filter(({ isDeleted }) => !isDeleted);
      if (found) resolve(found.registrationId);
    });
  });
  await devtools.send("ServiceWorker.enable");
  const registrationId = await registered;
  const worker = page.context().serviceWorkers()[0] as Worker;
  await worker.evaluate(`
    self.shown = new Map();
    self.opened = [];
    registration.showNotification = async (title, options) => void shown.set(options.tag, { title, ...options });
    clients.openWindow = async (path) => void opened.push(path);`);
  return {
    worker,
    deliver: async (plain: Buffer) => {
      await devtools.send("ServiceWorker.deliverPushMessage", { origin, registrationId, data: plain.toString() });
    },
    shown: async () =>
      (await worker.evaluate("[...shown.values()]")) as { title: string; body: string; tag: string; silent: boolean }[],
  };
}

/** Taps the notification; returns the address that the worker opens, or undefined if it sends an open page there. */
const tapNotification = `(async () => {
  const [notification] = [...shown.values()];
  const waits = [];
  const event = Object.assign(new Event("notificationclick"), {
    notification: { ...notification, close() {} },
    waitUntil: (work) => waits.push(work),
  });
  self.dispatchEvent(event);
  await Promise.all(waits);
  return opened.at(-1);
})()`;

/**
 * Lets a person with a phone approve a command: a push, and two taps. The service is killed between any two steps. Returns it with what
 * the agent ended with.
 */
export async function approveByPhone<T>(
  browsers: Browsers,
  {
    settings,
    command,
    run,
    runsElsewhere = false,
  }: {
    /** Settings of the service, by the address of the push service. */
    settings: (url: string) => string;
    /** The command that asks. */
    command: string;
    /** Starts the agent; resolves with its end. */
    run: (service: Service) => Promise<T>;
    /** The command runs outside the service, which is then killed between the answer and the command, too. */
    runsElsewhere?: boolean;
  },
): Promise<{ service: Service; end: T }> {
  const provider = await startPushService();
  const { service, crash } = await startPushing(provider.settings + settings(provider.url));
  const { browser, keys } = await openPhone(browsers, `${provider.url}/phone`);
  const read = (index: number) => keys.decrypt(provider.pushes[index]?.body ?? Buffer.alloc(0));
  const outcomes = () => provider.pushes.map((_, index) => read(index)).filter((plain) => plain.includes('"settled"'));
  const code = await invite(service, "Ann");
  const page = await browser.newPage();
  await page.goto(`${service.url}/#code=${code}`);
  await untilLive(page);
  await page.getByRole("button", { name: "You" }).tap();
  await page.getByRole("button", { name: "Notify me" }).tap();
  const sheet = page.getByRole("dialog", { name: "Notify this device" });
  await sheet.getByText("The browser asks you first").waitFor();
  await sheet.getByRole("button", { name: "Notify me of requests" }).tap();
  await sheet.getByText("also while this page is closed").waitFor();
  expect(JSON.parse(read(0).toString())).toMatchObject({ id: "test", title: "Toolgate: a test" });
  const { deliver, shown, worker } = await createDelivery(page, service.url);
  await page.goto("about:blank");

  await crash();
  const done = run(service);
  done.catch(() => undefined);
  await expect.poll(() => provider.pushes.length, { timeout: 30_000 }).toBe(2);
  await deliver(read(1));
  await expect.poll(shown).toMatchObject([{ body: "", silent: false }]);
  const [{ tag = "", title = "" } = {}] = await shown();
  expect(title).toMatch(/^Toolgate: .+ asks: bash$/);

  await crash();
  const answers = answersOf(page);
  const path = await worker.evaluate(tapNotification);
  expect(path).toBe(`/r/${tag}`);
  await page.goto(`${service.url}${path}`);
  await page.getByRole("article").locator(".command-line").getByText(command).waitFor();
  expect(answers).toEqual([]);

  await untilLive(page);
  // The page says that it is live until it sees the end of its stream.
  const watched = page.waitForRequest(/WatchMany$/);
  await crash();
  await watched;
  await untilLive(page);
  await untilArmed(page);
  const taps = page.evaluate("new Promise((done) => addEventListener('click', () => done(1), { once: true }))");
  const answered = page.waitForResponse(/RespondToPermission$/);
  await page.getByRole("button", { name: /Approve once/ }).tap();
  await answered;
  if (runsElsewhere) await crash();
  const end = await done;
  expect(await taps).toBe(1);
  expect(answers).toHaveLength(1);

  await crash();
  await expect.poll(() => outcomes().length, { timeout: 60_000 }).toBeGreaterThanOrEqual(1);
  await deliver(outcomes()[0] ?? Buffer.alloc(0));
  await expect.poll(shown).toMatchObject([{ title: "Toolgate: approved once", tag, silent: true }]);
  return { service, end };
}

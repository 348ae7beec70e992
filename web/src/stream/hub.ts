// The shared worker: one stream for all tabs of this browser.
import type { StreamMessage } from "../types";
import { Feed, type Status } from "./feed";

export type ToHub =
  | { kind: "want"; runs: [string, number][]; token: string | null; lock: string }
  | { kind: "hurry" }
  | { kind: "bye" };
export type FromHub = { kind: "message"; message: StreamMessage } | { kind: "status"; status: Status };

interface Tab {
  runs: Map<string, number>;
  token: string | null;
  lock: string;
}

declare const self: SharedWorkerGlobalScope;

interface SharedWorkerGlobalScope {
  onconnect: ((event: MessageEvent) => void) | null;
}

const tabs = new Map<MessagePort, Tab>();

const feed = new Feed(
  new URL("../api/stream", location.href).href, // this file lies in assets/
  (message) => {
    for (const [port, tab] of tabs)
      if (!("run" in message.data) || tab.runs.has(message.data.run)) tell(port, { kind: "message", message });
  },
  (status) => {
    for (const port of tabs.keys()) tell(port, { kind: "status", status });
  },
);

function tell(port: MessagePort, what: FromHub): void {
  port.postMessage(what);
}

function follow(): void {
  if (tabs.size === 0) return feed.close();
  const runs = new Map<string, number>();
  let token: string | null = null;
  for (const tab of tabs.values()) {
    token = tab.token ?? token;
    for (const [run, after] of tab.runs) runs.set(run, Math.min(after, runs.get(run) ?? Infinity));
    // Once told, a tab is served by the feed's own position; its next `want` says again where it stands.
    for (const run of tab.runs.keys()) tab.runs.set(run, Infinity);
  }
  feed.want(runs, token);
}

function leave(port: MessagePort): void {
  if (tabs.delete(port)) follow();
}

self.onconnect = (event) => {
  const port = event.ports[0];
  if (port === undefined) return;
  port.onmessage = ({ data }: MessageEvent<ToHub>) => {
    if (data.kind === "bye") return leave(port);
    if (data.kind === "hurry") return feed.hurry();
    const known = tabs.get(port);
    tabs.set(port, { runs: new Map(data.runs), token: data.token, lock: data.lock });
    tell(port, { kind: "status", status: feed.status });
    // A tab holds a lock as long as it lives: to get it means that the tab is gone, also after a crash.
    if (known === undefined && navigator.locks !== undefined)
      void navigator.locks.request(data.lock, () => leave(port));
    follow();
  };
};

// A tab's end of the stream: through the shared worker where the browser has one, else a stream of its own.
import type { StreamMessage } from "../types";
import { Feed, type Status } from "./feed";
import type { FromHub, ToHub } from "./hub";

export interface Stream {
  /** Follow these runs, each from the id up to which the tab knows it. */
  follow(runs: Map<string, number>, token: string | null): void;
  hurry(): void;
}

export function openStream(onMessage: (message: StreamMessage) => void, onStatus: (status: Status) => void): Stream {
  if (typeof SharedWorker === "undefined") {
    const feed = new Feed("api/stream", onMessage, onStatus);
    return { follow: (runs, token) => feed.want(runs, token), hurry: () => feed.hurry() };
  }
  const worker = new SharedWorker(new URL("./hub.ts", import.meta.url), { type: "module", name: "flodl" });
  const lock = `flodl-tab-${Date.now()}-${Math.random()}`;
  const held = navigator.locks === undefined ? null : holdLock(lock);
  let wanted: ToHub | null = null;
  const send = (what: ToHub) => worker.port.postMessage(what);
  worker.port.onmessage = ({ data }: MessageEvent<FromHub>) =>
    data.kind === "message" ? onMessage(data.message) : onStatus(data.status);
  worker.onerror = () => onStatus({ state: "lost", retryAt: Infinity, reason: null });
  addEventListener("pagehide", () => send({ kind: "bye" }));
  addEventListener("pageshow", (event) => {
    if (event.persisted && wanted !== null) send(wanted); // back from the browser's cache of pages
  });
  return {
    follow(runs, token) {
      wanted = { kind: "want", runs: [...runs], token, lock };
      void Promise.resolve(held).then(() => wanted !== null && send(wanted));
    },
    hurry: () => send({ kind: "hurry" }),
  };
}

/** Resolved when the lock is held; it is given back by the browser when the tab is gone. */
function holdLock(name: string): Promise<void> {
  return new Promise((resolve) => {
    void navigator.locks.request(name, () => {
      resolve();
      return new Promise<never>(() => {});
    });
  });
}

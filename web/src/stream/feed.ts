// One stream from the server for any number of runs: it reconnects, and goes on exactly where it was cut.
import type { RowsMessage, StreamMessage } from "../types";
import { SseParser } from "./sse";

export type Status = { state: "connecting" } | { state: "open" } | { state: "lost"; retryAt: number; reason: string | null };

const SILENCE_MS = 10_000; // twice the server's heartbeat
const RETRY_MS = [500, 1000, 2000, 4000, 8000];

export class Feed {
  /** run -> the id up to which its rows are known */
  private readonly position = new Map<string, number>();
  private token: string | null = null;
  /** The server's own note of where the stream is; void when other runs are wanted. */
  private lastEventId = "";
  private connection: AbortController | null = null;
  private retry: ReturnType<typeof setTimeout> | undefined;
  private failures = 0;
  /** Why the server refuses, in its own words. */
  private refusal: string | null = null;
  status: Status = { state: "connecting" };

  constructor(
    private readonly url: string,
    private readonly onMessage: (message: StreamMessage) => void,
    private readonly onStatus: (status: Status) => void,
  ) {}

  /** The runs to follow, each from an id on. What is followed already from there or from before needs no new connection. */
  want(runs: Map<string, number>, token: string | null): void {
    let restart = this.connection === null || token !== this.token;
    for (const [run, after] of runs) {
      const known = this.position.get(run);
      if (known !== undefined && known <= after) continue;
      this.position.set(run, after);
      restart = true;
    }
    for (const run of this.position.keys()) if (!runs.has(run)) this.position.delete(run);
    this.token = token;
    if (!restart) return;
    this.lastEventId = "";
    this.connect();
  }

  /** Tries at once instead of waiting for the next attempt. */
  hurry(): void {
    if (this.status.state === "lost") this.connect();
  }

  close(): void {
    clearTimeout(this.retry);
    this.connection?.abort();
    this.connection = null;
  }

  private connect(): void {
    this.close();
    const connection = new AbortController();
    this.connection = connection;
    if (this.status.state === "lost") this.report({ state: "connecting" });
    void this.read(connection).then((polite) => {
      if (connection.signal.aborted || this.connection !== connection) return;
      const wait = (polite ? 3000 : RETRY_MS[Math.min(this.failures, RETRY_MS.length - 1)]) ?? 0;
      this.failures += 1;
      this.report({ state: "lost", retryAt: Date.now() + wait, reason: this.refusal });
      this.retry = setTimeout(() => this.connect(), wait);
    });
  }

  /** Reads until the connection ends; whether the server said that it ends. */
  private async read(connection: AbortController): Promise<boolean> {
    let polite = false;
    this.refusal = null;
    let silence: ReturnType<typeof setTimeout> | undefined;
    const cut = new AbortController();
    connection.signal.addEventListener("abort", () => cut.abort());
    const alive = () => {
      clearTimeout(silence);
      silence = setTimeout(() => cut.abort(), SILENCE_MS);
    };
    alive();
    try {
      const runs = [...this.position].map(([run, after]) => `run=${encodeURIComponent(run)}:${after}`);
      const headers: Record<string, string> = { Accept: "text/event-stream" };
      if (this.token !== null) headers["X-Flodl-Token"] = this.token;
      if (this.lastEventId !== "") headers["Last-Event-ID"] = this.lastEventId;
      const answer = await fetch(`${this.url}?${runs.join("&")}`, { headers, cache: "no-store", signal: cut.signal });
      if (!answer.ok || answer.body === null) {
        this.refusal = await refusalText(answer);
        return false;
      }
      this.failures = 0;
      this.report({ state: "open" });
      const parser = new SseParser();
      const text = new TextDecoder();
      const reader = answer.body.getReader();
      for (;;) {
        const { done, value } = await reader.read();
        if (done || connection.signal.aborted) return polite;
        alive();
        for (const { id, event, data } of parser.push(text.decode(value, { stream: true }))) {
          const message = { event, data: JSON.parse(data) as unknown } as StreamMessage;
          if (message.event === "bye") polite = true;
          if (message.event === "rows") this.advance(message.data);
          if (message.event === "reset") this.position.set(message.data.run, 0);
          this.onMessage(message);
          this.lastEventId = id;
        }
      }
    } catch {
      return polite; // cut off or refused: `connect` tries again, and the page says so
    } finally {
      clearTimeout(silence);
      cut.abort();
    }
  }

  private advance(rows: RowsMessage): void {
    if (this.position.has(rows.run)) this.position.set(rows.run, lastId(rows));
  }

  private report(status: Status): void {
    this.status = status;
    this.onStatus(status);
  }
}

async function refusalText(answer: Response): Promise<string> {
  try {
    return String(((await answer.json()) as { error?: unknown }).error ?? answer.status);
  } catch {
    return `status ${answer.status}`; // not this server's own answer
  }
}

/** The id up to which a message tells everything: of a piece of a backlog, its newest row. */
export function lastId(rows: RowsMessage): number {
  if (!rows.more) return rows.last_id;
  return Math.max(
    0,
    ...[rows.points, rows.resources].map((list) => list.at(-1)?.[0] ?? 0),
    ...[rows.epochs, rows.events].map((list) => list.at(-1)?.id ?? 0),
  );
}

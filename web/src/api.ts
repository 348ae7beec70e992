// Where the data comes from: the server, or the JSON inside a saved report.
import type {
  EpochRow,
  EventRow,
  ReportData,
  ResourceData,
  RunDetail,
  RunRow,
  SeriesData,
  TimelineData,
} from "./types";

export interface SeriesQuery {
  x: "step" | "time";
  width: number;
  from?: number | undefined;
  to?: number | undefined;
}

export interface Api {
  /** Whether there is a server: streams, controls. */
  readonly live: boolean;
  /** When the report was saved. */
  readonly saved: number | null;
  runs(): Promise<RunRow[]>;
  run(id: string): Promise<RunDetail>;
  series(id: string, series: number[], query: SeriesQuery): Promise<SeriesData[]>;
  epochs(id: string): Promise<EpochRow[]>;
  events(id: string): Promise<{ events: EventRow[]; more: boolean }>;
  timeline(id: string, width: number, from?: number, to?: number): Promise<TimelineData>;
  resources(id: string, width: number): Promise<ResourceData>;
  artifact(id: string, name: string): Promise<string>;
  control(id: string, action: "stop" | "save"): Promise<void>;
}

/** An answer that says no; `message` is the server's own sentence. */
export class ApiError extends Error {
  constructor(
    message: string,
    readonly status: number,
  ) {
    super(message);
  }
}

const TOKEN_KEY = "flodl-token";
export const EVENTS_LOADED = 5000;
/** Told by the timeline, and too many for a list. */
export const TIMELINE_KINDS = ["steps", "sync", "wait"];

/** The token of the URL that the user opened; taken out of the address bar at once. */
function tokenOfUrl(): string | null {
  const given = /^#token=(.+)$/.exec(location.hash)?.[1];
  if (given === undefined) return sessionStorage.getItem(TOKEN_KEY);
  const token = decodeURIComponent(given);
  sessionStorage.setItem(TOKEN_KEY, token);
  history.replaceState(null, "", location.pathname);
  return token;
}

export class ServerApi implements Api {
  readonly live = true;
  readonly saved = null;
  token: string | null = null;

  /** Finds the token; asks the server for it where that gives one (loopback). */
  async open(): Promise<void> {
    this.token = tokenOfUrl();
    const session = await this.get<{ token_needed: boolean; token: string | null }>("session");
    if (session.token !== null) this.token = session.token;
    if (session.token_needed && this.token === null)
      throw new ApiError("This server asks for a token: open the whole address that it printed, with #token=… at its end.", 401);
  }

  async runs(): Promise<RunRow[]> {
    return (await this.get<{ runs: RunRow[] }>("runs")).runs;
  }

  run(id: string): Promise<RunDetail> {
    return this.get(`runs/${encodeURIComponent(id)}`);
  }

  async series(id: string, series: number[], query: SeriesQuery): Promise<SeriesData[]> {
    const found: SeriesData[] = [];
    for (let first = 0; first < series.length; first += 200) {
      const asked = new URLSearchParams(series.slice(first, first + 200).map((s) => ["s", String(s)]));
      asked.set("x", query.x);
      asked.set("width", String(query.width));
      if (query.from !== undefined) asked.set("from", String(query.from));
      if (query.to !== undefined) asked.set("to", String(query.to));
      const answer = await this.get<{ series: SeriesData[] }>(`runs/${encodeURIComponent(id)}/series?${asked}`);
      found.push(...answer.series);
    }
    return found;
  }

  async epochs(id: string): Promise<EpochRow[]> {
    return (await this.get<{ epochs: EpochRow[] }>(`runs/${encodeURIComponent(id)}/epochs`)).epochs;
  }

  async events(id: string): Promise<{ events: EventRow[]; more: boolean }> {
    const without = new URLSearchParams(TIMELINE_KINDS.map((kind) => ["without", kind]));
    return this.get(`runs/${encodeURIComponent(id)}/events?${without}&tail=1&limit=${EVENTS_LOADED}`);
  }

  timeline(id: string, width: number, from?: number, to?: number): Promise<TimelineData> {
    const asked = new URLSearchParams({ width: String(width) });
    if (from !== undefined) asked.set("from", String(from));
    if (to !== undefined) asked.set("to", String(to));
    return this.get(`runs/${encodeURIComponent(id)}/timeline?${asked}`);
  }

  resources(id: string, width: number): Promise<ResourceData> {
    return this.get(`runs/${encodeURIComponent(id)}/resources?width=${width}`);
  }

  async artifact(id: string, name: string): Promise<string> {
    const asked = new URLSearchParams({ name });
    return (await this.ask(`runs/${encodeURIComponent(id)}/artifact?${asked}`)).text();
  }

  async control(id: string, action: "stop" | "save"): Promise<void> {
    await this.ask(`runs/${encodeURIComponent(id)}/control`, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ action }),
    });
  }

  private async get<T>(path: string): Promise<T> {
    return (await (await this.ask(path)).json()) as T;
  }

  private async ask(path: string, init: RequestInit = {}): Promise<Response> {
    const headers = new Headers(init.headers);
    if (this.token !== null) headers.set("X-Flodl-Token", this.token);
    let answer: Response;
    try {
      answer = await fetch(`api/${path}`, { ...init, headers });
    } catch {
      throw new ApiError("The server does not answer. Is it still running?", 0);
    }
    if (!answer.ok) throw new ApiError(await errorText(answer), answer.status);
    return answer;
  }
}

async function errorText(answer: Response): Promise<string> {
  const text = await answer.text();
  try {
    const { error } = JSON.parse(text) as { error?: unknown };
    if (typeof error === "string") return error;
  } catch {
    // not the server's own error: a proxy's page, say
  }
  return `The server answered ${answer.status} ${answer.statusText}`;
}

export class ReportApi implements Api {
  readonly live = false;

  constructor(private readonly report: ReportData) {}

  get saved(): number {
    return this.report.saved;
  }

  async runs(): Promise<RunRow[]> {
    return this.report.runs;
  }

  async run(id: string): Promise<RunDetail> {
    return this.of(id).run;
  }

  async series(id: string, series: number[], query: SeriesQuery): Promise<SeriesData[]> {
    const wanted = new Set(series);
    const from = query.from ?? -Infinity;
    const to = query.to ?? Infinity;
    return this.of(id)
      .series.series.filter((line) => wanted.has(line.id))
      .map((line) => {
        const first = Math.max(0, line.x.findIndex((x) => x >= from) - 1);
        const after = line.x.findIndex((x) => x > to);
        const end = after < 0 ? line.x.length : after + 1;
        return { ...line, x: line.x.slice(first, end), y: line.y.slice(first, end) };
      });
  }

  async epochs(id: string): Promise<EpochRow[]> {
    return this.of(id).epochs.epochs;
  }

  async events(id: string): Promise<{ events: EventRow[]; more: boolean }> {
    return { events: this.of(id).events.events.filter((event) => !TIMELINE_KINDS.includes(event.kind)), more: false };
  }

  async timeline(id: string, _width: number, from?: number, to?: number): Promise<TimelineData> {
    const whole = this.of(id).timeline;
    return { ...whole, from: from ?? whole.from, to: to ?? whole.to };
  }

  async resources(id: string): Promise<ResourceData> {
    return this.of(id).resources;
  }

  async artifact(id: string, name: string): Promise<string> {
    return this.of(id).artifacts[name] ?? "";
  }

  async control(): Promise<void> {
    throw new ApiError("A saved report has no running training.", 409);
  }

  private of(id: string): ReportData["data"][string] {
    const found = this.report.data[id];
    if (found === undefined) throw new ApiError(`The report does not hold run ${id}.`, 404);
    return found;
  }
}
